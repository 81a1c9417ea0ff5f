"""Plans what to find for one follower that is far behind, how far ahead, and what to announce to its agent. Sans-IO.

It gives reads, takes what they found, and gives the ranges that will be linked. Bounded: bytes that are read ahead or
announced are limited for each connection and shared by its partitions.

One link to an object that is not among the newest, anywhere in a response, shows that a follower is far behind; then
the rest of that partition is read ahead. In a steady state this costs one look at each link of a response.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from kafka_log.topic_partition import TopicIdPartition
from plugin.format.archive_object_id import ArchiveObjectId, StoredObjectId
from replication.leader.link_index import FoundBatches, StoredBatch
from replication.wire.link import LinkedResponse
from replication.wire.metrics import ReplicationMetrics
from rlm.write_path.core.led_views import FoundRuns, ProvedRun, StoredLog

Ranges = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class CatchUpLimits:
    """Limits of reading ahead, in bytes and batches."""

    ahead_bytes: int = 16 * 1024 * 1024
    """For each follower's connection: the bytes that may be read ahead and announced, in all partitions together."""
    read_bytes: int = 2 * 1024 * 1024
    """The bytes that are read and proved at a time. A response waits for one such read."""
    max_batches: int = 100_000


@dataclass(slots=True, eq=False)
class WantedRead:
    """A read to carry out: find and prove the runs of a log from this offset on."""

    log: StoredLog
    offset: int
    archive: bool
    """Whether runs of archive objects may be used."""
    is_dropped: bool = False
    """Nobody wants its result any more."""


@dataclass(slots=True)
class _Window:
    """How far ahead of a follower a partition was read."""

    start: int
    end: int
    """The offset after the last one that was read."""
    ahead: deque[tuple[int, int, int]] = field(default_factory=deque)
    """What was read and not linked yet: (last offset, bytes, announced bytes of them)."""
    ahead_bytes: int = 0
    announced_bytes: int = 0
    reading: WantedRead | None = None
    nothing_to: int = 0
    """Exclusive end of a gap: no object holds the offsets from `end` up to here in a form that can be proved."""

    def linked_up_to(self, next_offset: int) -> None:
        while self.ahead and self.ahead[0][0] < next_offset:
            _, size, announced = self.ahead.popleft()
            self.ahead_bytes -= size
            self.announced_bytes -= announced
        self.end = max(self.end, next_offset)

    def links_to(self, run: ProvedRun) -> tuple[int, int]:
        """Return the range of the object that the follower will get links to, if the run is the next."""
        first = next((batch.start for batch in run.batches if batch.last_offset >= self.end), 0)
        return run.entry.start_file_position + first, run.entry.end_file_position

    def note_read(self, run: ProvedRun, size: int, announced: int) -> None:
        self.ahead.append((run.entry.last_offset, size, announced))
        self.ahead_bytes += size
        self.announced_bytes += announced
        self.end = run.entry.last_offset + 1


class ReadAhead:
    """The plan for one follower's connection, by partition."""

    def __init__(
        self, found: FoundBatches, limits: CatchUpLimits, metrics: ReplicationMetrics, links_archive: bool
    ) -> None:
        """`links_archive`: whether the follower's agent understands links to archive objects."""
        self._found = found
        self._metrics = metrics
        self._limits = limits
        self._links_archive = links_archive
        self._windows: dict[TopicIdPartition, _Window] = {}
        self._wanted: list[WantedRead] = []

    @property
    def ahead_bytes(self) -> dict[TopicIdPartition, int]:
        """Bytes that were read and not linked yet, for each partition in which the follower is far behind."""
        return {partition: window.ahead_bytes for partition, window in self._windows.items()}

    def find(self, partition: TopicIdPartition, base_offset: int) -> StoredBatch | None:
        """Return where the batch at this offset is stored; None unless this follower's agent can read that object."""
        stored = self._found.find(partition, base_offset)
        if stored is not None and isinstance(stored.object_id, ArchiveObjectId) and not self._links_archive:
            return None
        return stored

    def expected(self, partition: TopicIdPartition, offset: int) -> bool:
        """Whether the batch at this offset is being searched for; starts the search if needed."""
        window = self._windows.get(partition)
        if window is not None:
            if window.reading is not None:
                return offset >= window.end
            if window.start <= offset < max(window.end, window.nothing_to):
                return False
        elif self._found.find_log(partition, offset) is None:
            return False
        window = self._windows[partition] = _Window(offset, offset)  # a window that was there reads nothing now
        self._read_on(partition, window)
        return window.reading is not None

    def sent(self, response: LinkedResponse, linked: Iterable[tuple[TopicIdPartition, int, int]]) -> bool:
        """Record a linked response that was sent; `linked` as in `SendLinked`.

        Returns whether the follower is far behind, so that its reads must keep to the quota.
        """
        is_old = any(not self._found.is_new(link.object_id) for link in response.links)
        if not is_old and not self._windows:
            return False
        is_behind = is_old
        for partition, next_offset, _ in linked:
            window = self._windows.get(partition)
            is_behind = is_behind or window is not None
            if self._found.find_log(partition, next_offset) is None:
                self.forget(partition)
            elif window is not None or is_old:
                if window is None:
                    window = self._windows[partition] = _Window(next_offset, next_offset)
                window.linked_up_to(next_offset)
                self._read_on(partition, window)
        return is_behind

    def forget(self, partition: TopicIdPartition) -> None:
        """Drop a partition: the follower has caught up, the log was truncated, or it is no longer led here."""
        window = self._windows.pop(partition, None)
        if window is not None and window.reading is not None:
            window.reading.is_dropped = True

    def close(self) -> None:
        """Drop all planned reads, because the connection ended."""
        for partition in list(self._windows):
            self.forget(partition)

    def take_wanted(self) -> list[WantedRead]:
        """Return the reads to begin now. `was_read` must follow for each."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def was_read(self, read: WantedRead, found: FoundRuns) -> dict[StoredObjectId, Ranges]:
        """Record the end of a read, also of an empty one. Returns the ranges to announce, by object."""
        partition = read.log.topic_id_partition
        window = self._windows.get(partition)
        if read.is_dropped or window is None:
            return {}
        window.reading = None
        window.nothing_to = found.refused_to if found.runs else max(found.refused_to, read.offset + 1)
        ranges = self._took(window, found.runs)
        self._read_on(partition, window)
        return ranges

    def _read_on(self, partition: TopicIdPartition, window: _Window) -> None:
        """Read the next runs, unless enough was read ahead, or the end is reached."""
        share_bytes = max(self._limits.ahead_bytes // len(self._windows), self._limits.read_bytes)
        if window.reading is not None or window.end < window.nothing_to or window.ahead_bytes >= share_bytes:
            return
        log = self._found.find_log(partition, window.end)
        if log is not None:
            window.reading = WantedRead(log, window.end, self._links_archive)
            self._wanted.append(window.reading)

    def _took(self, window: _Window, runs: list[ProvedRun]) -> dict[StoredObjectId, Ranges]:
        """Return what to announce of the runs; the rest is linked without an announcement."""
        ranges: dict[StoredObjectId, Ranges] = {}
        free_bytes = self._limits.ahead_bytes - sum(each.announced_bytes for each in self._windows.values())
        for run in runs:
            start, end = window.links_to(run)
            is_announced = free_bytes > 0
            if is_announced:
                ranges.setdefault(run.object_id, []).append((start, end))
                free_bytes -= end - start
            window.note_read(run, end - start, end - start if is_announced else 0)
            self._metrics.catch_up.found_bytes.inc(end - start)
        return ranges
