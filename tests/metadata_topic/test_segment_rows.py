"""Rows of segments that were not used for long lie on disk, and nobody sees a difference but in memory."""

import errno
import os
import random
from pathlib import Path

import pytest

from metadata_topic.store.disk_writes import BlockLostError
from metadata_topic.store.segments.entry_blocks import MemoryBound
from metadata_topic.store.segments.segment_rows import PAGE_BYTES, PAGE_ROWS, Row, SegmentRows
from metadata_topic.store.segments.shared_values import SharedValues
from metadata_topic.store.store import RemoteWalMetadataStore
from tests.metadata_topic.metadata_strategies import (
    DELETED,
    DELETING,
    FINISHED,
    ORDERS,
    PAYMENTS,
    STARTED,
    entry,
    segment,
    segment_id,
)
from tests.metadata_topic.store_oracles import write_snapshot

NOTHING = Row(0, 0, 0, 0, 0, 0, 0, 0)


def row_of(number: int) -> Row:
    return Row(1 + number % 4, number, -number, 2**40 + number, number, 2 * number, 3 * number, 2**32 - 1 - number)


@pytest.fixture
def rows(tmp_path: Path) -> SegmentRows:
    return SegmentRows(MemoryBound(tmp_path, 0, pages=2))


def filled(rows: SegmentRows, pages: int) -> list[int]:
    """Each with its number in it."""
    made = [rows.make_page() * PAGE_ROWS + 17 for _ in range(pages)]
    for row in made:
        rows.write(row, row_of(row))
    return made


