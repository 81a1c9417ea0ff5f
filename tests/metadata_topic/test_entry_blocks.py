"""Entry blocks beyond a bound lie on disk, and nobody sees a difference but in memory."""

import contextlib
import errno
import gc
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from metadata_topic.records.records import MetadataRecord
from metadata_topic.store.disk_writes import BlockLostError
from metadata_topic.store.runs import disk_merge, run_index
from metadata_topic.store.runs.disk_chunks import ChunkOnDisk, DiskChunks
from metadata_topic.store.runs.run_chunk import Chunk
from metadata_topic.store.segments.entry_blocks import EntryBlocks, MemoryBound, Place
from metadata_topic.store.snapshots import snapshot
from metadata_topic.store.snapshots.snapshot_keeper import SnapshotKeeper
from metadata_topic.store.store import RemoteWalMetadataStore
from tests.metadata_topic.fake_blobs import FakeBlobs
from tests.metadata_topic.metadata_strategies import DELETED, DELETING, ORDERS, entry, segment, segment_id
from tests.metadata_topic.store_oracles import write_snapshot
from tests.metadata_topic.test_store import histories, picture
from tests.metadata_topic.test_store_memory import OBJECTS, uploaded

HEAD_BYTES = 12
FILE_BYTES = 8 * (100 + HEAD_BYTES)


class Owners:
    """Who has which block."""

    def __init__(self, bound: MemoryBound) -> None:
        self.places: dict[int, Place] = {}
        self.blocks = EntryBlocks(self, bound, FILE_BYTES)

    def place_of(self, owner: int, /) -> Place | None:
        return self.places.get(owner)

    def moved(self, owner: int, place: Place, /) -> None:
        self.places[owner] = place

    def keep(self, count: int, size: int = 100) -> dict[int, bytes]:
        """Each the block that it has from now on."""
        first = max(self.places, default=-1) + 1
        made = {first + number: bytes([number % 251]) * size for number in range(count)}
        for owner, block in made.items():
            self.places[owner] = self.blocks.keep(block, owner)
        return made

    def give_back(self, owner: int) -> None:
        self.blocks.give_back(self.places.pop(owner))

    def read(self) -> dict[int, bytes]:
        return {owner: self.blocks.read(place) for owner, place in self.places.items()}


@pytest.fixture
def owners(tmp_path: Path) -> Owners:
    return Owners(MemoryBound(tmp_path, 0))


def open_files(directory: Path) -> int:
    """Without names there."""
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that the listing itself had
            targets.append(descriptor.readlink())
    return sum(one.is_relative_to(directory) for one in targets)


def test_what_is_beyond_the_bound_lies_on_disk_without_a_name(tmp_path: Path) -> None:
    owners = Owners(MemoryBound(tmp_path, 250))
    made = owners.keep(5)
    assert owners.blocks.memory_bytes == 200
    assert owners.blocks.disk_bytes == 3 * (100 + HEAD_BYTES)
    assert owners.read() == made
    assert list(tmp_path.iterdir()) == []
    owners.give_back(0)
    [owner] = owners.keep(1)
    assert isinstance(owners.places[owner], bytes), "there is room again"


def test_files_go_when_nothing_is_left_of_them(owners: Owners, tmp_path: Path) -> None:
    made = owners.keep(80)
    assert open_files(tmp_path) == 10
    for owner in made:
        owners.give_back(owner)
    assert open_files(tmp_path) == 1
    assert owners.blocks.disk_bytes == 0


def test_few_that_stay_do_not_hold_the_files_of_those_that_went(owners: Owners, tmp_path: Path) -> None:
    made = owners.keep(80)
    for owner in made:
        if owner % 8:
            owners.give_back(owner)
    assert open_files(tmp_path) <= 3
    assert owners.blocks.disk_bytes == 10 * (100 + HEAD_BYTES)
    assert owners.read() == {owner: block for owner, block in made.items() if owner % 8 == 0}


