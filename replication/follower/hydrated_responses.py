"""Turns what a leader's agent sends on one connection back into Kafka responses, and passes them on in order.

Linked responses are hydrated from object storage, verified and spliced. If that fails or takes longer than
`hydration_timeout_s`, the leader's agent is asked for the original bytes. After a defect of links, on either side,
links from that leader pause for a while (`LinkDefects`). Announcements are acted on while a response still waits, so
that the next range is being read before it is needed.

Responses are passed on in the order in which they arrived. `receive` and `relay` run side by side.
"""

import asyncio
import contextlib
import math
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Final, Protocol

import structlog

from kafka_log.crc32c import Buffer
from plugin.format.archive_object_id import ArchiveObjectId, StoredObjectId
from replication.follower.follower_context import FollowerContext
from replication.follower.hydration import HydrationCache, HydrationError
from replication.wire.framed_connection import reserve
from replication.wire.idle_fetch import response_frame
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.link import (
    ForgedRangeError,
    LinkedResponse,
    SegmentLink,
    SpliceError,
    decode_linked_response,
    splice,
    verify_digests,
)
from replication.wire.link_defects import LinkDefects
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_protocol import (
    Announcement,
    MessageKind,
    ZoneReading,
    coalesce_ranges,
    encode_inline_request,
    next_number,
)

log = structlog.get_logger(__name__)

Message = tuple[MessageKind, memoryview]


class ResponsesAhead:
    """The responses of one connection in the broker's order, between the task that receives them and the task that
    passes them on.

    A linked response that cannot be put together is requested again as the broker sent it. Responses that the leader's
    agent had sent by then arrive before that original and must not overtake it: clients match responses to their
    requests by order. So `get` returns none of them until the original is there.

    asyncio.Queue, which serves any number of tasks, takes four times the steps for each response.
    """

    def __init__(self, most: int, loop: asyncio.AbstractEventLoop) -> None:
        self._most = most
        self._loop = loop
        """Kept, because Python 3.11 makes a system call each time it looks for the running loop."""
        self._came: deque[Message | None] = deque()
        self._awaits_original = False
        self._taker: asyncio.Future[None] | None = None
        self._giver: asyncio.Future[None] | None = None

    def await_original(self) -> None:
        """Note that the response returned last was requested again as original: `get` waits for that."""
        self._awaits_original = True
        _wake(self._giver)

    async def put(self, response: Message | None) -> None:
        """Add a response, None at the end; wait while the queue is full. Raises MalformedFrameError."""
        while len(self._came) >= self._most and not self._awaits_original:
            self._giver = self._loop.create_future()
            try:
                await self._giver
            finally:
                self._giver = None
        if response is None or response[0] is not MessageKind.ORIGINAL:
            self._came.append(response)
        elif self._awaits_original:
            self._awaits_original = False
            self._came.appendleft(response)
        else:
            raise MalformedFrameError(0, "an original that was not asked for")
        _wake(self._taker)

    async def get(self) -> Message | None:
        """Return the next response, None at the end; wait for one if there is none."""
        while not self._came or (self._awaits_original and self._came[-1] is not None):
            self._taker = self._loop.create_future()
            try:
                await self._taker
            finally:
                self._taker = None
        if self._awaits_original:
            return None
        response = self._came.popleft()
        _wake(self._giver)
        return response


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


class ResponseMemory:
    """Counts the memory of one connection's responses, from their arrival until the requester has them."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._held_bytes = 0
        """Bytes for queued messages, and for the response that is put together now."""
        self._passing_bytes = 0
        """Bytes of these that are on their way to the requester."""

    def came(self, size: int) -> None:
        """Count a message that has arrived, with its size in bytes."""
        self._held_bytes += size
        self._budget.take(size)

    def passes(self, size: int) -> None:
        """Mark the oldest counted message as being passed on; `size` is its size when put together."""
        self._passing_bytes = size

    async def make_room(self, size: int, timeout_s: float) -> None:
        """Wait until there is memory to put this message together. Raises HydrationError on a timeout."""
        if not self._budget.try_take(size):
            try:
                async with asyncio.timeout(timeout_s):
                    await reserve(self._budget, size)
            except TimeoutError as error:
                raise HydrationError("memory", "the frames of other connections take all there is for them") from error
        self._held_bytes += size
        self._passing_bytes += size

    def passed(self) -> None:
        """Release a message that was passed on to the requester."""
        self._give_back(self._passing_bytes)

    def close(self) -> None:
        """Release all memory still counted, because the connection ended."""
        self._give_back(self._held_bytes)

    def _give_back(self, size: int) -> None:
        if size:
            self._held_bytes -= size
            self._budget.give_back(size)


class LinksWanted:
    """Tells a leader's agent whether this agent wants links, when that changes."""

    def __init__(
        self, context: FollowerContext, defects: LinkDefects, channel: PeerChannel, *, is_announced: bool
    ) -> None:
        """`is_announced`: objects are announced on this connection, so an announced range probes a store that failed.

        Otherwise the next response probes it.
        """
        self._context = context
        self._defects = defects
        self._channel = channel
        self._is_announced = is_announced
        self._are_paused = False
        self.newest: bytes | None = None
        """The custom metadata of the leader's newest object; None before the first one."""

    def note_link(self, custom_metadata: bytes) -> None:
        """Record a link to an object with this custom metadata."""
        if not self._is_announced:
            self.newest = custom_metadata

    def tell(self) -> None:
        """Tell the leader's agent whether links are wanted, if that has changed."""
        tiers, now_s = self._context.hydration.tiers, self._context.clock()
        given_up = tiers.is_given_up(self.newest) if self._is_announced else tiers.is_resting(self.newest, now_s)
        paused = given_up or self._defects.links_held_off or self._context.is_paused()
        if paused is not self._are_paused:
            self._are_paused = paused
            with contextlib.suppress(ConnectionError):
                self._channel.send(MessageKind.LINKS_PAUSED if paused else MessageKind.LINKS_RESUMED)


