"""The archive's objects: one partition's batches in offset order, in the format of a combined segment.

A combined segment whose entries are all of one partition, in order and without overlaps, is a complete archive object
(S3Stream's StreamObject, beside its StreamSetObjects). So header, footer, trailer and checksums are those of
`plugin.format.combined_segment`. Only the key differs, and the entries keep three more promises, which `check_runs`
checks:

- all are of one partition, and their leader epochs never decrease;
- they tile the object's range: the first begins at its first offset, each at the offset behind the one before, the last
  ends at its last offset. If the log has a hole (a compacted one), the run behind it begins in the hole, so that every
  offset of the range leads to the batch with which a fetch at this offset would begin;
- they are short, so that a lookup leads to a small range with its own checksum.

The header has the writer id: the agent that wrote the object, and the number of the object among its archive objects.
"""

from bisect import bisect_left
from collections.abc import Sequence
from hashlib import sha256

from kafka_log.batch_digests import run_digest
from kafka_log.record_batch import BatchSpan
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.format.combined_segment import OpenCombinedSegment, SealedCombinedSegment, SegmentHeader
from plugin.segment_metadata import UNKNOWN_POSITION, RemoteLogSegmentMetadataEntry

RUN_BYTES = 1024 * 1024
"""The length of runs: what a reader reads and checks at once (guessed)."""


class OpenArchiveObject:
    """An archive object that is being gathered: takes one partition's batches in offset order. Not thread-safe.

    Payloads are copied once, when the pieces of a run are put together.
    """

    def __init__(
        self, cluster_id: str, object_id: ArchiveObjectId, created_ms: int, run_bytes: int, *, digests: bool = False
    ) -> None:
        """`run_bytes` is the greatest length of a run, unless a single batch is longer.

        With `digests`, runs have a SHA-256.
        """
        self._segment = OpenCombinedSegment(SegmentHeader(cluster_id, object_id.writer_id, created_ms))
        self._id = object_id
        self._run_bytes = run_bytes
        self._digests = digests
        self._pieces: list[memoryview] = []
        self._piece_bytes = 0
        self._leader_epoch = -1
        self._run_first = object_id.first_offset
        self._covered_to = object_id.first_offset - 1

    def append(self, leader_epoch: int, last_offset: int, records: memoryview, batches: Sequence[BatchSpan]) -> None:
        """Add these batches, which are all that the log has up to and with `last_offset`.

        Raises ValueError when they are not in order.
        """
        if last_offset <= self._covered_to or leader_epoch < self._leader_epoch:
            raise ValueError(f"offset {last_offset} of epoch {leader_epoch} does not follow offset {self._covered_to}")
        if leader_epoch != self._leader_epoch:
            self._end_run()
            self._leader_epoch = leader_epoch
        for batch in batches:
            if batch.base_offset <= self._covered_to or batch.last_offset > last_offset:
                raise ValueError(f"a batch from {batch.base_offset} to {batch.last_offset} does not belong here")
            size = batch.end - batch.start
            if self._pieces and self._piece_bytes + size > self._run_bytes:
                self._end_run()
            self._pieces.append(records[batch.start : batch.end])
            self._piece_bytes += size
            self._covered_to = batch.last_offset
        self._covered_to = last_offset

    def seal(self) -> SealedCombinedSegment:
        """Lay the object out. Raises ValueError when it is empty, or does not reach its last offset."""
        if self._covered_to != self._id.last_offset or not self._pieces:
            raise ValueError(f"{self._id} was only filled up to offset {self._covered_to}")
        self._end_run()
        return self._segment.seal()

    def _end_run(self) -> None:
        if self._pieces:
            run = RemoteLogSegmentMetadataEntry(
                self._id.topic_id_partition, self._leader_epoch, self._run_first, self._covered_to,
                UNKNOWN_POSITION, UNKNOWN_POSITION, 0,
                run_digest([sha256(piece).digest() for piece in self._pieces]) if self._digests else b"",
            )  # fmt: skip
            self._segment.append(run, self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces))
            self._run_first = self._covered_to + 1
        self._pieces = []
        self._piece_bytes = 0


def check_runs(object_id: ArchiveObjectId, runs: Sequence[RemoteLogSegmentMetadataEntry]) -> None:
    """Raise ValueError unless the runs tile the object's range as the format requires."""
    expected, leader_epoch = object_id.first_offset, -1
    for run in runs:
        if run.topic_id_partition != object_id.topic_id_partition:
            raise ValueError(f"{object_id} holds a run of {run.topic_id_partition}")
        if run.first_offset != expected or run.last_offset < run.first_offset or run.leader_epoch < leader_epoch:
            raise ValueError(
                f"{object_id} has a run {run.first_offset} to {run.last_offset} of epoch {run.leader_epoch}, where "
                f"offset {expected} of epoch {leader_epoch} or newer belongs"
            )
        expected, leader_epoch = run.last_offset + 1, run.leader_epoch
    if expected != object_id.last_offset + 1:
        raise ValueError(f"{object_id} ends at offset {expected - 1}")


def run_holding(runs: Sequence[RemoteLogSegmentMetadataEntry], offset: int) -> RemoteLogSegmentMetadataEntry | None:
    """Return the run that holds `offset`; None outside of the object's range. `runs` must tile a range, ascending."""
    at = bisect_left(runs, offset, key=lambda run: run.last_offset)
    return runs[at] if at < len(runs) and runs[at].first_offset <= offset else None
