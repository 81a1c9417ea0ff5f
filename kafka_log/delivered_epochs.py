"""Remembers which leader wrote what a tail has delivered, to detect from where the log has been replaced.

A follower that truncates and then copies the new leader's batches may end with a longer file than before, so sizes and
positions do not show it. The leader epochs do: an offset has one writer per epoch, so the log is the same up to the
first offset whose epoch differs. Compaction leaves holes before batches, into which a new leader may write. So a
difference counts from the end of what was delivered before the differing run.
"""

from typing import NamedTuple

from kafka_log.broker_files.leader_epoch_checkpoint import UNKNOWN_EPOCH, LeaderEpochs

MAX_RUNS = 64
"""Older runs are forgotten: no truncation reaches back over that many elections unnoticed."""


class EpochRun(NamedTuple):
    """Consecutive batches of one leader."""

    leader_epoch: int
    first_offset: int
    end_offset: int
    """Offset after the last batch."""
    from_offset: int
    """End of what came before; there is no batch between it and `first_offset`."""


class DeliveredEpochs:
    """Runs of batches in the order of delivery."""

    __slots__ = ("_begin", "_runs")

    def __init__(self) -> None:
        self._begin: int | None = None
        self._runs: list[EpochRun] = []

    def begin(self, offset: int) -> None:
        """Start: the delivered offsets are what the log has from this offset on."""
        self._begin = offset

    @property
    def last_epoch(self) -> int:
        return self._runs[-1].leader_epoch if self._runs else UNKNOWN_EPOCH

    @property
    def last_run(self) -> EpochRun | None:
        return self._runs[-1] if self._runs else None

    def add(self, leader_epoch: int, first_offset: int, end_offset: int) -> None:
        """Record [first_offset, end_offset), which lies after everything before."""
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
        """The epoch under which `offset` was delivered; UNKNOWN_EPOCH when it was not."""
        for run in reversed(self._runs):
            if run.first_offset <= offset < run.end_offset:
                return run.leader_epoch
        return UNKNOWN_EPOCH

    def diverges_at(self, epochs: LeaderEpochs) -> int | None:
        """From where on another leader may have written what was delivered, according to `epochs`, or None.

        What lies before the first entry was removed by retention, and is not judged.
        """
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