READ_ALONG_BYTES: Final = 64 * 1024
"""Reading so many bytes between two links takes less time than another request."""

Range = tuple[int, int]


async def fetch_links(cache: HydrationCache, links: Sequence[SegmentLink]) -> list[memoryview]:
    """Return the bytes of these links, in their order. Raises HydrationError.

    Links may name any positions of an object. The gap between two of them is read only if it is small: otherwise two
    links of some bytes could cause a read of a whole object.
    """
    if len(links) == 1:
        only = links[0]
        return [await cache.fetch(only.object_id, only.start_position, only.end_position, only.custom_metadata)]
    wanted: defaultdict[StoredObjectId, list[Range]] = defaultdict(list)
    for link in links:
        wanted[link.object_id].append((link.start_position, link.end_position))
    reads = [(object_id, each) for object_id, ranges in wanted.items() for each in _reads(cache, object_id, ranges)]
    custom_metadata = {link.object_id: link.custom_metadata for link in links}
    asked = [cache.fetch(object_id, *each, custom_metadata[object_id]) for object_id, each in reads]
    fetched = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
    found: defaultdict[StoredObjectId, list[tuple[int, memoryview]]] = defaultdict(list)
    for (object_id, (start, _)), data in zip(reads, fetched, strict=True):
        found[object_id].append((start, data))
    return [_part_of(found[link.object_id], link) for link in links]


def _reads(cache: HydrationCache, object_id: StoredObjectId, wanted: list[Range]) -> Sequence[Range]:
    """Return the ranges to request, ascending. Gaps are left out if everything wanted is cached or being read."""
    exact = coalesce_ranges(wanted, max_gap_bytes=0, max_ranges=math.inf)
    if not any(cache.ranges.find_missing(object_id, *each) for each in exact):
        return exact
    return coalesce_ranges(wanted, READ_ALONG_BYTES, max_ranges=math.inf)


def _part_of(found: list[tuple[int, memoryview]], link: SegmentLink) -> memoryview:
    """Return the link's bytes out of an object's ranges, which ascend and each hold whole links."""
    start, data = found[bisect_right(found, link.start_position, key=itemgetter(0)) - 1]
    return data[link.start_position - start : link.end_position - start]


_RESPONSES_AHEAD = 8
_HASHED_HERE_BYTES = 64 * 1024
"""Hashing so many bytes takes less time than handing them to another thread."""
_LINKED_KINDS = (MessageKind.LINKED, MessageKind.LINKED_OLD)
_RESPONSE_KINDS = (MessageKind.KAFKA, MessageKind.ORIGINAL, *_LINKED_KINDS)
_ANNOUNCING_KINDS = (
    MessageKind.ANNOUNCE,
    MessageKind.ANNOUNCE_SHARED,
    MessageKind.READ_AHEAD,
    MessageKind.READ_ARCHIVE_AHEAD,
)


class UndigestedLinkError(MalformedFrameError):
    """A link has no SHA-256 although digests are required."""

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


class FrameSink(Protocol):
    """Where responses are written: a connection, or something that acts as one."""

    def write_frame(self, *buffers: Buffer) -> None:
        """Send one frame made of these buffers. Raises ConnectionError."""

    async def drain(self) -> None:
        """Wait until the receiver keeps up. Raises ConnectionError."""


class ResponseTaker(Protocol):
    """The owner of the connection, which is called for messages that are no responses."""

    def passed(self) -> None:
        """Called for each message that arrived."""

    def message_came(self, kind: MessageKind, body: Buffer) -> None:
        """Called at once for a message that is neither a response nor an announcement. Raises MalformedFrameError."""


