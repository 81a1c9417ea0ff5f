"""The index of runs against a plain search."""

import pickle
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.offset_ranges import joined_ranges, ranges_common
from metadata_topic.records.records import encode_entries
from metadata_topic.store.disk_writes import BlockLostError
from metadata_topic.store.runs import disk_merge, run_index
from metadata_topic.store.runs.disk_chunks import _KEY, _ROW, ChunkOnDisk, _File
from metadata_topic.store.runs.run_chunk import Chunk
from metadata_topic.store.runs.run_index import RunIndex
from metadata_topic.store.segments.segment_rows import Row
from metadata_topic.store.segments.segment_table import NOT_INDEXED, Segment
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from tests.metadata_topic.metadata_strategies import FINISHED, ORDERS, PAYMENTS, entry, segment_id

SEGMENTS = 3_000


class Indexed:
    """Segments by their rows, and the index of their runs."""

    def __init__(self, waiting_rows: int | None = None, directory: Path | None = None) -> None:
        self.segments: dict[int, Segment] = {}
        self.index = RunIndex(self.segments.__getitem__, waiting_rows, directory)

    def add(self, segment: Segment, entries: Sequence[RemoteLogSegmentMetadataEntry]) -> None:
        self.segments[segment.row] = segment
        self.index.add(segment, encode_entries(tuple(entries)))

    def remove(self, segment: Segment, entries: Sequence[RemoteLogSegmentMetadataEntry]) -> None:
        self.index.remove(segment, len(entries))
        del self.segments[segment.row]


def segment_of(sequence: int) -> Segment:
    row = Row(FINISHED + 1, 0, 0, 0, 0, 0, 0, NOT_INDEXED)
    return Segment(segment_id(sequence), 10 * SEGMENTS - sequence, row, b"", b"")


def random_segments(rng: random.Random, count: int) -> dict[Segment, list[RemoteLogSegmentMetadataEntry]]:
    found = {}
    for sequence in range(count):
        entries = [
            entry(
                first := rng.choice([rng.randrange(1000), rng.randrange(2**40, 2**40 + 1000)]),
                first + rng.choice([0, 3, 40, 400]),
                epoch=rng.randrange(-1, 2),
                partition=rng.choice([ORDERS, PAYMENTS]),
            )
            for _ in range(rng.randrange(0, 5))
        ]
        found[segment_of(sequence)] = entries
    return found


