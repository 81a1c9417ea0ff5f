"""The RouterChannel of one gateway: many requests' records become one object, which goes when all of them are done.

Grouping. What is offered waits in a queue; `Cadence` says when an upload starts, as on the write path: at most
`upload_bytes`, one interval after the last start or sooner, several side by side. What an interval has brought and does
not pay is refused, and goes inline. A request's records stand in one object, one after the other.

The life of an object. Each gateway is the only writer of its channel and sees each answer, so it knows without asking
anybody when an object has done its work:

    state      stored       failed       last holder gone     deleted     not deleted
    UPLOADING  STORED or    GARBAGE      stays                -           -
               GARBAGE
    STORED     -            -            GARBAGE              -           -
    GARBAGE    -            -            -                    forgotten   GARBAGE, later

An object has holders: the requests whose records it holds, until they are settled (answered, dropped, gone inline).
One that any of them left to a log, whose agent names it instead of storing the bytes anew, is forgotten in the place of
GARBAGE: that agent deletes it. So an object holds records for one leader's agent alone where that adopts. Nothing is
deleted before its upload ended, as a deletion that overtakes a PUT leaves the object; one whose upload failed goes all
the same, as nobody knows whether it took effect. What takes effect even later, and what a gateway leaves that dies, is
the sweep's.

No id is used twice: the incarnation grows from start to start, and the sequence counts on whatever becomes of uploads.

The sweep (`RouterSweep`) finds objects that nobody will delete any more. Objects that are older than `keep_s` and not
in the sweeper's own channel are deleted, whoever wrote them. Any gateway sweeps for all. Ages use the store's clock
only: the newest object that was ever listed gives a lower bound of the time there, to which the time that has passed
here is added. So a host whose clock is wrong deletes nothing that others still need. A gateway that was frozen for that
long and continues loses nothing: if a read finds no object, the original is requested inline, as after any failed read.

What a log wants stays (`router_uploads.WantedObjects`), however old: the agent that cares for the log's segments
deletes it with the last one.
"""

import math
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from gateway.produce.route_core import StoredRecords
from gateway.produce.route_decider import RouteDecider
from kafka_log.crc32c import Buffer
from plugin.blob_storage import StoredBlob
from plugin.router_object_id import RouterObjectId, epoch_of
from rlm.write_path.commit.cadence import Cadence, CommitLimits, Load

DELETE_AGAIN_S: Final = 1.0
DELETE_AGAIN_MAX_S: Final = 60.0


class ChannelObject(NamedTuple):
    """An object to upload: its chunks, one after the other."""

    object_id: RouterObjectId
    chunks: list[Buffer]
    size_bytes: int


class DueDeletion(NamedTuple):
    """An object to delete now; `deleted` or `not_deleted` must follow."""

    object_id: RouterObjectId
    custom_metadata: bytes


class Round(NamedTuple):
    """What one round did with the queue: uploads to begin, and requests that go inline."""

    uploads: list[ChannelObject]
    """Uploads to begin; `stored` or `failed` must follow for each."""
    refused: list[Hashable]
    """Holders whose requests go inline; the channel does not hold them any more."""


class _State(Enum):
    UPLOADING = "uploading"
    STORED = "stored"
    GARBAGE = "garbage"


@dataclass(slots=True)
class _Queued:
    records: Sequence[Buffer]
    size_bytes: int
    net_bytes: int
    owner: int | None


@dataclass(slots=True)
class _Object:
    started_s: float
    positions: dict[Hashable, int]
    """By holder, where its records begin."""
    holders: set[Hashable]
    state: _State = _State.UPLOADING
    custom_metadata: bytes = b""
    is_slow: bool = False
    is_left: bool = False
    """Whether a log may want it."""
    delete_at_s: float = field(default=math.inf)
    """inf: not due, or under way."""
    back_off_s: float = 0.0


