"""What to find for one follower that is far behind, how far ahead of it, and what its agent is told. Sans-IO.

Reads come out, what they found goes in, and the ranges that will be linked come out. Bounded: what is read ahead, and
what is announced, by bytes for each connection, shared by its partitions.

One link to an object that is not among the newest, wherever it stands in a response, shows that a follower is far
behind; then the rest of that partition is read ahead. In a steady state one look at each link of a response is all that
is done here.
"""

from collections import deque
from dataclasses import dataclass, field

from kafka_log.topic_partition import TopicIdPartition
from plugin.format.archive_object_id import ArchiveObjectId, StoredObjectId
from replication.leader.found_batches import FoundBatches
from replication.leader.link_index import StoredBatch
from replication.leader.links_of_stored_batches import SendLinked
from replication.wire.metrics import ReplicationMetrics
from rlm.write_path.core.led_views import FoundRuns, ProvedRun, StoredLog

Ranges = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class CatchUpLimits:
    """In bytes and batches."""

    ahead_bytes: int
    """For each follower's connection: what may be read ahead of it, and announced to it, in all partitions."""
    read_bytes: int = 2 * 1024 * 1024
    """What is read and proved at a time. A response waits for one such read."""
    max_batches: int = 100_000


@dataclass(slots=True, eq=False)
class WantedRead:
    """The next runs of a log, to be read and proved from this offset on."""

    log: StoredLog
    offset: int
    archive: bool
    """Whether runs of archive objects will do."""
    is_dropped: bool = False
    """Nobody wants what it finds any more."""


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
    reading: WantedRead | None = None
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


class ReadAhead:
    """Of one follower's connection, partition by partition. `OlderBatches` for its link planner."""

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
        """Of each partition in which the follower is far behind: what was read and not linked yet."""
        return {partition: window.ahead_bytes for partition, window in self._windows.items()}

    def find(self, partition: TopicIdPartition, base_offset: int) -> StoredBatch | None:
        """See FoundBatches. What was found for another follower may be what this one's agent does not understand."""
        stored = self._found.find(partition, base_offset)
        if stored is not None and isinstance(stored.object_id, ArchiveObjectId) and not self._links_archive:
            return None
        return stored

    def expected(self, partition: TopicIdPartition, offset: int) -> bool:
        """Whether the batch at this offset, which nobody has found yet, is being looked for; has it looked for."""
        window = self._windows.get(partition)
        if window is not None:
            if window.reading is not None:
                return offset >= window.end
            if window.start <= offset < max(window.end, window.nothing_to):
                return False
        elif self._found.behind(partition, offset) is None:
            return False
        window = self._windows[partition] = _Window(offset, offset)  # one that was there reads nothing now
        self._read_on(partition, window)
        return window.reading is not None

    def sent(self, sent: SendLinked) -> bool:
        """A linked response was sent; whether the follower is far behind, so that it is to be read with restraint."""
        is_old = any(not self._found.is_new(link.object_id) for link in sent.response.links)
        if not is_old and not self._windows:
            return False
        is_behind = is_old
        for partition, next_offset, _ in sent.linked:
            window = self._windows.get(partition)
            is_behind = is_behind or window is not None
            if self._found.behind(partition, next_offset) is None:
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
            window.reading.is_dropped = True

    def close(self) -> None:
        """The connection ended."""
        for partition in list(self._windows):
            self.forget(partition)

    def take_wanted(self) -> list[WantedRead]:
        """The reads that are to begin now. `was_read` must follow for each."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def was_read(self, read: WantedRead, found: FoundRuns) -> dict[StoredObjectId, Ranges]:
        """A read ended, perhaps with nothing. What to announce: all partitions together may have so much announced."""
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
        """Read the next runs, unless enough was read ahead, or all."""
        share_bytes = max(self._limits.ahead_bytes // len(self._windows), self._limits.read_bytes)
        if window.reading is not None or window.end < window.nothing_to or window.ahead_bytes >= share_bytes:
            return
        log = self._found.behind(partition, window.end)
        if log is not None:
            window.reading = WantedRead(log, window.end, self._links_archive)
            self._wanted.append(window.reading)

    def _took(self, window: _Window, runs: list[ProvedRun]) -> dict[StoredObjectId, Ranges]:
        """What to announce of the runs; the rest is linked without that."""
        ranges: dict[StoredObjectId, Ranges] = {}
        free_bytes = self._limits.ahead_bytes - sum(each.announced_bytes for each in self._windows.values())
        for run in runs:
            start, end = window.links_to(run)
            is_announced = free_bytes > 0
            if is_announced:
                ranges.setdefault(run.object_id, []).append((start, end))
                free_bytes -= end - start
            window.took(run, end - start, end - start if is_announced else 0)
            self._metrics.catch_up.found_bytes.inc(end - start)
        return ranges
