"""Checks whether a log on disk is still the one that was delivered, and from which offset on it differs."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from kafka_log.broker_files.leader_epoch_checkpoint import UNKNOWN_EPOCH, LeaderEpochs, read_leader_epochs
from kafka_log.record_batch import BatchSpan
from kafka_log.segment_directory import SegmentDirectory
from kafka_log.segment_files import locate, walk_batches

MAX_RUNS = 64
"""Older runs are forgotten: no truncation reaches back over that many elections unnoticed."""


class EpochRun(NamedTuple):
    """A run of consecutive batches that one leader wrote."""

    leader_epoch: int
    first_offset: int
    end_offset: int
    """Offset after the last batch."""
    from_offset: int
    """End of what came before; there is no batch between it and `first_offset`."""


class DeliveredEpochs:
    """Remembers which leader wrote what a tail has delivered, to detect from where the log has been replaced.

    A follower that truncates and then copies the new leader's batches may end with a longer file than before, so sizes
    and positions do not show it. The leader epochs do: an offset has one writer per epoch, so the log is the same up to
    the first offset whose epoch differs. Compaction leaves holes before batches, into which a new leader may write. So
    a difference counts from the end of what was delivered before the differing run.
    """

    __slots__ = ("_begin", "_runs")

    def __init__(self) -> None:
        self._begin: int | None = None
        self._runs: list[EpochRun] = []

    def begin(self, offset: int) -> None:
        """Start at this offset: nothing is delivered yet."""
        self._begin = offset

    @property
    def last_epoch(self) -> int:
        return self._runs[-1].leader_epoch if self._runs else UNKNOWN_EPOCH

    @property
    def last_run(self) -> EpochRun | None:
        return self._runs[-1] if self._runs else None

    def add(self, leader_epoch: int, first_offset: int, end_offset: int) -> None:
        """Record that [first_offset, end_offset), which lies after everything before, was delivered."""
        if self._runs and self._runs[-1].leader_epoch == leader_epoch:
            self._runs[-1] = self._runs[-1]._replace(end_offset=end_offset)
            return
        from_offset = self._runs[-1].end_offset if self._runs else self._begin
        self._runs.append(
            EpochRun(leader_epoch, first_offset, end_offset, first_offset if from_offset is None else from_offset)
        )
        if len(self._runs) > MAX_RUNS:
            del self._runs[0]

    def cut(self, offset: int) -> None:
        """Forget everything from `offset` on."""
        if self._begin is not None:
            self._begin = min(self._begin, offset)
        while self._runs and self._runs[-1].first_offset >= offset:
            self._runs.pop()
        if self._runs and self._runs[-1].end_offset > offset:
            self._runs[-1] = self._runs[-1]._replace(end_offset=offset)

    def epoch_at(self, offset: int) -> int:
        """Return the epoch under which `offset` was delivered; UNKNOWN_EPOCH when it was not."""
        for run in reversed(self._runs):
            if run.first_offset <= offset < run.end_offset:
                return run.leader_epoch
        return UNKNOWN_EPOCH

    def diverges_at(self, epochs: LeaderEpochs) -> int | None:
        """Return the first delivered offset that another leader may have written, according to `epochs`; None
        without one."""
        if not epochs.entries:
            return None
        first_known = epochs.entries[0][1]
        for run in self._runs:
            if run.end_offset <= first_known:
                continue
            start = epochs.start_offset(run.leader_epoch)
            known_from = max(run.from_offset, first_known)
            if start is None or start > max(run.first_offset, first_known):
                return known_from
            epoch_end = epochs.end_offset_for(run.leader_epoch)
            if epoch_end is not None and epoch_end < run.end_offset:
                return max(epoch_end, known_from)
        return None


class LogLineage:
    """Compares the leader epochs of delivered records with those in a partition directory."""

    __slots__ = ("_directory", "delivered")

    def __init__(self, directory: SegmentDirectory) -> None:
        self._directory = directory
        self.delivered = DeliveredEpochs()

    def divergence_by_checkpoint(self) -> int | None:
        """Return the first delivered offset that another leader has written since, by the checkpoint; None without one.

        The checkpoint is verified against the log. Raises MalformedFileError, OSError.
        """
        divergence = self.delivered.diverges_at(read_leader_epochs(self._directory.path))
        return divergence if divergence is not None and self._has_another_writer(divergence) else None

    def divergence_before(self, new_epoch: int) -> int | None:
        """Return the first delivered offset that another leader wrote since, as a batch of `new_epoch` follows."""
        divergence = self.divergence_by_checkpoint()
        if divergence is not None:
            return divergence
        epochs = read_leader_epochs(self._directory.path)
        if new_epoch > self.delivered.last_epoch and epochs.start_offset(new_epoch) is not None:
            return None
        return self._walk_last_run()

    def continue_with(self, spans: Sequence[BatchSpan], next_offset: int) -> int | None:
        """Record batches that follow what was delivered, up to `next_offset`.

        Returns the offset of the first batch that shows that the log was replaced from there on; that and later ones
        are not recorded.
        """
        delivered = self.delivered
        epoch = delivered.last_epoch
        first = 0
        for index, span in enumerate(spans):
            if span.leader_epoch == epoch:
                continue
            if index > first:
                delivered.add(epoch, spans[first].base_offset, spans[index - 1].last_offset + 1)
            if epoch != UNKNOWN_EPOCH:
                divergence = self.divergence_before(span.leader_epoch)
                if divergence is not None:
                    delivered.cut(next_offset)
                    return divergence
            epoch, first = span.leader_epoch, index
        delivered.add(epoch, spans[first].base_offset, spans[-1].last_offset + 1)
        return None

    def _has_another_writer(self, offset: int) -> bool:
        base = self._directory.holding(offset)
        if base is None:
            return True
        try:
            with self._opened(base) as fd:
                batch = locate(fd, self._directory.file_path(base), base, offset).batch
        except FileNotFoundError:
            return True
        return batch is None or batch.leader_epoch != self.delivered.epoch_at(max(offset, batch.base_offset))

    def _walk_last_run(self) -> int | None:
        """Return the first offset of the last delivered run whose batch carries another epoch."""
        run = self.delivered.last_run
        if run is None:
            return None
        base = self._directory.holding(run.from_offset)
        while base is not None and base < run.end_offset:
            try:
                with self._opened(base) as fd:
                    start = locate(fd, self._directory.file_path(base), base, run.from_offset).position
                    for batch in walk_batches(fd, start, base):
                        if batch.base_offset >= run.end_offset:
                            return None
                        if batch.leader_epoch != run.leader_epoch:
                            return max(batch.base_offset, run.from_offset)
            except FileNotFoundError:
                return None
            base = self._directory.find_next(base)
        return None

    @contextmanager
    def _opened(self, base_offset: int) -> Iterator[int]:
        fd = os.open(self._directory.file_path(base_offset), os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)