@pytest.mark.parametrize("waiting_rows", [1, 7, 1000])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_overlapping_runs_are_found_while_they_are_added_and_removed(
    seed: int, waiting_rows: int, *, is_on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(run_index, "ON_DISK_ROWS", 30)
    monkeypatch.setattr(run_index, "SWEEP_FROM_ROWS", rng.choice([5, 100]))
    monkeypatch.setattr(disk_merge, "TOGETHER", 2)
    monkeypatch.setattr(disk_merge, "STEP_ROWS", 16)
    indexed, there = (
        Indexed(waiting_rows, tmp_path if is_on_disk else None),
        dict[Segment, list[RemoteLogSegmentMetadataEntry]](),
    )
    index = indexed.index
    to_come = list(random_segments(rng, 300).items())
    while to_come or there:
        for segment, entries in [to_come.pop() for _ in range(min(len(to_come), rng.randrange(20)))]:
            indexed.add(segment, entries)
            there[segment] = entries
        for segment in rng.sample(list(there), min(len(there), rng.randrange(18))):
            indexed.remove(segment, there.pop(segment))
        runs = [(e, segment) for segment, entries in there.items() for e in entries]
        assert set(index.partitions()) == {e.topic_id_partition for e, _ in runs}
        for key in [(p, epoch) for p in (ORDERS, PAYMENTS) for epoch in range(-1, 2)]:
            own = [(e.first_offset, e.last_offset, s) for e, s in runs if (e.topic_id_partition, e.leader_epoch) == key]
            assert not own or key[1] in index.epochs(key[0])
            for offset in (0, 500, rng.randrange(1400), 2**40 + rng.randrange(1400)):
                covering = [run for run in own if run[0] <= offset <= run[1]]
                assert sorted(index.covering(*key, offset), key=repr) == sorted(covering, key=repr)
                reaching = [run for run in own if run[1] >= offset]
                assert sorted(index.reaching(*key, offset), key=repr) == sorted(reaching, key=repr)
            bounds = (begin := rng.randrange(900), begin + rng.choice([200, 2**41]))
            dead_from = {run[2].slot: run[0] + 2 for run in own if run[2].segment_id.sequence % 7 == 0}
            held = [(first, min(last + 1, dead_from.get(s.slot, last + 1))) for first, last, s in own]
            assert index.ranges(*key, bounds, dead_from) == joined_ranges(ranges_common(bounds, held))


def test_what_is_dead_ends_what_a_segment_holds() -> None:
    indexed = Indexed()
    dying, whole = segment_of(1), segment_of(2)
    indexed.add(dying, [entry(10, 90)])
    indexed.add(whole, [entry(0, 30)])
    for end, behind in ((91, 91), (50, 50), (20, 31), (10, 31), (0, 31)):
        assert indexed.index.ranges(ORDERS, 0, (0, 2**62), {dying.slot: end}) == [(0, behind)]


def test_any_bit_that_the_disk_gives_back_otherwise_than_it_was_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = np.array([1 << 32, 1 << 32, 2 << 32], dtype=np.uint64)
    firsts = np.array([0, 10, 0], dtype=np.int64)
    on_disk = ChunkOnDisk.of(Chunk.build(keys, firsts, firsts + 9, np.array([0, 1, 2], dtype=np.uint32)), tmp_path)
    size = 3 * _ROW.itemsize + 3 * _KEY.itemsize
    content = on_disk._file.read(0, size)  # noqa: SLF001
    monkeypatch.setattr(_File, "read", lambda _file, start, length: content[start : start + length])
    assert on_disk.between(0, 1 << 40) is not None
    whole = content
    for bit in range(8 * size):
        content = (int.from_bytes(whole, "big") ^ (1 << bit)).to_bytes(size, "big")
        with pytest.raises(BlockLostError):
            on_disk.between(0, 1 << 40)
        with pytest.raises(BlockLostError):
            on_disk.loaded()


def test_a_segment_that_comes_and_goes_leaves_nothing_behind() -> None:
    indexed = Indexed(waiting_rows=8)
    highest_slot = 0
    for sequence in range(SEGMENTS):
        partition = TopicIdPartition(TopicId(b"orders".ljust(16)), sequence)
        segment, entries = segment_of(sequence), [entry(sequence, sequence + 1, partition=partition)]
        indexed.add(segment, entries)
        highest_slot = max(highest_slot, segment.slot)
        if sequence % 2:
            indexed.index.epochs(partition)  # a search sorts what waits
        indexed.remove(segment, entries)
    assert indexed.index.partitions() == []
    assert highest_slot < SEGMENTS // 10
    assert len(pickle.dumps(vars(indexed.index))) < 10 * SEGMENTS, "what it holds, in bytes"


def test_large_pieces_on_disk_become_few_and_no_run_is_lost_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As time goes on: the oldest segments go, but for a few, while the newest come."""
    monkeypatch.setattr(run_index, "ON_DISK_ROWS", 64)
    monkeypatch.setattr(disk_merge, "STEP_ROWS", 64)
    rng = random.Random(5)
    indexed, there = Indexed(8, tmp_path), dict[int, Segment]()
    pieces, merged = [], 0
    for sequence in range(6000):
        partition = TopicIdPartition(TopicId(b"orders".ljust(16)), sequence % 40)
        segment, entries = segment_of(sequence), [entry(sequence, sequence, partition=partition)]
        indexed.add(segment, entries)
        there[sequence] = segment
        if len(there) > 4000 and rng.random() < 0.9:
            gone = next(iter(there))
            indexed.remove(there.pop(gone), entries)
        pieces.append(len(list(vars(indexed.index)["_on_disk"])))
        merged += pieces[-1] < pieces[-2] if sequence else 0
        if sequence % 500 == 499:
            for number in range(40):
                own = [one for one in there if one % 40 == number]
                held = joined_ranges([(one, one + 1) for one in own])
                partition = TopicIdPartition(TopicId(b"orders".ljust(16)), number)
                assert indexed.index.ranges(partition, 0, (0, 2**62), {}) == held
                found = indexed.index.reaching(partition, 0, 0)
                assert sorted(run.segment.segment_id.sequence for run in found) == sorted(own)
    assert merged >= 3
    assert max(pieces) < 6000 / 64 / 2
