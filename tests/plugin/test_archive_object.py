"""An archive object: one partition's batches, cut into runs that tile its range."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.batch_digests import records_digest
from kafka_log.crc32c import crc32c
from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.format.archive_object import OpenArchiveObject, check_runs, run_holding
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.format.combined_segment import (
    HEADER_BYTES,
    TRAILER_BYTES,
    SealedCombinedSegment,
    decode_footer,
    locate_footer,
)
from plugin.format.object_keys import ObjectKeyFactory
from plugin.segment_metadata import CombinedSegmentId
from tests.kafka_log.batches import batch
from tests.plugin.id_strategies import archive_object_ids

ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 3)
WRITER = CombinedSegmentId(1, 7, 2)
KEYS = ObjectKeyFactory.of("team/kafka", "MkU3OEVBNTcwNTJENDM2Qg")


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[int, int, bytes]]:
    """Batches as (base offset, leader epoch, bytes), with holes, as a compacted log has them."""
    offset, epoch, log = draw(st.integers(0, 100)), draw(st.integers(0, 3)), []
    for _ in range(draw(st.integers(1, 20))):
        offset += draw(st.sampled_from([0, 0, 0, 5]))
        epoch += draw(st.sampled_from([0, 0, 0, 1]))
        records = draw(st.integers(1, 4))
        log.append((offset, epoch, batch(offset, records, epoch, b"x" * draw(st.integers(0, 200)))))
        offset += records
    return log


def sealed(
    log: list[tuple[int, int, bytes]], run_bytes: int, *, digests: bool = False
) -> tuple[ArchiveObjectId, SealedCombinedSegment]:
    ends = [scan_batches(raw, 0, len(raw))[0].last_offset for _, _, raw in log]
    object_id = ArchiveObjectId(ORDERS, log[0][0], ends[-1], WRITER)
    building = OpenArchiveObject("cluster", object_id, 17, run_bytes, digests=digests)
    for at, (base, epoch, raw) in enumerate(log):
        # What is before the batch, a hole, counts as read with the part before it, half of the time.
        if at and base > ends[at - 1] + 1 and at % 2:
            building.append(log[at - 1][1], base - 1, memoryview(b""), ())
        building.append(epoch, ends[at], memoryview(raw), scan_batches(raw, 0, len(raw)))
    return object_id, building.seal()


@given(logs(), st.integers(1, 900))
def test_with_digests_each_run_has_one_and_the_object_is_the_same(
    log: list[tuple[int, int, bytes]], run_bytes: int
) -> None:
    _, plain = sealed(log, run_bytes)
    _, segment = sealed(log, run_bytes, digests=True)
    raw = b"".join(segment.chunks)
    assert raw == b"".join(plain.chunks)
    for run in segment.entries:
        assert run.sha256 == records_digest(raw[run.start_file_position : run.end_file_position])
    assert not any(run.sha256 for run in plain.entries)


@given(logs(), st.integers(1, 900))
def test_runs_tile_the_range_and_each_offset_leads_to_its_batch(
    log: list[tuple[int, int, bytes]], run_bytes: int
) -> None:
    object_id, segment = sealed(log, run_bytes)
    raw = b"".join(segment.chunks)
    location = locate_footer(raw[-TRAILER_BYTES:], len(raw))
    header, runs = decode_footer(raw[:HEADER_BYTES], raw[location.start : location.end], location)
    check_runs(object_id, runs)
    assert header.combined_segment_id == WRITER
    assert raw[HEADER_BYTES : location.start] == b"".join(batch for _, _, batch in log)
    for run in runs:
        records = raw[run.start_file_position : run.end_file_position]
        spans = scan_batches(records, 0, len(records))
        assert crc32c(records) == run.crc32c
        assert {span.leader_epoch for span in spans} == {run.leader_epoch}
        assert len(spans) == 1 or len(records) <= run_bytes
        for offset in range(run.first_offset, run.last_offset + 1):
            assert run_holding(runs, offset) == run
            # The batch that Kafka would answer a fetch at this offset with is in this run, if there is one.
            answer = next((b for b, _, batch in log if scan_batches(batch, 0, len(batch))[0].last_offset >= offset), 0)
            assert answer in [span.base_offset for span in spans] or answer > run.last_offset
    assert run_holding(runs, object_id.first_offset - 1) is None
    assert run_holding(runs, object_id.last_offset + 1) is None


def test_batches_out_of_order_are_refused() -> None:
    raw = batch(5, 2)
    spans = scan_batches(raw, 0, len(raw))
    building = OpenArchiveObject("cluster", ArchiveObjectId(ORDERS, 5, 9, WRITER), 17, 100)
    with pytest.raises(ValueError, match="does not belong"):
        building.append(0, 5, memoryview(raw), spans)  # the batch reaches beyond what it is said to
    building.append(3, 6, memoryview(raw), spans)
    with pytest.raises(ValueError, match="does not follow"):
        building.append(3, 6, memoryview(raw), spans)
    with pytest.raises(ValueError, match="does not follow"):
        building.append(2, 9, memoryview(b""), ())
    with pytest.raises(ValueError, match="filled up to offset 6"):
        building.seal()


def test_runs_that_do_not_tile_are_refused() -> None:
    object_id, segment = sealed([(n, n // 3, batch(n, 1, n // 3)) for n in range(9)], 1)
    runs = segment.entries
    check_runs(object_id, runs)
    other = ORDERS._replace(partition=4)
    for wrong in (runs[1:], runs[:-1], (runs[0], *runs[2:]), runs[::-1], (runs[0], runs[0], *runs[1:]), ()):
        with pytest.raises(ValueError, match="b3JkZXJz"):
            check_runs(object_id, wrong)
    with pytest.raises(ValueError, match="holds a run of"):
        check_runs(object_id._replace(topic_id_partition=other), runs)


@given(archive_object_ids)
def test_an_id_is_read_back_from_its_bytes_and_its_key(object_id: ArchiveObjectId) -> None:
    assert ArchiveObjectId.from_bytes(object_id.to_bytes()) == object_id
    key = KEYS.archive_key_of(object_id)
    assert KEYS.parse_archive(key) == object_id
    assert KEYS.parse(key) is None
    assert key.startswith(KEYS.archive_prefix(object_id.topic_id_partition))


def test_a_key_looks_as_documented() -> None:
    assert KEYS.archive_key_of(ArchiveObjectId(ORDERS, 12, 4711, WRITER)) == (
        "team/kafka/MkU3OEVBNTcwNTJENDM2Qg/archive/6f726465727320202020202020202020/3/"
        "00000000000000000012-00000000000000004711-1-000000000007-000000000002.rwal"
    )


@given(st.text(max_size=150))
def test_what_is_parsed_is_what_would_be_built(tail: str) -> None:
    key = KEYS.archive_prefix() + tail
    parsed = KEYS.parse_archive(key)
    assert parsed is None or KEYS.archive_key_of(parsed) == key


@pytest.mark.parametrize("raw", [b"", b"x" * 16, b"\xff" * 52, b"x" * 53])
def test_bytes_that_are_no_id_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="archive object"):
        ArchiveObjectId.from_bytes(raw)
