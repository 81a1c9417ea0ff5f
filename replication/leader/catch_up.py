"""Links for followers that are far behind: batches that the link index no longer holds, or never did.

When a follower asks for what was uploaded long ago, by an earlier incarnation or by an earlier leader, its response
waits while the next entries of the metadata store are read and proved in a thread (`rlm.archive.stored_runs`); then
their batches stand here, beside the link index, and `LinkPlanner` links them as any. Reading goes on ahead of the
follower, and its agent is told which ranges will be asked for, so that it reads them side by side.

Holds true: what is found here was proved against the leader's own log, its object was finished when it was proved, and
is looked at again each time another object is linked, at the latest after a second; nothing is linked whose deletion
was started. (An object stays for a grace time after that, far longer than a second.) Bounded: batches by
`max_batches`, the oldest forgotten first; what is read ahead by bytes for each connection.

A follower is far behind as well when its batches need not be found again: the link index still has them, in objects
that are not among the newest, or they were found for another follower. One link to such an object, wherever it stands
in a response, is enough; then the rest of that partition is read ahead in the same way.

Used from the event loop alone. In a steady state one look at each link of a response is all that is done here.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from kafka_log.errors import LogDirectoryError, MalformedFileError
from kafka_log.record_batch import HEADER_PREFIX_BYTES
from kafka_log.topic_partition import TopicIdPartition
from plugin.archive_object_id import ArchiveObjectId, StoredObjectId
from plugin.segment_metadata import CombinedSegmentId
from replication.leader.link_index import LinkIndex, StoredBatch
from replication.leader.link_planner import SendLinked
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_protocol import PeerCapabilities
from rlm.write_path.led_views import FoundRuns, ProvedRun, StoredLog
from rlm.write_path.machine import thread_pool

log = structlog.get_logger(__name__)

_LIVING_FOR_S = 1.0
_NEWEST_OBJECTS = 40
"""Links to one of so many are no sign of a follower that is far behind; a second at the usual interval."""
_THREADS = 1
"""The log is read from the page cache, where the broker's own read has just put it, or from one disk."""

Announce = Callable[[StoredObjectId, list[tuple[int, int]]], None]
"""Tell the follower's agent that it will be given links to these ranges."""


class StoredLogs(Protocol):
    """The led logs beside what metadata tells of their objects."""

    def stored_log(self, partition: TopicIdPartition) -> StoredLog | None:
        """None when the partition is not led here, or not known yet."""

    def runs(self, log: StoredLog, offset: int, max_bytes: int, archive: bool) -> FoundRuns:
        """See `rlm.archive.stored_runs`; `archive` is whether archive objects will do. Called in a thread."""

    def is_living(self, object_id: StoredObjectId) -> bool:
        """Whether the object is finished and its deletion was not started, as far as metadata tells."""


@dataclass(frozen=True, slots=True)
class CatchUpLimits:
    """In bytes and batches."""

    ahead_bytes: int
    """For each follower's connection: what may be read ahead of it, and announced to it, in all partitions."""
    read_bytes: int = 2 * 1024 * 1024
    """What is read and proved at a time. A response waits for one such read."""
    max_batches: int = 100_000