def test_what_was_pushed_out_is_read_back(rows: SegmentRows, tmp_path: Path) -> None:
    made = filled(rows, 9)
    assert rows.disk_bytes == 9 * PAGE_BYTES
    assert [rows.read(row) for row in made] == [row_of(row) for row in made]
    assert rows.read(made[0] + 1) == NOTHING
    assert [int(rows.page(row // PAGE_ROWS)["custom_metadata"][17]) for row in made] == made
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_is_made_again_is_empty(rows: SegmentRows) -> None:
    made = filled(rows, 9)
    rows.free_page(made[3] // PAGE_ROWS)
    assert rows.make_page() == made[3] // PAGE_ROWS
    assert rows.read(made[3]) == NOTHING


@pytest.mark.parametrize("damaged", [b"", b"\0" * PAGE_BYTES])
def test_what_the_disk_gives_otherwise_is_an_error(
    rows: SegmentRows, monkeypatch: pytest.MonkeyPatch, damaged: bytes
) -> None:
    made = filled(rows, 9)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", lambda *_: damaged)
        with pytest.raises(BlockLostError):
            rows.read(made[0])
        with pytest.raises(BlockLostError):
            rows.page(made[0] // PAGE_ROWS)
    assert rows.read(made[0]) == row_of(made[0])


def test_what_the_disk_refuses_stays_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = SegmentRows(MemoryBound(tmp_path / "gone", 0, pages=2))
    made = filled(rows, 9)
    assert [rows.read(row) for row in made] == [row_of(row) for row in made]
    assert rows.disk_bytes == 0


def test_a_value_has_its_number_until_the_last_has_given_it_back() -> None:
    values = SharedValues()
    one, other = values.take(b"one"), values.take(b"other")
    assert (values.take(b"one"), values.take(b"")) == (one, 0)
    values.give_back(one)
    assert (values.value(one), values.value(other), values.value(0)) == (b"one", b"other", b"")
    values.give_back(one)
    assert values.take(b"third") == one
    assert values.take(b"one") not in (one, other, 0)
    assert len(values) == 4


def answers(store: RemoteWalMetadataStore, rng: random.Random) -> list[object]:
    asked = [segment_id(rng.randrange(1500), broker_id=rng.randrange(1, 4)) for _ in range(50)]
    offsets = [rng.randrange(1500 * 10) for _ in range(50)]
    return [
        [(one, store.state_of(one), store.published_segment(one)) for one in asked],
        [store.entries_covering(partition, offset) for partition in (ORDERS, PAYMENTS) for offset in offsets],
        list(store.published_segments()),
        [one.combined_segment_id for one in store.published_segments(FINISHED, 2)],
        store.tallies(),
        store.totals(),
        [store.told_until_ms(broker_id) for broker_id in range(5)],
    ]


@pytest.mark.parametrize("seed", range(6))
def test_a_store_whose_segments_are_on_disk_answers_as_one_in_memory(tmp_path: Path, seed: int) -> None:
    """Of three writers, whose objects come and go as an agent's do: the oldest first, but for a few that stay."""
    rng = random.Random(seed)
    in_memory, on_disk = RemoteWalMetadataStore(), RemoteWalMetadataStore(MemoryBound(tmp_path, 2000, pages=1))
    there: list[tuple[int, int]] = []
    for sequence in range(1500):
        broker_id = rng.randrange(1, 4)
        partition, first = rng.choice([ORDERS, PAYMENTS]), sequence * 10
        told = [segment(sequence, state=STARTED, broker_id=broker_id)]
        told += [segment(sequence, entry(first, first + 9, partition=partition), broker_id=broker_id)]
        there.append((sequence, broker_id))
        while len(there) > 500:
            gone = there.pop(rng.choice([0, 0, 0, 7]))
            for state in (DELETING, DELETED)[: rng.choice([1, 2, 2, 2])]:
                told.append(segment(gone[0], state=state, broker_id=gone[1]))
        for record in told:
            in_memory.apply(record)
            on_disk.apply(record)
        if sequence % 500 == 499:
            asking = rng.random()
            assert answers(on_disk, random.Random(asking)) == answers(in_memory, random.Random(asking))
            assert write_snapshot(on_disk) == write_snapshot(in_memory)
            on_disk.restore(on_disk.image())
    assert on_disk.entry_bytes["disk"] > 0
    for sequence, broker_id in there:
        in_memory.apply(segment(sequence, state=DELETED, broker_id=broker_id))
        on_disk.apply(segment(sequence, state=DELETED, broker_id=broker_id))
    assert answers(on_disk, random.Random(1)) == answers(in_memory, random.Random(1))


def test_what_cannot_be_read_back_is_an_error_and_not_an_object_that_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RemoteWalMetadataStore(MemoryBound(tmp_path, 0, pages=1))
    for broker_id in (1, 2):
        store.apply(segment(1, entry(10, 19), broker_id=broker_id))

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        for ask in (store.state_of, store.segment, store.published_segment):
            with pytest.raises(OSError, match="Input/output"):
                ask(segment_id(1, broker_id=1))
        with pytest.raises(OSError, match="Input/output"):
            list(store.published_segments(broker_id=1))
        with pytest.raises(OSError, match="Input/output"):
            store.apply(segment(1, state=DELETED, broker_id=1))
    assert store.state_of(segment_id(1, broker_id=1)) is FINISHED
    assert len(store.entries_covering(ORDERS, 15)) == 2


def test_a_streamed_image_reads_what_was_deleted_from_pages_that_were_pushed_out(tmp_path: Path) -> None:
    store = RemoteWalMetadataStore(MemoryBound(tmp_path, 0, pages=1))
    for broker_id in (1, 2, 3):
        store.apply(segment(1, entry(10, 19), broker_id=broker_id))
    told = list(store.published_segments())
    with store.streamed_image() as image:
        for broker_id in (1, 3):
            store.apply(segment(1, state=DELETED, broker_id=broker_id))
        assert list(image.segments) == told
        assert [one.combined_segment_id.broker_id for one in store.published_segments()] == [2]
    store.apply(segment(1, state=DELETED, broker_id=2))
    assert store.entry_bytes == {"memory": 0, "disk": 0}
