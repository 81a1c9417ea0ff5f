import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from local_cluster.workload.replica_comparison import ReplicaReadError, compare_partition

BATCH_BYTES = 61


def _batch(base_offset: int, records: int = 1, filler: int = 0) -> bytes:
    body = bytearray([filler]) * (BATCH_BYTES - 12)
    struct.pack_into(">i", body, 23 - 12, records - 1)
    return struct.pack(">qi", base_offset, len(body)) + bytes(body)


def _replica(directory: Path, *segments: Sequence[bytes], first_offsets: Sequence[int] | None = None) -> Path:
    directory.mkdir()
    for index, batches in enumerate(segments):
        first = first_offsets[index] if first_offsets else struct.unpack_from(">q", batches[0])[0]
        (directory / f"{first:020}.log").write_bytes(b"".join(batches))
    return directory


def test_replicas_with_the_same_batches_are_identical_however_they_are_cut(tmp_path: Path) -> None:
    batches = [_batch(offset) for offset in range(4)]
    comparison = compare_partition(
        "t",
        0,
        {
            1: _replica(tmp_path / "1", batches),
            2: _replica(tmp_path / "2", batches[:1], batches[1:3], batches[3:]),
        },
    )
    assert comparison.identical
    assert comparison.compared_bytes == 4 * BATCH_BYTES
    assert comparison.sha256 == hashlib.sha256(b"".join(batches)).hexdigest()
    assert (comparison.start_offset, comparison.end_offset) == (0, 4)


def test_the_first_differing_byte_is_named_by_file_and_position(tmp_path: Path) -> None:
    batches = [_batch(offset) for offset in range(3)]
    other = [*batches[:2], _batch(2, filler=9)]
    comparison = compare_partition(
        "t", 0, {1: _replica(tmp_path / "1", batches), 2: _replica(tmp_path / "2", other[:1], other[1:])}
    )
    assert not comparison.identical
    assert comparison.difference == (
        f"broker 2 differs from broker 1 in {tmp_path / '2' / f'{1:020}.log'} at byte {BATCH_BYTES + 12}, "
        "in the batch with base offset 2"
    )


def test_a_replica_that_lacks_a_batch_in_the_middle_differs(tmp_path: Path) -> None:
    batches = [_batch(offset) for offset in range(3)]
    lacking = _replica(tmp_path / "2", [batches[0], batches[2]])
    comparison = compare_partition("t", 0, {1: _replica(tmp_path / "1", batches), 2: lacking})
    assert comparison.difference is not None
    assert comparison.difference.endswith(f"at byte {BATCH_BYTES + 7}, in the batch with base offset 2")


def test_a_lagging_replica_is_compared_as_far_as_it_reaches_and_is_not_identical(tmp_path: Path) -> None:
    batches = [_batch(0, records=5), _batch(5, records=2)]
    comparison = compare_partition(
        "t", 0, {1: _replica(tmp_path / "1", batches), 2: _replica(tmp_path / "2", batches[:1])}
    )
    assert comparison.difference is None
    assert comparison.log_end_offsets == {1: 7, 2: 5}
    assert not comparison.identical
    assert comparison.compared_bytes == BATCH_BYTES


def test_what_retention_removed_in_one_replica_is_left_out(tmp_path: Path) -> None:
    batches = [_batch(offset) for offset in range(4)]
    comparison = compare_partition(
        "t", 0, {1: _replica(tmp_path / "1", batches), 2: _replica(tmp_path / "2", batches[2:])}
    )
    assert comparison.identical
    assert (comparison.start_offset, comparison.compared_bytes) == (2, 2 * BATCH_BYTES)


def test_a_torn_batch_at_the_end_does_not_count(tmp_path: Path) -> None:
    torn = [_batch(0), _batch(1)[:-1]]
    comparison = compare_partition(
        "t", 0, {1: _replica(tmp_path / "1", [_batch(0)]), 2: _replica(tmp_path / "2", torn)}
    )
    assert comparison.identical
    assert comparison.end_offset == 1


def test_empty_replicas_are_identical(tmp_path: Path) -> None:
    comparison = compare_partition(
        "t",
        0,
        {
            1: _replica(tmp_path / "1", [], first_offsets=[0]),
            2: _replica(tmp_path / "2", [], first_offsets=[0]),
        },
    )
    assert comparison.identical
    assert comparison.compared_bytes == 0


def test_a_file_that_is_no_log_is_named(tmp_path: Path) -> None:
    bad = _replica(tmp_path / "1", [bytes(100)], first_offsets=[0])
    with pytest.raises(ReplicaReadError, match="holds no batch at byte 0"):
        compare_partition("t", 0, {1: bad, 2: bad})