class CatchUp:
    """What all connections of a leader's agent share: the batches that were found again."""

    def __init__(
        self,
        index: LinkIndex,
        logs: StoredLogs,
        limits: CatchUpLimits,
        metrics: ReplicationMetrics,
        clock: Callable[[], float] = time.monotonic,
        pool: Callable[[int, str], Executor] = thread_pool,
    ) -> None:
        """`index` is the agent's link index; `pool` makes so many threads of that name."""
        self.index = index
        self.limits = limits
        self.metrics = metrics
        self._logs = logs
        self._clock = clock
        self._found = LinkIndex(limits.max_batches)
        self._newest: CombinedSegmentId | None = None
        self._looked_at: tuple[StoredObjectId, float] | None = None
        self._pool = pool(_THREADS, "catch-up")

    def uploaded(self, segment: CombinedSegmentId) -> None:
        """This agent has stored an object."""
        self._newest = segment

    def is_new(self, object_id: StoredObjectId) -> bool:
        """Whether it is among the newest objects of this agent; archive objects never are."""
        newest = self._newest
        if newest is None or isinstance(object_id, ArchiveObjectId) or object_id[:2] != newest[:2]:
            return False
        return newest.sequence - object_id.sequence < _NEWEST_OBJECTS

    def behind(self, partition: TopicIdPartition, offset: int) -> StoredLog | None:
        """The log, if what it has at `offset` was uploaded, and not just now."""
        known = self._logs.stored_log(partition)
        if known is None or offset >= known.uploaded_offset:
            return None
        listed = self.index.find(partition, offset)
        return None if listed is not None and self.is_new(listed.object_id) else known

    def find(self, partition: TopicIdPartition, base_offset: int) -> StoredBatch | None:
        """The batch that begins at this offset, in an object that is not to be deleted; compare its header prefix."""
        stored = self._found.find(partition, base_offset)
        if stored is None:
            return None
        object_id, now_s = stored.object_id, self._clock()
        if self._looked_at is None or self._looked_at[0] != object_id or now_s - self._looked_at[1] >= _LIVING_FOR_S:
            if not self._logs.is_living(object_id):
                self.drop_object(object_id)
                return None
            self._looked_at = (object_id, now_s)
        return stored

    async def read(self, wanted: StoredLog, offset: int, archive: bool) -> FoundRuns:
        """The runs from `offset` on, whose batches can be found from now on. Raises as `rlm.archive.stored_runs`.

        `archive`: whether runs of archive objects will do.
        """
        loop = asyncio.get_running_loop()
        found, batches = await loop.run_in_executor(self._pool, self._read, wanted, offset, archive)
        for of_run in batches:
            self._list(wanted.topic_id_partition, of_run)
        return found

    def _read(
        self, wanted: StoredLog, offset: int, archive: bool
    ) -> tuple[FoundRuns, list[list[tuple[int, StoredBatch]]]]:
        found = self._logs.runs(wanted, offset, self.limits.read_bytes, archive)
        return found, [_batches_of(run) for run in found.runs]

    def _list(self, partition: TopicIdPartition, batches: list[tuple[int, StoredBatch]]) -> None:
        """What is in a living combined segment too stays listed as that, which each follower's agent understands."""
        self._found.add(partition, [each for each in batches if not self._is_in_segment(partition, *each)])

    def _is_in_segment(self, partition: TopicIdPartition, base_offset: int, stored: StoredBatch) -> bool:
        """Whether the batch, of an archive object, was found in a combined segment before."""
        if not isinstance(stored.object_id, ArchiveObjectId):
            return False
        listed = self.find(partition, base_offset)
        if listed is None or isinstance(listed.object_id, ArchiveObjectId):
            return False
        return listed.header_prefix == stored.header_prefix

    def drop_from(self, partition: TopicIdPartition, offset: int) -> None:
        """The log was truncated there."""
        self._found.drop_from(partition, offset)

    def drop(self, partition: TopicIdPartition) -> None:
        """The partition is not led here any more."""
        self._found.drop(partition)

    def drop_object(self, object_id: StoredObjectId) -> None:
        """The object's deletion was started."""
        self._found.drop_object(object_id)
        self._looked_at = None

    def close(self) -> None:
        """Reads under way are abandoned."""
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(slots=True)
class _Window:
    """How far ahead of a follower a partition was read."""

    start: int
    end: int
    """Behind the last offset that was read."""
    ahead: deque[tuple[int, int, int]] = field(default_factory=deque)
    """(last offset, bytes, bytes of them that were announced) of what was read and not linked yet."""
    ahead_bytes: int = 0
    announced_bytes: int = 0
    reading: "asyncio.Task[None] | None" = None
    nothing_to: int = 0
    """Exclusive. No object holds the offsets from `end` up to here, or none that can be proved."""

    def linked_up_to(self, next_offset: int) -> None:
        while self.ahead and self.ahead[0][0] < next_offset:
            _, size, announced = self.ahead.popleft()
            self.ahead_bytes -= size
            self.announced_bytes -= announced
        self.end = max(self.end, next_offset)

    def links_to(self, run: ProvedRun) -> tuple[int, int]:
        """The range of the object that the follower will be given links to, when the run is the next."""
        first = next((batch.start for batch in run.batches if batch.last_offset >= self.end), 0)
        return run.entry.start_file_position + first, run.entry.end_file_position

    def took(self, run: ProvedRun, size: int, announced: int) -> None:
        """Count a run that was read."""
        self.ahead.append((run.entry.last_offset, size, announced))
        self.ahead_bytes += size
        self.announced_bytes += announced
        self.end = run.entry.last_offset + 1


