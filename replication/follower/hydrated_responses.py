"""Turns what a leader's agent sends on one connection back into Kafka responses, and passes them on in order.

Linked responses are hydrated from object storage, verified and spliced. If that fails or takes longer than
`hydration_timeout_s`, the leader's agent is asked for the original bytes. After a defect of links, on either side,
links from that leader pause for a while (`LinkDefects`). Announcements are acted on while a response still waits, so
that the next range is being read before it is needed.

Responses are passed on in the order in which they arrived. `receive` and `relay` run side by side.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import structlog

from kafka_log.crc32c import Buffer
from plugin.deadline import Deadline
from plugin.format.archive_object_id import ArchiveObjectId
from replication.follower.answers_in_order import AnswersInOrder
from replication.follower.follower_context import FollowerContext
from replication.follower.hydration import HydrationError
from replication.follower.link_reads import fetch_links
from replication.follower.links_wanted import LinksWanted
from replication.follower.response_memory import ResponseMemory
from replication.follower.responses_ahead import ResponsesAhead
from replication.wire.fetch_frame import FETCH_API_KEY
from replication.wire.framed_connection import FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.link import (
    ForgedRangeError,
    LinkedResponse,
    SpliceError,
    decode_linked_response,
    splice,
    verify_digests,
)
from replication.wire.link_defects import LinkDefects
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_protocol import Announcement, MessageKind, encode_inline_request
from replication.wire.shared_reads import ZoneReading

log = structlog.get_logger(__name__)

_RESPONSES_AHEAD = 8
_HASHED_HERE_BYTES = 64 * 1024
"""Hashing so many bytes takes less time than handing them to another thread."""
_LINKED_KINDS = (MessageKind.LINKED, MessageKind.LINKED_OLD)
_ANNOUNCING_KINDS = (
    MessageKind.ANNOUNCE,
    MessageKind.ANNOUNCE_SHARED,
    MessageKind.READ_AHEAD,
    MessageKind.READ_ARCHIVE_AHEAD,
)


class UndigestedLinkError(MalformedFrameError):
    """A link has no SHA-256 although each must have one."""

    def __init__(self) -> None:
        super().__init__(0, "a link without a SHA-256, from an agent without remote.wal.link.digest=sha256")


async def _spliced(response: LinkedResponse, data: Sequence[Buffer]) -> list[Buffer]:
    """Put the response together and check all its checksums and digests. Raises SpliceError."""
    links, spliced = response.links, splice(response, data)
    if sum([link.length for link in links if link.sha256]) < _HASHED_HERE_BYTES:
        verify_digests(links, data)
    else:
        await asyncio.to_thread(verify_digests, links, data)
    return spliced


class ResponseTaker(Protocol):
    """The owner of the connection."""

    def passed(self) -> None:
        """Called for each message that arrived."""

    def frame_came(self, frame: Buffer) -> None:
        """Called in turn for a Kafka frame that goes on unchanged. Raises ConnectionError."""

    def message_came(self, kind: MessageKind, body: Buffer) -> None:
        """Called at once for a message that is neither a response nor an announcement. Raises MalformedFrameError."""


class HydratedResponses:
    """The responses of one connection to a leader's agent."""

    def __init__(
        self,
        context: FollowerContext,
        leader: FramedConnection,
        to: FramedConnection,
        defects: LinkDefects,
        taker: ResponseTaker,
        *,
        is_told_ahead: bool = True,
    ) -> None:
        """Responses go `to` the requester.

        `is_told_ahead`: objects are announced on this connection, so an announced range probes a store that failed;
        otherwise the next response does.
        """
        self._context = context
        self._leader = leader
        self._to = to
        self._defects = defects
        self._taker = taker
        self.channel = PeerChannel(leader)
        self._links = LinksWanted(context, defects, self.channel, is_told_ahead=is_told_ahead)
        self.spliced_at_s: float | None = None
        """When the last response was put together."""
        self._memory = ResponseMemory(context.budget)
        self._asked_last = 0
        """The correlation id of the last Fetch. Only one Fetch is under way, so a linked response answers it."""
        self._responses = ResponsesAhead(_RESPONSES_AHEAD, asyncio.get_running_loop())
        self._in_order = AnswersInOrder()

    @contextmanager
    def told_of_breakers(self) -> Iterator[None]:
        """While the connection lasts."""
        changed = self._context.hydration.tiers.on_breaker_change
        changed.append(self._breaker_changed)
        self._links.tell()
        try:
            yield
        finally:
            changed.remove(self._breaker_changed)
            self._memory.close()

    def will_ask(self, frame: Buffer) -> None:
        """Note the request that is about to be sent to the leader's agent."""
        if int.from_bytes(bytes(frame[:2]), "big") == FETCH_API_KEY:
            self._asked_last = int.from_bytes(bytes(frame[4:8]), "big", signed=True)
        self._links.tell()

    async def receive(self) -> None:
        """Act on announcements at once, and queue all responses in order. Raises MalformedFrameError."""
        while (message := await self.channel.receive()) is not None:
            self._taker.passed()
            kind, body = message
            if kind in _ANNOUNCING_KINDS:
                try:
                    self._announced(kind, body)
                except Exception as error:
                    self._defects.met("announcement", error)
            elif kind is MessageKind.KAFKA or kind in _LINKED_KINDS:
                self._memory.came(len(body))
                await self._responses.put(message)
            else:
                self._taker.message_came(kind, body)
        await self._responses.put(None)

    def _announced(self, kind: MessageKind, body: memoryview) -> None:
        zone, told = ZoneReading.decode(body) if kind is MessageKind.ANNOUNCE_SHARED else (None, body)
        decode = Announcement.decode_archive if kind is MessageKind.READ_ARCHIVE_AHEAD else Announcement.decode
        announcement = decode(told)
        if kind in (MessageKind.ANNOUNCE, MessageKind.ANNOUNCE_SHARED):
            self._links.newest = announcement.custom_metadata
            self._context.hydration.announce(announcement.object_id, announcement.ranges, self._links.newest, zone)
        else:
            self._context.catch_up.read_ahead(announcement.object_id, announcement.ranges, announcement.custom_metadata)

    async def relay(self) -> None:
        """Pass on responses until the leader's agent has ended the connection."""
        while (message := await self._responses.get()) is not None:
            self._in_order.came(*message)
            while (message := self._in_order.next()) is not None:
                await self._relay(*message)

    async def _relay(self, kind: MessageKind, body: memoryview) -> None:
        self._memory.passes(len(body))
        if kind is MessageKind.KAFKA:
            self._taker.frame_came(body)
        else:
            await self._splice(body, is_old=kind is MessageKind.LINKED_OLD)
        await self._to.drain()
        self._memory.passed()

    async def _splice(self, body: memoryview, is_old: bool) -> None:
        started_s = self._context.clock()
        try:
            response = decode_linked_response(body, self._context.limits.max_response_bytes)
            links = response.links
            if self._context.limits.wants_digests and not all(link.sha256 for link in links):
                raise UndigestedLinkError
            if links:
                self._links.given(links[-1].custom_metadata)
            await self._memory.make_room(sum([link.length for link in links]), self._context.limits.hydration_timeout_s)
            spliced = await self._hydrated(response, is_old)
        except HydrationError as error:
            await self._ask_inline(error.reason, str(error))
            return
        except (UndigestedLinkError, ForgedRangeError) as error:
            await self._refuse_links("forged" if isinstance(error, ForgedRangeError) else "undigested", error)
            return
        except SpliceError as error:
            await self._refuse_bytes(error)
            return
        except Exception as error:  # another version's message, or a defect of ours: the next fetch would meet it again
            await self._refuse_links("malformed" if isinstance(error, MalformedFrameError) else "splicing", error)
            return
        self._defects.spliced()
        self._to.write_frame(*spliced)
        self.spliced_at_s = self._context.clock()
        self._context.stage_times.observe("spliced", self.spliced_at_s - started_s, (link.object_id for link in links))

    async def _refuse_bytes(self, error: SpliceError) -> None:
        """Handle bytes that still differ from what the leader linked after a second read."""
        self._context.hydration.proved_wrong(error.link)
        log.error("splice_refused", segment=str(error.link.object_id), reason=error.reason)
        self._defects.corrupt(error)
        self._links.tell()
        await self._ask_inline("corrupt", str(error))

    async def _refuse_links(self, where: str, error: Exception) -> None:
        """Ask for this response inline, and pause links for a while."""
        if isinstance(error, ForgedRangeError):
            self._context.hydration.proved_wrong(error.link)
        self._defects.met(where, error)
        self._links.tell()
        await self._ask_inline("defect", type(error).__name__)  # its text may hold a record's bytes

    async def _hydrated(self, response: LinkedResponse, is_old: bool) -> list[Buffer]:
        """Return the response spliced. A range whose bytes are wrong is read once more from the store.

        `is_old`: the local broker is far behind, so the reads keep to their quota. Links to archive objects always
        count as old, however the leader's agent marked the response.
        """
        links = response.links
        is_old = is_old or bool([link for link in links if isinstance(link.object_id, ArchiveObjectId)])
        fetch_all = self._context.catch_up.fetch_all if is_old else partial(fetch_links, self._context.hydration)
        started_s = self._context.clock()
        try:
            with Deadline(self._responses.loop, self._context.limits.hydration_timeout_s):
                data = await fetch_all(links)
                self._context.stage_times.observe(
                    "hydrated", self._context.clock() - started_s, (link.object_id for link in links)
                )
                try:
                    return await _spliced(response, data)
                except SpliceError as error:
                    self._context.metrics.fault("splice_refetch")
                    self._context.hydration.proved_wrong(error.link)
                    return await _spliced(response, await fetch_all(links))
        except TimeoutError as error:
            if not is_old:  # slow large reads do not mean that the store fails
                self._context.hydration.timed_out(self._context.hydration.not_there(links))
            raise HydrationError("timeout", "object storage did not answer in time") from error

    async def _ask_inline(self, reason: str, detail: str) -> None:
        """Ask the leader's agent for the original, which comes as a Kafka frame."""
        self._in_order.asked_for(self._asked_last)
        self._context.metrics.fault(f"inline_requested_{reason}")
        log.warning("inline_requested", reason=reason, detail=detail, correlation_id=self._asked_last)
        self.channel.send(MessageKind.INLINE_REQUEST, encode_inline_request(self._asked_last))
        await self._leader.drain()

    def _breaker_changed(self, _is_open: bool) -> None:
        self._links.tell()
