"""The listener that other agents dial; behind it is the local broker's own listener.

Requests go to the broker unchanged, except how long and for how much a replica fetch waits while much is uploaded
(`FetchMinBytesTuner`). Responses come back unchanged, except Fetch responses to a replica on a connection that began
with a hello: there `LinkPlanner` replaces record bytes that are in object storage by links.

A connection without a hello (a follower without an agent) is relayed unchanged if that is permitted, and never under
TLS: a certificate counts for what its owner says it is. Connections for other purposes go to `LeaderContext.handlers`.
"""

import asyncio
import socket
import ssl
from collections import defaultdict
from contextlib import closing, suppress
from dataclasses import replace
from functools import lru_cache
from itertools import repeat

import structlog

from kafka_log.crc32c import Buffer
from kafka_log.topic_partition import TopicIdPartition
from plugin.errors import defect_site, in_words
from plugin.segment_metadata import CombinedSegmentId
from replication.leader.follower_offsets import WatermarkTimes
from replication.leader.leader_context import LeaderContext
from replication.leader.leader_relay import LeaderRelay
from replication.leader.link_index import stored_batches
from replication.leader.zones import zone_readings
from replication.wire.broker_requests import RequestRefusedError
from replication.wire.frame_inbox import STAGING_BYTES
from replication.wire.framed_connection import RESPONSE_FACTOR, FramedConnection, run_until_one_ends, until_idle
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_channel import MESSAGE_KIND_BYTES
from replication.wire.peer_connection import GATEWAY_ROLES, Address, Listener, check_certificate, connect_framed
from replication.wire.peer_listener import (
    ConnectionShare,
    ConnectionShares,
    CountedListeners,
    News,
    TooManyConnectionsError,
    shake_hands,
)
from replication.wire.peer_protocol import Hello, PeerCapabilities, PeerRefusedError, agree, is_hello
from rlm.write_path.uploads.segment_queue import UploadedSegment
from rlm.write_path.uploads.upload_listener import UploadListener

log = structlog.get_logger(__name__)

_HINT = (
    "the local broker's log says why; its trust store must have the authority of the certificate that agents show it"
)


_LOOK_S = 2.0
_APART = (
    PeerCapabilities.CLIENTS,
    PeerCapabilities.PRESENCE,
    PeerCapabilities.RANGES,
    PeerCapabilities.VISIBLE,
)
_READ_OUR_HELLO = (PeerCapabilities.VISIBLE,)
"""For these the other agent reads in our hello whether they are served, and leaves."""
"""What connections can be for, besides replication."""
_IDLE_PLACE = 1
"""Index of the idle check among the tasks that answer whether this agent is alive."""


async def _answer_presence(context: LeaderContext, peer: FramedConnection, asker: Hello) -> None:
    """Answer another agent, which asks again and again on this connection whether we are alive, and whom we serve."""
    check_certificate(peer, asker)
    agree(context.hello, asker)
    own = replace(context.hello, capabilities=PeerCapabilities.PRESENCE)
    encoded = lru_cache(1)(lambda unserved: replace(own, unserved=unserved).encode())

    def answer(_question: Buffer) -> bool:
        peer.write_frame(encoded(context.unserved()))
        return True

    answer(b"")
    peer.on_lone_frame = answer
    while (question := await peer.read_frame()) is not None:
        answer(question)