class RouterChannel:
    """The queue of records that producers sent to one gateway, and the objects made of them.

    Times are monotonic seconds, except `wall_ms`, milliseconds since 1970. A holder stands for one request; the caller
    chooses it and never uses it twice.
    """

    def __init__(
        self, gateway_id: int, incarnation: int, limits: CommitLimits, decider: RouteDecider, slow_s: float
    ) -> None:
        """Uploads that requests gave up after `slow_s` count as failed for the breaker."""
        self._writer = gateway_id, incarnation
        self._limits = limits
        self._decider = decider
        self._slow_s = slow_s
        self._commit = Cadence(limits)
        self._queue: dict[Hashable, _Queued] = {}
        self._queued_bytes = 0
        self._since_s = -math.inf
        """When the oldest of the queue came."""
        self._objects: dict[RouterObjectId, _Object] = {}
        self._held: dict[Hashable, RouterObjectId] = {}
        self._next_sequence = 0

    # Grouping.

    def offer(
        self, holder: Hashable, records: Sequence[Buffer], owner: int | None = None, now_s: float = -math.inf
    ) -> None:
        """Queue records, which must not change meanwhile, for an object with others of the same owner.

        The owner is the broker whose agent may adopt them; None if no agent does.
        """
        size_bytes = sum(map(len, records))
        if not self._queue:
            self._since_s = now_s
        self._queue[holder] = _Queued(records, size_bytes, self._decider.net_bytes(size_bytes), owner)
        self._queued_bytes += size_bytes

    def start_s(self, now_s: float) -> float:
        """Return when to call `round`; inf: not before something happens."""
        if not self._queue:
            return math.inf
        rate, urgency = self._decider.bytes_per_s(now_s), self._decider.urgency
        load = Load((), self._queued_bytes, math.inf, urgency, self._since_s, rate)
        return self._commit.start_s(load, now_s)

    def round(self, now_s: float, wall_ms: int) -> Round:
        """Return the uploads that begin now with what is queued, as far as it pays."""
        uploads: list[ChannelObject] = []
        while self._queue and self.start_s(now_s) <= now_s:
            if not self._decider.judge(sum(one.net_bytes for one in self._queue.values()), now_s):
                self._commit.left_out(now_s)
                refused = list(self._queue)
                self._queue.clear()
                self._queued_bytes = 0
                return Round(uploads, refused)
            uploads.append(self._begin(now_s, wall_ms))
        return Round(uploads, [])

    def _begin(self, now_s: float, wall_ms: int) -> ChannelObject:
        object_id = RouterObjectId(*self._writer, epoch_of(wall_ms), self._next_sequence)
        self._next_sequence += 1
        chunks: list[Buffer] = []
        positions: dict[Hashable, int] = {}
        size_bytes = 0
        owner = next(iter(self._queue.values())).owner
        for holder, queued in [(one, queued) for one, queued in self._queue.items() if queued.owner == owner]:
            if positions and size_bytes + queued.size_bytes > self._limits.upload_bytes:
                break
            positions[holder] = size_bytes
            chunks += queued.records
            size_bytes += queued.size_bytes
            self._held[holder] = object_id
            del self._queue[holder]
        self._queued_bytes -= size_bytes
        self._objects[object_id] = _Object(now_s, positions, set(positions))
        self._commit.started(now_s, size_bytes)
        return ChannelObject(object_id, chunks, size_bytes)

    # The life of objects.

    def stored(
        self, object_id: RouterObjectId, custom_metadata: bytes, now_s: float
    ) -> list[tuple[Hashable, StoredRecords]]:
        """Record a successful upload. Returns the waiting holders, each with the place of its records."""
        one = self._objects[object_id]
        self._commit.stored(one.started_s)
        if not one.is_slow:
            self._decider.uploaded()
        one.state, one.custom_metadata = _State.STORED, custom_metadata
        self._let_go_if_done(object_id, now_s)
        return [
            (holder, StoredRecords(object_id, position, custom_metadata))
            for holder, position in one.positions.items()
            if holder in one.holders
        ]

    def failed(self, object_id: RouterObjectId, now_s: float) -> list[Hashable]:
        """Record a failed upload, whose outcome may be unknown. Returns the holders that waited; they hold it no
        longer."""
        one = self._objects[object_id]
        self._commit.failed(one.started_s, now_s)
        if not one.is_slow:
            self._decider.failed(now_s)
        waited = [holder for holder in one.positions if holder in one.holders]
        for holder in waited:
            del self._held[holder]
        one.holders.clear()
        one.state, one.delete_at_s = _State.GARBAGE, now_s
        return waited

    def settled(self, holder: Hashable, now_s: float) -> None:
        """Record that the request no longer needs its stored or queued records. Idempotent."""
        queued = self._queue.pop(holder, None)
        if queued is not None:
            self._queued_bytes -= queued.size_bytes
        object_id = self._held.pop(holder, None)
        if object_id is None:
            return
        one = self._objects[object_id]
        one.holders.discard(holder)
        if one.state is _State.UPLOADING and not one.is_slow and now_s - one.started_s >= self._slow_s:
            one.is_slow = True
            self._decider.failed(now_s)
        self._let_go_if_done(object_id, now_s)

    def left(self, holder: Hashable, now_s: float) -> None:
        """Record that a log may refer to the request's stored records, so that the channel must not delete their
        object."""
        object_id = self._held.get(holder)
        if object_id is not None:
            self._objects[object_id].is_left = True
            self.settled(holder, now_s)

    def _let_go_if_done(self, object_id: RouterObjectId, now_s: float) -> None:
        one = self._objects[object_id]
        if one.state is not _State.STORED or one.holders:
            return
        if one.is_left:
            del self._objects[object_id]
        else:
            one.state, one.delete_at_s = _State.GARBAGE, now_s

    def is_live(self, object_id: RouterObjectId) -> bool:
        """Whether the channel knows this object and will delete it itself."""
        return object_id in self._objects

    @property
    def objects(self) -> int:
        """How many objects are being uploaded, stored, or about to be deleted."""
        return len(self._objects)

    # Deletion.

    @property
    def next_deletion_s(self) -> float:
        """When the next deletion is due; inf: not before something happens."""
        return min((one.delete_at_s for one in self._objects.values()), default=math.inf)

    def due_deletions(self, now_s: float) -> list[DueDeletion]:
        """Return the deletions that are due now."""
        due: list[DueDeletion] = []
        for object_id, one in self._objects.items():
            if one.delete_at_s <= now_s:
                one.delete_at_s = math.inf
                due.append(DueDeletion(object_id, one.custom_metadata))
        return due

    def deleted(self, object_id: RouterObjectId) -> None:
        """Record a successful deletion."""
        del self._objects[object_id]

    def not_deleted(self, object_id: RouterObjectId, now_s: float) -> None:
        """Record a failed deletion, whose outcome may be unknown."""
        one = self._objects[object_id]
        one.back_off_s = min(2 * one.back_off_s or DELETE_AGAIN_S, DELETE_AGAIN_MAX_S)
        one.delete_at_s = now_s + one.back_off_s