def test_what_cannot_be_moved_stays_where_it_is(
    owners: Owners, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = owners.keep(80)
    kept = {owner: block for owner, block in made.items() if owner % 8 == 0}
    read_whole = os.pread
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", lambda descriptor, size, at: read_whole(descriptor, size, at)[:-1])
        for owner in made.keys() - kept.keys():
            owners.give_back(owner)
    assert owners.read() == kept
    for owner in kept:
        owners.give_back(owner)
    assert open_files(tmp_path) == 1


def test_what_the_disk_refuses_stays_in_memory(tmp_path: Path) -> None:
    owners = Owners(MemoryBound(tmp_path / "gone", 0))
    [block] = owners.keep(1).values()
    assert (owners.places[0], owners.blocks.memory_bytes, owners.blocks.disk_bytes) == (block, 100, 0)


@pytest.mark.parametrize("damaged", [b"", b"\0" * 112])
def test_what_the_disk_gives_otherwise_is_an_error(
    owners: Owners, monkeypatch: pytest.MonkeyPatch, damaged: bytes
) -> None:
    owners.keep(1)
    monkeypatch.setattr(os, "pread", lambda *_: damaged)
    with pytest.raises(BlockLostError):
        owners.read()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(histories())
def test_a_store_on_disk_answers_as_one_in_memory(tmp_path: Path, history: list[MetadataRecord]) -> None:
    in_memory, on_disk = RemoteWalMetadataStore(), RemoteWalMetadataStore(MemoryBound(tmp_path, 0, pages=1))
    for record in history:
        in_memory.apply(record)
        on_disk.apply(record)
    assert on_disk.entry_bytes["memory"] == 0
    assert picture(on_disk) == picture(in_memory)
    assert write_snapshot(on_disk) == write_snapshot(in_memory)
    restored = RemoteWalMetadataStore(MemoryBound(tmp_path, 0))
    restored.restore(on_disk.image())
    assert picture(restored) == picture(in_memory)
    assert restored.entry_bytes == on_disk.entry_bytes


def test_a_streamed_image_has_what_is_deleted_meanwhile(tmp_path: Path) -> None:
    store = RemoteWalMetadataStore(MemoryBound(tmp_path, 0))
    for number in range(3):
        store.apply(segment(number, entry(number * 10, number * 10 + 9)))
    told = list(store.image().segments)
    with store.streamed_image() as image:
        store.apply(segment(1, state=DELETING))
        store.apply(segment(1, state=DELETED))
        assert [one.entry_block for one in image.segments] == [one.entry_block for one in told]
        assert len(image.segments) == 3
        assert store.published_segment(segment_id(1)) is None
    assert store.entry_bytes["disk"] == sum(len(told[at].entry_block) + HEAD_BYTES for at in (0, 2))


@pytest.mark.parametrize("keys", [1, 7, 63, 64, 65, 128, 700])
def test_a_chunk_on_disk_is_the_chunk(tmp_path: Path, keys: int) -> None:
    rows = np.arange(2000)
    chunk = Chunk.build(
        (rows % keys * 3 + 1).astype(np.uint64), rows * 3 % 1000, rows * 3 % 1000 + 5, rows.astype(np.uint32)
    )
    on_disk = ChunkOnDisk.of(chunk, tmp_path)
    for name in ("keys", "bounds", "firsts", "lasts", "reach", "slots"):
        assert np.array_equal(getattr(on_disk.loaded(), name), getattr(chunk, name)), name
    assert np.array_equal(on_disk.keys(), chunk.keys)
    for alive in (rows >= 0, rows < 0, rows % 3 != 0, rows // 100 % 2 == 0):
        left, in_memory, expected = on_disk.swept(alive), chunk.swept(alive), Chunk.merge([chunk], alive)
        assert (left is None) == (in_memory is None) == (expected is None) == (not alive.any())
        assert np.array_equal(on_disk.living_keys(alive), chunk.living_keys(alive))
        if left is not None and in_memory is not None and expected is not None:
            assert (left is on_disk) == (in_memory is chunk) == bool(alive.all())
            read = left.loaded() if isinstance(left, ChunkOnDisk) else left
            for name in ("keys", "bounds", "firsts", "lasts", "reach", "slots"):
                assert np.array_equal(getattr(in_memory, name), getattr(expected, name)), name
                assert np.array_equal(getattr(read, name), getattr(expected, name)), name
    for key in range(3 * keys + 5):
        there, here = next(iter(DiskChunks([on_disk]).rows(key)), None), chunk.rows(key)
        assert (there is None) == (here is None) == (key % 3 != 1 or key >= 3 * keys)
        for high in (key, key + 1, key + 5, key + 200):
            found = [one for one in range(1, 3 * keys, 3) if key <= one < high]
            assert DiskChunks([on_disk]).keys_between(key, high) == chunk.keys_between(key, high) == found
        if there is not None and here is not None:
            assert all(
                np.array_equal(getattr(there, name), getattr(here, name))
                for name in ("firsts", "lasts", "reach", "slots")
            )
    assert list(tmp_path.iterdir()) == []


def test_a_start_from_a_snapshot_takes_no_memory_for_all_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_index, "ON_DISK_ROWS", 1)
    monkeypatch.setattr(run_index, "WAITING_ROWS", 1 << 10)
    monkeypatch.setattr(disk_merge, "STEP_ROWS", 1 << 10)
    monkeypatch.setattr(snapshot, "_SECTION_BYTES", 1 << 16)
    saved, blobs = RemoteWalMetadataStore(), FakeBlobs()
    for sequence in range(OBJECTS):
        saved.apply(uploaded(sequence, 100))
    SnapshotKeeper(blobs, "cluster", 1, 1).save(saved.image(), now_ms=1)
    all_bytes = saved.entry_bytes["memory"]
    tracemalloc.start()
    try:
        image = SnapshotKeeper(blobs, "cluster", 1, 1, spool_directory=tmp_path).load()
        assert image is not None
        store = RemoteWalMetadataStore(MemoryBound(tmp_path, 0, pages=1))
        store.restore(image)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert store.entry_bytes == {"memory": 0, "disk": all_bytes + HEAD_BYTES * OBJECTS}
    assert peak < all_bytes / 2


def test_what_is_in_objects_takes_no_memory_and_they_themselves_next_to_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_index, "ON_DISK_ROWS", 1)
    monkeypatch.setattr(run_index, "WAITING_ROWS", 1 << 12)
    records = [uploaded(sequence, 40) for sequence in range(OBJECTS)]

    def filled() -> RemoteWalMetadataStore:
        store = RemoteWalMetadataStore(MemoryBound(tmp_path, 0, pages=1))
        for record in records:
            store.apply(record)
        assert len(store.topic_id_partitions()) == 40
        return store

    filled()  # what is made once for all is not counted
    tracemalloc.start()
    try:
        store = filled()
        gc.collect()
        of_each = tracemalloc.get_traced_memory()[0] / OBJECTS
        assert store.entry_bytes["memory"] == 0
    finally:
        tracemalloc.stop()
    assert of_each <= 250, "most of it for the index's last rows, however many objects there are"


def test_what_could_not_be_read_back_once_is_found_when_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RemoteWalMetadataStore(MemoryBound(tmp_path, 0))
    for number in range(3):
        store.apply(segment(number, entry(number * 10, number * 10 + 9)))

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        with pytest.raises(OSError, match="Input/output"):
            store.entries_covering(ORDERS, 15)
        with pytest.raises(OSError, match="Input/output"):
            store.apply(segment(1, state=DELETING))
    assert [found.combined_segment_id for found in store.entries_covering(ORDERS, 15)] == [segment_id(1)]