class FollowerCatchUp:
    """One follower's connection: what it will be given next, partition by partition."""

    def __init__(
        self, shared: CatchUp, announce: Announce, notify: Callable[[], None], capabilities: PeerCapabilities
    ) -> None:
        """`notify` has waiting responses look again; `capabilities` are those that both agents have."""
        self._shared = shared
        self._announce = announce
        self._notify = notify
        self._links_archive = PeerCapabilities.ARCHIVE_LINKS in capabilities
        self._windows: dict[TopicIdPartition, _Window] = {}

    def find(self, partition: TopicIdPartition, base_offset: int) -> StoredBatch | None:
        """See CatchUp. What was found for another follower may be what this one's agent does not understand."""
        stored = self._shared.find(partition, base_offset)
        if stored is not None and isinstance(stored.object_id, ArchiveObjectId) and not self._links_archive:
            return None
        return stored

    def expected(self, partition: TopicIdPartition, offset: int) -> bool:
        """Whether the batch at this offset, which nobody has found yet, is being looked for; begins to look for it."""
        window = self._windows.get(partition)
        if window is not None:
            if window.reading is not None:
                return offset >= window.end
            if window.start <= offset < max(window.end, window.nothing_to):
                return False
        elif self._shared.behind(partition, offset) is None:
            return False
        window = self._windows[partition] = _Window(offset, offset)  # one that was there reads nothing now
        self._read_on(partition, window)
        return window.reading is not None

    def sent(self, sent: SendLinked) -> bool:
        """A linked response was sent; whether the follower is far behind, so that it is to be read with restraint."""
        is_old = any(not self._shared.is_new(link.object_id) for link in sent.response.links)
        if not is_old and not self._windows:
            return False
        is_behind = is_old
        for partition, next_offset, _ in sent.linked:
            window = self._windows.get(partition)
            is_behind = is_behind or window is not None
            if self._shared.behind(partition, next_offset) is None:
                self.forget(partition)
            elif window is not None or is_old:
                if window is None:
                    window = self._windows[partition] = _Window(next_offset, next_offset)
                window.linked_up_to(next_offset)
                self._read_on(partition, window)
        return is_behind

    def forget(self, partition: TopicIdPartition) -> None:
        """The follower has caught up, or the partition's log was truncated or is not led here any more."""
        window = self._windows.pop(partition, None)
        if window is not None and window.reading is not None:
            window.reading.cancel()

    def close(self) -> None:
        """The connection ended."""
        for partition in list(self._windows):
            self.forget(partition)

    def _read_on(self, partition: TopicIdPartition, window: _Window) -> None:
        """Read the next runs, unless enough was read ahead, or all."""
        limits = self._shared.limits
        share_bytes = max(limits.ahead_bytes // len(self._windows), limits.read_bytes)
        if window.reading is not None or window.end < window.nothing_to or window.ahead_bytes >= share_bytes:
            return
        wanted = self._shared.behind(partition, window.end)
        if wanted is not None:
            window.reading = asyncio.create_task(self._read(wanted, window), name="catch-up")
            window.reading.add_done_callback(self._ended)

    async def _read(self, wanted: StoredLog, window: _Window) -> None:
        partition, offset = wanted.topic_id_partition, window.end
        found = FoundRuns([])
        try:
            found = await self._shared.read(wanted, offset, self._links_archive)
        except (LogDirectoryError, MalformedFileError) as error:
            self._shared.metrics.fault("catch_up_log_unreadable")
            log.warning("catch_up_log_unreadable", partition=str(partition), error=str(error))
        finally:  # also after a defect: who waits must go on without
            window.reading = None
            window.nothing_to = found.refused_to if found.runs else max(found.refused_to, offset + 1)
            self._took(window, found.runs)
            self._notify()
        if self._windows.get(partition) is window:
            self._read_on(partition, window)

    def _took(self, window: _Window, runs: list[ProvedRun]) -> None:
        """Announce what all partitions together may have announced; the rest is linked without that."""
        ranges: dict[StoredObjectId, list[tuple[int, int]]] = {}
        free_bytes = self._shared.limits.ahead_bytes - sum(each.announced_bytes for each in self._windows.values())
        for run in runs:
            start, end = window.links_to(run)
            is_announced = free_bytes > 0
            if is_announced:
                ranges.setdefault(run.object_id, []).append((start, end))
                free_bytes -= end - start
            window.took(run, end - start, end - start if is_announced else 0)
            self._shared.metrics.catch_up_found_bytes.inc(end - start)
        for object_id, wanted in ranges.items():
            self._announce(object_id, wanted)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (defect := task.exception()) is not None:
            self._shared.metrics.fault("catch_up_defect")
            log.error("catch_up_defect", error=str(defect), exc_info=defect)


def _batches_of(run: ProvedRun) -> list[tuple[int, StoredBatch]]:
    records, start = run.records, run.entry.start_file_position
    return [
        (
            batch.base_offset,
            StoredBatch(
                bytes(records[batch.start : batch.start + HEADER_PREFIX_BYTES]),
                run.object_id,
                start + batch.start,
                start + batch.end,
            ),
        )
        for batch in run.batches
    ]