KEEP_S: Final = 3600.0
"""Longer than clients wait for an answer (`delivery.timeout.ms` is two minutes), and longer than a log's agent may
store what names it (`adoptable_records.NAMED_WITHIN_MS`), with differences of clocks included."""


class RouterSweep:
    """Finds the objects of dead gateways, for one gateway that lists them from time to time."""

    def __init__(self, is_live: Callable[[RouterObjectId], bool], keep_s: float = KEEP_S) -> None:
        """`is_live` returns whether the gateway's own channel will delete the object."""
        self._is_live = is_live
        self._keep_s = keep_s
        self._store_ms: float = -math.inf
        """A lower bound of the store's time, at `_at_s`."""
        self._at_s = 0.0

    def dead(self, listed: Collection[StoredBlob], now_s: float) -> list[StoredBlob]:
        """Return the objects of a listing to delete now; `now_s` is monotonic."""
        passed_ms = (now_s - self._at_s) * 1000
        written = [one.last_modified_ms for one in listed if one.last_modified_ms is not None]
        self._store_ms, self._at_s = max([self._store_ms + passed_ms, *written]), now_s
        return [one for one in listed if self._is_dead(one)]

    def _is_dead(self, one: StoredBlob) -> bool:
        object_id = RouterObjectId.parse(one.name)
        if object_id is None or one.last_modified_ms is None:
            return False
        return self._store_ms >= one.last_modified_ms + self._keep_s * 1000 and not self._is_live(object_id)
