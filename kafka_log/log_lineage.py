"""Checks whether a log on disk is still the one that was delivered, and from which offset on it differs."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kafka_log.broker_files.leader_epoch_checkpoint import UNKNOWN_EPOCH, read_leader_epochs
from kafka_log.delivered_epochs import DeliveredEpochs
from kafka_log.record_batch import BatchSpan
from kafka_log.segment_directory import SegmentDirectory
from kafka_log.segment_files import locate, walk_batches


class LogLineage:
    """Compares the epochs of what was delivered with a partition directory."""

    __slots__ = ("_directory", "delivered")

    def __init__(self, directory: SegmentDirectory) -> None:
        self._directory = directory
        self.delivered = DeliveredEpochs()

    def divergence_by_checkpoint(self) -> int | None:
        """Return the first delivered offset that another leader has written since, according to the checkpoint.

        The checkpoint is verified against the log. None: no difference. Raises MalformedFileError, OSError.
        """
        divergence = self.delivered.diverges_at(read_leader_epochs(self._directory.path))
        return divergence if divergence is not None and self._has_another_writer(divergence) else None

    def divergence_before(self, new_epoch: int) -> int | None:
        """Check like `divergence_by_checkpoint`, when a batch of `new_epoch` follows what was delivered.

        If the checkpoint does not know that epoch yet, or the log seems to return to an older one, the batch headers of
        the last epoch's run are checked as well.
        """
        divergence = self.divergence_by_checkpoint()
        if divergence is not None:
            return divergence
        epochs = read_leader_epochs(self._directory.path)
        if new_epoch > self.delivered.last_epoch and epochs.start_offset(new_epoch) is not None:
            return None
        return self._walk_last_run()

    def continue_with(self, spans: Sequence[BatchSpan], next_offset: int) -> int | None:
        """Record batches that follow what was delivered, up to `next_offset`.

        Returns an offset if one of them shows that the log is another one from there on; those from it on are not
        recorded.
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
            base = self._directory.after(base)
        return None

    @contextmanager
    def _opened(self, base_offset: int) -> Iterator[int]:
        fd = os.open(self._directory.file_path(base_offset), os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)