class HydratedResponses:
    """Receives the responses of one connection to a leader's agent, and passes them on as Kafka's frames."""

    def __init__(
        self,
        context: FollowerContext,
        channel: PeerChannel,
        to: FrameSink,
        leader_id: int,
        taker: ResponseTaker,
        *,
        is_announced: bool = True,
    ) -> None:
        """Responses of this leader's agent come by `channel` and go `to` the requester.

        `is_announced`: objects are announced on this connection, so an announced range probes a store that failed;
        otherwise the next response probes it.
        """
        self._context = context
        self._to = to
        self._defects = defects = context.defects(leader_id)
        self._taker = taker
        self.channel = channel
        self._links = LinksWanted(context, defects, channel, is_announced=is_announced)
        self.spliced_at_s: float | None = None
        """When the last response was put together."""
        self._memory = ResponseMemory(context.budget)
        self._linked = 0
        """The number of the last linked response."""
        self._responses = ResponsesAhead(_RESPONSES_AHEAD, asyncio.get_running_loop())

    @contextmanager
    def watch_breakers(self) -> Iterator[None]:
        """Tell the leader's agent of changes of circuit breakers, while the context lasts."""
        changed = self._context.hydration.tiers.on_breaker_change
        changed.append(self._breaker_changed)
        self._links.tell()
        try:
            yield
        finally:
            changed.remove(self._breaker_changed)
            self._memory.close()

    def tell_links(self) -> None:
        """Tell the leader's agent whether links are wanted, if that changed, before a request goes to it."""
        self._links.tell()

    async def receive(self) -> None:
        """Act on announcements at once, and queue all responses in order. Raises MalformedFrameError."""
        while (message := await self.channel.receive()) is not None:
            self._taker.passed()
            kind, body = message
            if kind is MessageKind.IDLE_RESPONSE:
                message = kind, body = MessageKind.KAFKA, memoryview(response_frame(body))
            if kind in _ANNOUNCING_KINDS:
                try:
                    self._announced(kind, body)
                except Exception as error:
                    self._defects.record("announcement", error)
            elif kind in _RESPONSE_KINDS:
                self._memory.came(len(body))
                await self._responses.put(message)
            else:
                self._taker.message_came(kind, body)
        await self._responses.put(None)

    def _announced(self, kind: MessageKind, body: memoryview) -> None:
        if self._context.is_paused():
            return
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
            await self._relay(*message)

    async def _relay(self, kind: MessageKind, body: memoryview) -> None:
        self._memory.passes(len(body))
        if kind in _LINKED_KINDS:
            await self._splice(body, is_old=kind is MessageKind.LINKED_OLD)
        else:
            self._to.write_frame(body)
        await self._to.drain()
        self._memory.passed()

    async def _splice(self, body: memoryview, is_old: bool) -> None:
        started_s = self._context.clock()
        self._linked = next_number(self._linked)
        try:
            response = decode_linked_response(body, self._context.limits.max_response_bytes)
            links = response.links
            if self._context.limits.wants_digests and not all(link.sha256 for link in links):
                raise UndigestedLinkError
            if links:
                self._links.note_link(links[-1].custom_metadata)
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
        self._context.stage_times.observe("spliced", self.spliced_at_s - started_s)

    async def _refuse_bytes(self, error: SpliceError) -> None:
        """Handle bytes that still differ from what the leader linked after a second read."""
        self._context.hydration.discard_wrong(error.link)
        log.error("splice_refused", segment=str(error.link.object_id), reason=error.reason)
        self._defects.corrupt(error)
        self._links.tell()
        await self._ask_inline("corrupt", str(error))

    async def _refuse_links(self, where: str, error: Exception) -> None:
        """Ask for this response inline, and pause links for a while."""
        if isinstance(error, ForgedRangeError):
            self._context.hydration.discard_wrong(error.link)
        self._defects.record(where, error)
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
            async with asyncio.timeout(self._context.limits.hydration_timeout_s):
                data = await fetch_all(links)
                self._context.stage_times.observe("hydrated", self._context.clock() - started_s)
                try:
                    return await _spliced(response, data)
                except SpliceError as error:
                    self._context.metrics.fault("splice_refetch")
                    self._context.hydration.discard_wrong(error.link)
                    return await _spliced(response, await fetch_all(links))
        except TimeoutError as error:
            if not is_old:  # slow large reads do not mean that the store fails
                self._context.hydration.timed_out(self._context.hydration.not_there(links))
            raise HydrationError("timeout", "object storage did not answer in time") from error

    async def _ask_inline(self, reason: str, detail: str) -> None:
        """Ask the leader's agent for the original."""
        self._responses.await_original()
        self._context.metrics.fault(f"inline_requested_{reason}")
        log.warning("inline_requested", reason=reason, detail=detail)
        self.channel.send(MessageKind.INLINE_REQUEST, encode_inline_request(self._linked))
        await self.channel.drain()

    def _breaker_changed(self, _is_open: bool) -> None:
        self._links.tell()
