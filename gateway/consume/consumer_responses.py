"""Sends the broker's answers to a client of another zone, with the links that `ConsumerLinks` decides on."""

from dataclasses import dataclass
from functools import partial
from typing import Final

from gateway.client_protocol import ClientSide
from gateway.consume.consumer_links import Asked, ConsumerLinks, ReadCosts
from gateway.metrics import ConsumeMetrics
from kafka_log.crc32c import Buffer
from plugin.format.archive_object_id import StoredObjectId
from replication.leader.catch_up import FollowerCatchUp
from replication.leader.leader_context import LeaderContext
from replication.leader.leader_relay import decided
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_protocol import MessageKind

CONTROL_KINDS: Final = (MessageKind.INLINE_REQUEST, MessageKind.LINKS_PAUSED, MessageKind.LINKS_RESUMED)
"""A gateway's messages about links."""


@dataclass(frozen=True, slots=True)
class ConsumerContext:
    """What all consumers' connections of one agent share."""

    leader: LeaderContext
    """The context for followers, with another budget and other stage times."""
    metrics: ConsumeMetrics
    costs: ReadCosts


def _tell_nobody(_object_id: StoredObjectId, _ranges: list[tuple[int, int]], _custom_metadata: bytes) -> None:
    """Announce nothing: gateways do not read ahead, because a consumer may leave at any time."""


class ConsumerResponses:
    """Sends one connection's responses to the consumer's gateway, linked where `ConsumerLinks` says so."""

    def __init__(self, context: ConsumerContext, side: ClientSide, channel: PeerChannel) -> None:
        """`channel` leads to the consumer's gateway."""
        leader = context.leader
        self._leader = leader
        self._channel = channel
        self._catch_up: FollowerCatchUp | None = None
        if leader.catch_up is not None:
            self._catch_up = FollowerCatchUp(leader.catch_up, _tell_nobody, leader.uploads.notify, side.capabilities)
        read_ahead = self._catch_up.plan if self._catch_up is not None else None
        self._links = ConsumerLinks(leader, side, context.metrics, context.costs, read_ahead)
        begin_reads = self._catch_up.begin_reads if self._catch_up is not None else lambda: None
        self._decided = partial(
            decided, self._links.look_again, context=leader, peer=channel.connection, begin_reads=begin_reads
        )

    def asked(self, frame: Buffer) -> Asked:
        """Return a note on a request that is about to be sent to the broker, for `answer`; the frame's beginning is
        enough."""
        return self._links.asked(frame, self._leader.clock())

    def control(self, kind: MessageKind, body: Buffer) -> None:
        """Handle a message of the gateway about links (CONTROL_KINDS). Raises MalformedFrameError, ConnectionError."""
        original = self._links.control(kind, body)
        if original is not None:
            self._channel.send(original.kind, *original.body, records=original.records)
        self._leader.uploads.notify()  # whether links are given may have changed

    async def answer(self, frame: Buffer, what: Asked) -> None:
        """Send a response, linked if that pays; `what` is the note on its request. Raises ConnectionError."""
        answer = await self._decided(self._links.response(frame, what, self._leader.clock()))
        self._channel.send(answer.kind, *answer.body, records=answer.records)

    def close(self) -> None:
        """Release all memory and reads, because the connection ended."""
        self._links.close()
        if self._catch_up is not None:
            self._catch_up.close()
