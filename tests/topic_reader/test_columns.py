"""Records decoded together are those that are decoded one by one."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.flexible_encoding import MalformedMessageError
from kafka_log.plain_records import PlainRecord, decode_records
from kafka_log.record_batch import BATCH_OVERHEAD_BYTES, RecordBatchHeader
from tests.topic_reader.written import BASE_MS, Written, written_batch
from topic_reader.columns import DecompressedBatch, RecordColumns, decode_columns

ALL = (0, 2**62)
TEXTS = st.none() | st.binary(max_size=70) | st.integers(8190, 8200).map(bytes)
RECORDS = st.builds(Written, TEXTS, TEXTS, st.integers(BASE_MS - 10**10, BASE_MS + 10**10))
HEADERS = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple)
BATCHES = st.lists(st.tuples(st.lists(RECORDS, min_size=1, max_size=20), st.none() | st.just(BASE_MS)), max_size=4)


def made(lists: Sequence[tuple[Sequence[Written], int | None]]) -> list[DecompressedBatch]:
    batches, offset = [], 1000
    for records, appended_ms in lists:
        raw = written_batch(offset, records, appended_ms=appended_ms)
        batches.append(DecompressedBatch(RecordBatchHeader.parse(raw, 0), raw[BATCH_OVERHEAD_BYTES:]))
        offset += len(records) + 7
    return batches


def one_by_one(batches: Sequence[DecompressedBatch], wanted: tuple[int, int]) -> list[PlainRecord]:
    records = [one for header, body in batches for one in decode_records(header, body)]
    return [one for one in records if wanted[0] <= one.offset < wanted[1]]


def rows(columns: RecordColumns) -> list[PlainRecord]:
    headers = [tuple((one["key"], one["value"]) for one in each or ()) for each in columns.headers.to_pylist()]
    lists = (columns.offsets, columns.keys, columns.values, columns.timestamps_ms, columns.timestamp_types)
    return [
        PlainRecord._make((*fields, its))
        for *fields, its in zip(*(one.to_pylist() for one in lists), headers, strict=True)
    ]


@given(BATCHES, st.integers(990, 1100), st.integers(0, 300))
def test_columns_hold_what_records_hold(lists: list[tuple[list[Written], int | None]], start: int, count: int) -> None:
    batches = made(lists)
    for wanted in (ALL, (start, start + count)):
        assert rows(decode_columns(batches, wanted)) == one_by_one(batches, wanted)


def test_plain_records_are_not_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = made([([Written(None, b"a"), Written(b"key", None), Written(b"", bytes(20_000))], None)])
    expected = one_by_one(batches, ALL)
    monkeypatch.delattr("topic_reader.columns.decode_records")
    assert rows(decode_columns(batches, ALL)) == expected


@given(st.lists(HEADERS, min_size=1, max_size=5))
def test_headers_are_kept(lists: list[tuple[tuple[str, bytes | None], ...]]) -> None:
    batches = made([([Written(b"k", b"v", headers=one) for one in lists], None)])
    assert rows(decode_columns(batches, ALL)) == one_by_one(batches, ALL)


@given(st.lists(RECORDS, min_size=1, max_size=5), st.data())
def test_damaged_records_are_refused_or_read_like_one_by_one(records: list[Written], data: st.DataObject) -> None:
    [(header, body)] = made([(records, None)])
    damaged = bytearray(body)
    damaged[data.draw(st.integers(0, min(len(body) - 1, 20)))] = data.draw(st.integers(0, 255))
    batches = [DecompressedBatch(header, bytes(damaged[: data.draw(st.integers(0, len(body)))]))]
    try:
        expected = one_by_one(batches, ALL)
    except MalformedMessageError:
        with pytest.raises(MalformedMessageError):
            decode_columns(batches, ALL)
    else:
        assert rows(decode_columns(batches, ALL)) == expected
