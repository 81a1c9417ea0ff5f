"""One replica of a partition: its files, what its broker knows of leadership, and Kafka's rules of leader epochs."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.kafka_log.log_writer import BatchKey, WrittenBatch
from tests.simulation.led_log import LedLog
from tests.simulation.replicas.kafka_frames import EpochEnd

NO_LEADER = 0
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Leadership:
    """A partition's, as the controller has it. Each change has a higher `version` (KRaft's partition epoch)."""

    leader: int
    epoch: int
    isr: frozenset[int]
    version: int


@dataclass(slots=True)
class FollowerState:
    end: int = UNKNOWN
    caught_up_s: float = 0.0
    fetched_s: float = 0.0
    end_at_fetch: int = 0
    """The leader's log end offset when the follower last fetched."""


@dataclass(slots=True)
class Replica:
    files: LedLog
    leadership: Leadership = Leadership(NO_LEADER, -1, frozenset(), -1)
    high_watermark: int = 0
    checkpointed: int = 0
    """The high watermark as it is on disk."""
    epoch_start: int = 0
    """Where the present leader's epoch begins in its log."""
    followers: dict[int, FollowerState] = field(default_factory=dict)
    altering: frozenset[int] | None = None
    """The ISR that the controller was asked for."""
    unacknowledged: list[tuple[int, BatchKey]] = field(default_factory=list)
    """(log end offset, batch) of what producers wait for."""

    @property
    def end(self) -> int:
        return self.files.log.log_end_offset

    @property
    def start(self) -> int:
        return self.files.log.log_start_offset

    @property
    def last_epoch(self) -> int:
        epochs = self.files.log.epochs
        return epochs[-1][0] if epochs else UNKNOWN

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Those that are in sync, or may be as far as this leader knows."""
        return self.leadership.isr | (self.altering or frozenset())

    def last_key(self) -> BatchKey | None:
        for segment in reversed(self.files.log.segments):
            if segment.batches:
                return segment.batches[-1].key
        return None

    def batches_from(self, offset: int) -> Iterator[WrittenBatch]:
        """Those that reach `offset`, and all behind."""
        segments = self.files.log.segments
        first = len(segments) - 1
        while first > 0 and segments[first].base_offset > offset:
            first -= 1
        for segment in segments[first:]:
            for batch in segment.batches:
                if batch.last_offset >= offset:
                    yield batch

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> bytes:
        """Batches from `offset` on; the last one may be cut off by `max_bytes`."""
        found, size = list[bytes](), 0
        for batch in self.batches_from(offset):
            found.append(batch.raw)
            size += len(batch.raw)
            if size >= max_bytes:
                break
        if not found:
            return b""
        return b"".join(found)[: max(max_bytes, len(found[0]) if at_least_one else 0)]

    def end_of_epoch(self, asked: int) -> EpochEnd:
        """As LeaderEpochFileCache.endOffsetFor: the largest epoch up to `asked`, and where it ends (KIP-279)."""
        epochs = self.files.log.epochs
        if not epochs or asked == UNKNOWN:
            return EpochEnd(UNKNOWN, UNKNOWN)
        if asked == epochs[-1][0]:
            return EpochEnd(asked, self.end)
        above = [(epoch, start) for epoch, start in epochs if epoch > asked]
        if not above:
            return EpochEnd(UNKNOWN, UNKNOWN)
        below = [epoch for epoch, _ in epochs if epoch <= asked]
        return EpochEnd(below[-1] if below else asked, above[0][1])

    def truncation_to(self, leaders: EpochEnd) -> int:
        """Where a follower cuts its log off, by what its leader says of an epoch's end (KIP-101, KIP-279)."""
        if leaders.end_offset == UNKNOWN:
            return min(self.high_watermark, self.end)
        if leaders.leader_epoch == UNKNOWN:
            return min(leaders.end_offset, self.end)
        own = self.end_of_epoch(leaders.leader_epoch)
        if own.end_offset == UNKNOWN:
            return min(leaders.end_offset, self.end)
        if own.leader_epoch != leaders.leader_epoch:  # it does not know that epoch: it asks again
            return min(own.end_offset, self.end)
        return min(own.end_offset, leaders.end_offset, self.end)

    def truncate(self, offset: int) -> None:
        log = self.files.log
        if offset >= self.end:  # it may have led, and begun an epoch in which it wrote nothing (UnifiedLog.truncateTo)
            log.epochs = [known for known in log.epochs if known[1] < self.end]
            log.write_checkpoint()
            return
        if offset <= log.log_start_offset:
            self.restart_at(offset)
            return
        log.truncate_to(offset)
        self.files.cuts.append(self.end)
        self.high_watermark = min(self.high_watermark, self.end)

    def restart_at(self, offset: int) -> None:
        self.files.cuts.append(min(offset, self.files.log.log_start_offset))
        self.files.log.restart_at(offset)
        self.high_watermark = offset

    def compact(self, number: int) -> list[BatchKey]:
        """The log's cleaner takes some batches out of a closed segment below the high watermark; which ones."""
        log = self.files.log
        closed = [
            at
            for at, segment in enumerate(log.segments[:-1])
            if len(segment.batches) > 1 and segment.batches[-1].last_offset < self.high_watermark
        ]
        if not closed:
            return []
        before = list(log.present)
        log.compact(closed[number % len(closed)])
        return [key for key in before if key not in log.present]

    def begins_within(self, base_offset: int, last_offset: int) -> bool:
        """Whether the log is empty and begins in the midst of this batch, which its leader can only give whole. A
        follower then begins where the batch does (Partition.appendRecordsToFollowerOrFutureReplica)."""
        return self.start == self.end and base_offset < self.end <= last_offset

    def follow(self, end: int, follower: int, now_s: float) -> None:
        """A follower has asked for this offset, so it has all below."""
        state = self.followers.setdefault(follower, FollowerState())
        if end >= self.end:
            state.caught_up_s = now_s
        elif end >= state.end_at_fetch:
            state.caught_up_s = max(state.caught_up_s, state.fetched_s)
        state.end, state.fetched_s, state.end_at_fetch = end, now_s, self.end

    def is_in_sync(self, follower: int) -> bool:
        """Whether the follower may be taken into the ISR."""
        end = self.followers[follower].end
        return end >= self.high_watermark and end >= self.epoch_start