class LeaderProxy(UploadListener):
    """The peer listener. It is also an upload listener: stored batches become links and announcements here."""

    def __init__(self, context: LeaderContext) -> None:
        self._context = context
        self._tls: ssl.SSLContext | None = None
        limits = context.limits
        self._shares = ConnectionShares(limits.max_connections, limits.max_connections_of_one)
        self._listeners = CountedListeners(self._serve, lambda _number: self._shares, context.metrics.fault)
        self.relays: dict[LeaderRelay, None] = {}
        """One relay for each accepted connection."""
        self._unreached, self._unreached_since_s = News(), 0.0
        self._watermarks = WatermarkTimes(context.stage_times)
        self._found = context.catch_up.found if context.catch_up is not None else None

    async def start(self, listener: Listener, tls: ssl.SSLContext | None) -> None:
        """Listen for other agents. Raises OSError naming the address."""
        self._tls = tls
        await self._listeners.listen(0, listener)

    @property
    def addresses(self) -> list[Address]:
        return list(self._listeners.addresses.values())

    @property
    def connections(self) -> int:
        """How many connections of other agents are open, also those that have sent nothing yet."""
        return self._listeners.connections

    @property
    def broker_unreachable(self) -> str | None:
        """Why the local broker refused the last connection to it; None if it accepted."""
        return self._unreached.present

    @property
    def broker_unreachable_s(self) -> float:
        """For how many seconds the local broker has been unreachable, if it is."""
        return self._context.clock() - self._unreached_since_s

    async def _serve(self, _number: int, accepted: socket.socket, share: ConnectionShare) -> None:
        limits = self._context.limits
        budget = self._context.request_budget.share_of(share.holder)
        max_request_bytes = limits.max_frame_bytes + MESSAGE_KIND_BYTES
        # With TLS the first frame is a hello. Without, it may be a broker's own Fetch.
        max_first_bytes = max_request_bytes if self._tls is None else STAGING_BYTES
        peer = FramedConnection(max_first_bytes, limits.frame_timeout_s, budget=budget)
        max_response_bytes = RESPONSE_FACTOR * limits.max_frame_bytes
        broker = FramedConnection(max_response_bytes, limits.frame_timeout_s, budget=self._context.budget)
        try:
            async with asyncio.timeout(limits.hello_timeout_s):
                await shake_hands(accepted, peer, self._tls)
                first = await peer.read_frame()
            if first is None:
                self._context.metrics.connection_ended("peer", peer.error)
                return
            peer.accept_frames(max_request_bytes)
            hello = Hello.decode(first) if is_hello(first) else None
            if hello is None and self._tls is not None:
                raise PeerRefusedError("a connection without a hello, where a certificate must be held against one")
            if hello is not None and await self._served_apart(peer, hello, share):
                return
            capabilities = await self._dial_and_answer(broker, peer, hello, share)
            relay = LeaderRelay(
                self._context,
                peer,
                broker,
                capabilities,
                self._watermarks,
                hello.broker_id if hello is not None else None,
                is_proven=self._tls is not None,
            )
            self.relays[relay] = None
            try:
                await relay.run(None if hello is not None else first)
                self._tell_refusal(broker)
            finally:
                del self.relays[relay]
        except TooManyConnectionsError as error:
            self._listeners.refuse_too_many(error)
        except RequestRefusedError as error:
            self._context.metrics.request_refused("peer", error, address=share.address)
        except (PeerRefusedError, MalformedFrameError) as error:
            self._context.metrics.fault("peer_refused")
            log.error("peer_refused", error=str(error))
        except TimeoutError:
            self._context.metrics.fault("peer_silent")
        except OSError:  # the other agent went; that the broker did not answer is told where it is dialled
            self._context.metrics.fault("connection_lost")
        except Exception as error:
            self._context.metrics.fault("relay_defect")
            log.error("relay_defect", defect=defect_site(error))
        finally:
            peer.close()
            broker.close()

    def _note_unreached(self, error: OSError) -> None:
        """Count a failed connection to the broker, and log it only when it is new: peers retry many times a second."""
        self._context.metrics.fault("broker_unreachable")
        if self._unreached.present is None:
            self._unreached_since_s = self._context.clock()
        if self._unreached.is_new(in_words(error)):
            log.warning("broker_unreachable", broker=str(self._context.broker), error=in_words(error))

    async def watch_broker(self) -> None:
        """Check whether the local broker answers while no connection to it shows that. Runs until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self.relays and self._unreached.present is None:
                continue
            broker = FramedConnection(budget=self._context.budget)
            with suppress(OSError), closing(broker):
                await self._dial(broker)

    async def _dial(self, broker: FramedConnection) -> None:
        """Connect to the local broker. Raises OSError, TLS errors included, but no TimeoutError: that is for peers."""
        context = self._context
        try:
            await connect_framed(context.broker, broker, context.broker_tls(), server_name=context.broker_name)
        except TimeoutError as error:
            late = ConnectionError(str(error) or "no answer in time")
            self._note_unreached(late)
            raise late from error
        except OSError as error:
            self._note_unreached(error)
            raise
        self._unreached.is_over()

    async def _dial_and_answer(
        self, broker: FramedConnection, peer: FramedConnection, hello: Hello | None, share: ConnectionShare
    ) -> PeerCapabilities | None:
        """Connect to the local broker and answer a hello. Returns what both agents can. Raises OSError.

        The answer says that we can serve: without it the other agent goes past us. If the broker is down, no way
        leads to it, and the other agent shall wait for it here.
        """
        if hello is None:
            await self._dial(broker)
            return None
        capabilities = self._admit(peer, hello, share)
        try:
            await self._dial(broker)
        except ConnectionRefusedError:
            self._answer(peer, hello, capabilities)
            raise
        self._answer(peer, hello, capabilities)
        return capabilities

    def _tell_refusal(self, broker: FramedConnection) -> None:
        """Log that the broker refused our certificate: in TLS 1.3 it checks that after the handshake, and closes."""
        if self._context.broker_tls() is None or broker.bytes_received or broker.is_writable:
            return
        self._context.metrics.fault("broker_tls")
        error = str(broker.error) if broker.error is not None else "closed without an answer"
        log.error("broker_tls_failed", broker=str(self._context.broker), error=error, hint=_HINT)

    async def _served_apart(self, peer: FramedConnection, hello: Hello, share: ConnectionShare) -> bool:
        """Serve a connection that is not for replication until it ends. Returns whether it was one."""
        purpose = next((one for one in _APART if one in hello.capabilities), None)
        if purpose is None:
            return False
        if purpose is PeerCapabilities.PRESENCE:
            idle = until_idle((peer,), self._context.limits.idle_timeout_s)
            if await run_until_one_ends(_answer_presence(self._context, peer, hello), idle) == {_IDLE_PLACE}:
                self._context.metrics.fault("peer_idle")
            return True
        is_client = purpose is PeerCapabilities.CLIENTS
        if is_client:
            granted = self._greet_gateway(peer, hello)
        else:
            granted = self._admit(peer, hello, share)
            self._answer(peer, hello, granted)
        handler = self._context.handlers.get(purpose)
        if handler is not None and purpose in granted:
            if is_client:  # it uses nothing of what connections of agents share
                self._shares.leave(share)
            await handler.serve(peer, hello, granted)
        elif purpose not in _READ_OUR_HELLO:
            raise PeerRefusedError(f"broker {hello.broker_id}'s agent connects for {purpose.name}, not served here")
        return True

    def _greet_gateway(self, peer: FramedConnection, hello: Hello) -> PeerCapabilities:
        """Answer the hello of an agent that connects for a client of its zone."""
        check_certificate(peer, hello, GATEWAY_ROLES)
        peer.agreed = agree(self._context.hello, hello)
        peer.write_frame(self._context.hello.encode())
        return peer.agreed

    def _admit(self, peer: FramedConnection, hello: Hello, share: ConnectionShare) -> PeerCapabilities:
        """Check a hello. Returns the capabilities that both agents have."""
        check_certificate(peer, hello)
        peer.agreed = capabilities = agree(self._context.hello, hello)
        if hello.broker_id in self._context.followers:
            self._shares.name(share, hello.broker_id)
            self._context.metrics.held.versions.heard(self._context.hello, hello)
        return capabilities

    def _answer(self, peer: FramedConnection, hello: Hello, capabilities: PeerCapabilities) -> None:
        peer.write_frame(self._context.hello.encode())
        log.info("peer_accepted", follower=hello.broker_id, capabilities=capabilities.name)

    async def stop(self) -> None:
        await self._listeners.stop()
        if self._context.catch_up is not None:
            self._context.catch_up.close()

    def segment_deletion_started(self, segment_id: CombinedSegmentId) -> None:
        """Stop linking to this object."""
        self._context.index.drop_object(segment_id)
        if self._found is not None:
            self._found.drop_object(segment_id)

    # UploadListener.

    def links_left_out(self) -> None:
        """Wake waiting responses, because some of the links that they wait for will not come."""
        self._context.uploads.notify()

    def segment_uploaded(self, segment: UploadedSegment) -> None:
        """List the batches, announce the segment to the followers of its partitions, and wake waiting responses."""
        digests = segment.digests or repeat((), len(segment.items))
        for item, entry, of_item in zip(segment.items, segment.entries, digests, strict=True):
            self._context.index.add(
                item.topic_id_partition,
                stored_batches(
                    segment.combined_segment_id,
                    entry.start_file_position,
                    item.records,
                    item.batches,
                    segment.custom_metadata,
                    of_item,
                ),
            )
            self._watermarks.stored(item.topic_id_partition, item.last_offset + 1, item.seen_s)
        if self._found is not None:
            self._found.uploaded(segment.combined_segment_id)
        self._announce(segment)
        self._context.uploads.notify_now()
        self._context.stage_times.observe("announced", self._context.clock() - segment.stored_s)

    def _announce(self, segment: UploadedSegment) -> None:
        """Announce a segment. A slow peer is skipped, because this is a hint, unless it reads for others."""
        limits, segment_id = self._context.limits, segment.combined_segment_id
        told = {relay: relay.core.uploaded(segment) for relay in self.relays if relay.peer.is_writable}
        wanted: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        sharing = [relay for relay in told if limits.shares_reads and told[relay] and relay.core.shares_reads]
        for relay in sharing:
            wanted[relay.core.follower_id] += told[relay]
        zones = self._context.zones
        readings = zone_readings(segment_id, wanted, zones, limits.range_gap_bytes)
        for relay, ranges in told.items():
            if ranges:
                relay.announce(segment, ranges, readings.get(relay.core.follower_id) if relay in sharing else None)

    def partition_truncated(self, partition: TopicIdPartition, offset: int) -> None:
        """Forget what is stored of the log at the offset and above."""
        self._context.index.drop_from(partition, offset)
        if self._found is not None:
            self._found.drop_from(partition, offset)
        for relay in self.relays:
            relay.core.truncated(partition)

    def partition_released(self, partition: TopicIdPartition) -> None:
        """Forget the partition, and wake responses that wait for its links."""
        self._context.index.drop(partition)
        if self._found is not None:
            self._found.drop(partition)
        self._watermarks.drop(partition)
        for relay in self.relays:
            relay.core.forget(partition)
        self._context.uploads.notify()
