"""The store's file: what a restart finds in it, and what becomes of one that fails."""

import gc
import multiprocessing
import random
import shutil
import sqlite3
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.errors import SnapshotError
from metadata_topic.records.records import (
    MetadataRecord,
    PublishableRecord,
    PublishedSegment,
    RemoteWalNodeRegistration,
    UnknownRecord,
)
from metadata_topic.records.topic_doubt import TopicDoubt
from metadata_topic.store import released_offsets, run_index, segment_table
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.segment_table import StoreLostError
from metadata_topic.store.snapshots.archive_snapshot import keep_archive
from metadata_topic.store.snapshots.snapshot import read_image
from metadata_topic.store.store import FILE_NAME, RemoteWalMetadataStore, StoreFile
from tests.metadata_topic.archive_strategies import committed, object_id
from tests.metadata_topic.metadata_strategies import (
    DELETED,
    DELETING,
    FINISHED,
    ORDERS,
    dead,
    entry,
    segment,
    segment_id,
    with_digests,
)
from tests.metadata_topic.store_oracles import write_snapshot
from tests.metadata_topic.test_store import histories, picture

CHAIN = LeaderEpochs([(0, 0)])
RECORDS: list[PublishableRecord] = [
    *(segment(number, entry(number * 10, number * 10 + 9)) for number in range(20)),
    dead(3, entry(35, 39)),
    RemoteWalNodeRegistration(1, 1, 1, 5),
    segment(0, state=DELETING),
    segment(0, state=DELETED),
]


def file_in(directory: Path, cluster_id: str = "c") -> StoreFile:
    return StoreFile(directory, cluster_id, 0)


def filled(directory: Path, records: Iterable[MetadataRecord] = RECORDS) -> RemoteWalMetadataStore:
    store = RemoteWalMetadataStore(file_in(directory))
    store.apply_all([(record, (0, at)) for at, record in enumerate(records)])
    return store


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories(), waiting_rows=st.sampled_from([1, 6, 1 << 16]), rng=st.randoms(use_true_random=False))
def test_a_restart_continues_with_all_that_was_known(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    history: list[MetadataRecord],
    waiting_rows: int,
    rng: random.Random,
) -> None:
    monkeypatch.setattr(run_index, "WAITING_ROWS", waiting_rows)
    monkeypatch.setattr(released_offsets, "WAITING_ROWS", waiting_rows)
    monkeypatch.setattr(run_index, "_SWEEP_FROM_RUNS", 0)
    file_in(tmp_path).remove()
    in_memory, on_disk = RemoteWalMetadataStore(), RemoteWalMetadataStore(file_in(tmp_path))
    for at, record in enumerate(history):
        in_memory.apply(record, (0, at))
        on_disk.apply(record, (0, at))
        if rng.random() < 0.3:
            on_disk = RemoteWalMetadataStore(file_in(tmp_path))
    assert picture(on_disk) == picture(in_memory)
    assert (on_disk.progress, on_disk.image().dead) == (in_memory.progress, in_memory.image().dead)
    assert set(on_disk.image().released) == set(in_memory.image().released)
    on_disk.restore(read_image(write_snapshot(in_memory)))
    assert picture(RemoteWalMetadataStore(file_in(tmp_path))) == picture(in_memory)


@given(
    st.lists(st.tuples(st.integers(0, 400), st.sampled_from([0, 3, 70, 300]), st.booleans()), max_size=30),
    st.integers(0, 500),
    st.integers(1, 500),
    st.sampled_from([1, 7, 1 << 16]),
)
def test_searches_agree_with_a_look_at_all_runs(
    runs: list[tuple[int, int, bool]], begin: int, length: int, waiting_rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_index, "WAITING_ROWS", waiting_rows)
        patch.setattr(run_index, "_SWEEP_FROM_RUNS", 0)
        patch.setattr(run_index, "_SPAN_RUNS_MAX", 3)
        patch.setattr(run_index, "_SWEPT_SPANS", 2)
        store = RemoteWalMetadataStore()
        for number, (first, width, is_gone) in enumerate(runs):
            store.apply(segment(number, entry(first, first + width)))
            if number % 4 == 3:
                assert store.count_by_state()  # whoever asks makes the store write
            if is_gone:
                store.apply(segment(number, state=DELETED))
        living = [(number, first, first + width) for number, (first, width, gone) in enumerate(runs) if not gone]
        end = begin + length
        found = store.entries_covering(ORDERS, begin)
        holding = {number for number, first, last in living if first <= begin <= last}
        assert {one.combined_segment_id.sequence for one in found} == holding
        bounded = LeaderEpochs([(0, 0), (1, end)])
        stored = {offset for a, b in store.stored_ranges(ORDERS, bounded, begin) for offset in range(a, b)}
        held = {offset for _, first, last in living for offset in range(first, last + 1)}
        assert stored == held & set(range(begin, end))
        assert store.topic_id_partitions() == ([ORDERS] if living else [])


def test_a_batch_that_was_not_written_whole_is_as_if_it_had_not_been_read(tmp_path: Path) -> None:
    known = picture(filled(tmp_path))
    left = tmp_path / "left"
    left.mkdir()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("DELETE FROM segments")
        connection.execute("UPDATE blocks SET block = zeroblob(20000)")
        for file in tmp_path.glob(f"{FILE_NAME}*"):
            shutil.copy(file, left)
    after = RemoteWalMetadataStore(file_in(left))
    assert (picture(after), after.progress) == (known, {0: len(RECORDS)})


def test_records_that_another_release_may_read_are_read_again_after_a_restart(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.apply(UnknownRecord("foreign_key", "hello"), (0, len(RECORDS)))
    assert RemoteWalMetadataStore(file_in(tmp_path)).progress == {0: len(RECORDS) + 1}
    store = RemoteWalMetadataStore(file_in(tmp_path))
    store.apply(UnknownRecord("version", "of another release"), (0, len(RECORDS) + 1))
    again = RemoteWalMetadataStore(file_in(tmp_path))
    assert (again.progress, dict(again.topic.doubts)) == ({}, {})


@pytest.mark.parametrize("row", [b"\x07newer", b""])
def test_a_file_whose_archive_cannot_be_read_is_in_doubt(row: bytes, tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.keep_also("archive", lambda: [("00", (struct.pack(">II", 16, 6) + bytes(16) + row).hex())])
    store.apply_all([(None, (0, len(RECORDS)))])
    again = RemoteWalMetadataStore(file_in(tmp_path))
    keep_archive(again, ArchiveStore())
    assert list(again.topic.doubts) == [TopicDoubt.UNREADABLE]


def test_what_was_declared_and_what_the_topic_does_not_tell_outlives_a_restart(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.topic.reads(TopicId(b"one".ljust(16)), {0: 100})
    store.begin_anew()
    store.topic.reads(TopicId(b"other".ljust(16)), {0: 100})
    store.apply_all([(None, (0, 0))])
    again = RemoteWalMetadataStore(file_in(tmp_path))
    assert list(again.topic.doubts) == [TopicDoubt.BEGAN_ANEW]
    assert again.topic.reads(TopicId(b"other".ljust(16)), {0: 100})
    again.apply(UnknownRecord("version", "of another release"), (0, 1))
    again = RemoteWalMetadataStore(file_in(tmp_path))
    assert set(again.topic.doubts) == {TopicDoubt.BEGAN_ANEW, TopicDoubt.UNREADABLE}
    chain = LeaderEpochs([(0, 0), (1, 35)])
    assert (segment_id(3), 35) in [(run.combined_segment_id, at) for run, at in again.outside_of(ORDERS, chain)]


def test_the_archive_is_kept_in_the_same_file(tmp_path: Path) -> None:
    store, archive = RemoteWalMetadataStore(file_in(tmp_path)), ArchiveStore()
    keep_archive(store, archive)
    record = committed(object_id(1, 0, 9))
    archive.apply(record)
    store.apply_all([(None, (0, 0))])
    archive.registered(record.object_id.writer_id.broker_id, 999, 0)
    store.apply_all([(RemoteWalNodeRegistration(record.object_id.writer_id.broker_id, 999, 1, 5), (0, 1))])
    store, archive = RemoteWalMetadataStore(file_in(tmp_path)), ArchiveStore()
    keep_archive(store, archive)
    assert archive.committed(record.object_id) == record
    archive.apply(committed(object_id(2, 10, 19)))
    assert archive.committed(object_id(2, 10, 19)) is None, "it is of a fenced agent"


def test_a_streamed_image_has_what_is_deleted_meanwhile(tmp_path: Path) -> None:
    store = filled(tmp_path)
    told = list(store.image().segments)
    with store.streamed_image() as image:
        store.apply(segment(1, state=DELETED))
        assert list(image.segments) == told
        assert len(image.segments) == len(told)
        assert store.published_segment(segment_id(1)) is None


def test_a_snapshot_that_ends_half_way_leaves_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path)
    image = store.image()

    class Lost(list[PublishedSegment]):
        def __iter__(self) -> Iterator[PublishedSegment]:
            yield from list(image.segments)[:5]
            raise SnapshotError("read", "-", "planted")

    with pytest.raises(SnapshotError):
        store.restore(replace(image, segments=Lost(image.segments)))
    assert (store.progress, list(store.published_segments())) == ({}, [])
    again = RemoteWalMetadataStore(file_in(tmp_path))
    assert (again.progress, list(again.published_segments())) == ({}, [])


def left_by_a_stopped_agent(directory: Path) -> Path:
    """The file alone, with all that was in its WAL, in a directory of its own."""
    left = directory / "left"
    left.mkdir()
    with closing(sqlite3.connect(directory / FILE_NAME)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return Path(shutil.copy(directory / FILE_NAME, left))


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20_000])


def overwritten(path: Path) -> None:
    path.write_bytes(b"\xff" * 100 + path.read_bytes()[100:])


def of_another_format(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")


def made_by_somebody_else(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE segments (other)")


def without_pages(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: 1 << 14] + bytes(len(whole) - (1 << 14)))


def without_progress(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM facts WHERE kind = 'progress'")


HARMS = [torn, overwritten, without_pages, of_another_format, made_by_somebody_else, without_progress]


@pytest.mark.parametrize("harm", HARMS)
def test_a_file_that_cannot_be_used_is_removed_and_known_for_empty(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    filled(tmp_path)
    file = left_by_a_stopped_agent(tmp_path)
    harm(file)
    with structlog.testing.capture_logs() as told:
        again = filled(file.parent, RECORDS[:3])
    unreadable = [one["event"] for one in told if one["log_level"] == "error"]
    assert unreadable == ["metadata_store_unreadable"] * (harm is not without_progress)
    assert again.progress == {0: 3}
    assert len(list(again.published_segments())) == 3
    assert RemoteWalMetadataStore(file_in(file.parent)).progress == {0: 3}


def test_the_file_of_another_cluster_is_not_used(tmp_path: Path) -> None:
    filled(tmp_path)
    assert RemoteWalMetadataStore(file_in(tmp_path, "other")).progress == {}


def test_damage_is_never_answered_with_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_index, "WAITING_ROWS", 8)
    known = picture(filled(tmp_path))
    file = left_by_a_stopped_agent(tmp_path)
    whole = file.read_bytes()
    rng, lost = random.Random(5), 0
    for at in rng.sample([at for at in range(0, len(whole), 61) if whole[at]], 25):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
        try:
            again = RemoteWalMetadataStore(file_in(file.parent))
            assert again.progress == {} or picture(again) == known
            lost += not again.progress
        except StoreLostError:
            lost += 1
            assert not file.exists()
            with pytest.raises(StoreLostError):
                again.count_by_state()
            assert again.failure is not None
    assert lost


CHANGES = [
    "UPDATE segments SET state = 3",
    "UPDATE segments SET sequence = sequence + 100",
    "UPDATE spans SET first_offset = first_offset + 1",
    "UPDATE spans SET base = base + 1",
    "UPDATE spans SET last_offset = last_offset + 1",
    "UPDATE blocks SET number = number + 100",
    "UPDATE blocks SET block = (SELECT block FROM blocks WHERE number = 3)",
    "DELETE FROM blocks WHERE number > 15",
    "UPDATE facts SET key = 'x'",
]


@pytest.mark.parametrize("change", CHANGES)
def test_changed_columns_are_never_taken_for_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(run_index, "WAITING_ROWS", 8)
    whole = filled(tmp_path)
    known = whole.stored_ranges(ORDERS, CHAIN), list(whole.published_segments())
    file = left_by_a_stopped_agent(tmp_path)
    with sqlite3.connect(file) as connection:
        assert connection.execute(change).rowcount > 0
    connection.close()
    again = RemoteWalMetadataStore(file_in(file.parent))
    if again.progress == {}:
        assert again.counters == {"files_unreadable": 1}
        return
    try:  # what does not read the changed rows may be answered
        assert again.stored_ranges(ORDERS, CHAIN) == known[0]
        assert list(again.published_segments()) == known[1]
        raise AssertionError("it was not seen")
    except StoreLostError:
        assert not file.exists()


def test_a_closed_store_leaves_the_file_to_the_next(tmp_path: Path) -> None:
    closed, known = filled(tmp_path, RECORDS[:2]), picture(filled(tmp_path / "missing"))
    closed.close()
    following = filled(tmp_path)
    with pytest.raises(StoreLostError, match="closed"):
        closed.count_by_state()
    closed.close()
    assert picture(following) == known
    assert picture(RemoteWalMetadataStore(file_in(tmp_path))) == known


def test_without_a_wal_everything_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OnANetworkDisk(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            return super().execute(sql.replace("journal_mode = WAL", "journal_mode = DELETE"), *parameters)

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=OnANetworkDisk))
        store = filled(tmp_path)
    assert store.progress == {0: len(RECORDS)}
    assert not list(tmp_path.iterdir())


def test_what_was_released_is_known_after_a_restart_and_its_blocks_are_not_kept_for_ever(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert store.released_up_to(ORDERS, CHAIN) == 10
    store.apply_all((segment(1, state=state), (0, 100)) for state in (DELETING, DELETED))
    store = RemoteWalMetadataStore(file_in(tmp_path))
    assert store.released_up_to(ORDERS, CHAIN) == 20
    store.apply_all((segment(2, state=state), (0, 101)) for state in (DELETING, DELETED))
    assert store.released_up_to(ORDERS, CHAIN) == 30
    store.apply_all([(None, (0, 102))])
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("SELECT count(*) FROM blocks").fetchall() == [(17,)]
        assert not connection.execute("SELECT number FROM released").fetchall()


def test_a_full_disk_ends_the_store_and_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OnASmallDisk(sqlite3.Connection):
        def commit(self) -> None:
            self.execute("PRAGMA max_page_count = 20")
            super().commit()

    connect = sqlite3.connect
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", partial(connect, factory=OnASmallDisk))
        store = filled(tmp_path)
    entries = [entry(at, at + 1) for at in range(500)]
    with pytest.raises(StoreLostError, match="full"):
        store.apply_all((segment(number, *entries), (0, number)) for number in range(100, 300))
    with pytest.raises(StoreLostError, match="full"):
        store.state_of(segment_id(1))
    with structlog.testing.capture_logs() as told:
        in_memory = filled(tmp_path)
    assert [one["event"] for one in told] == ["metadata_store_in_memory"]
    assert picture(in_memory) == picture(filled(tmp_path / "missing"))
    assert not list(tmp_path.iterdir()), "the next file would soon be as large as the lost one"
    assert filled(tmp_path).progress == {0: len(RECORDS)}
    assert RemoteWalMetadataStore(file_in(tmp_path)).progress == {0: len(RECORDS)}


def test_two_processes_never_answer_from_one_file(tmp_path: Path) -> None:
    one, other = filled(tmp_path, RECORDS[:2]), RemoteWalMetadataStore(file_in(tmp_path))
    assert other.state_of(segment_id(1)) is FINISHED
    one.apply(RECORDS[2], (0, 2))
    for _ in range(2):
        with pytest.raises(StoreLostError, match="another process"):
            other.state_of(segment_id(1))
    assert RemoteWalMetadataStore(file_in(tmp_path)).progress == {}


def numbered_record(at: int) -> MetadataRecord:
    """A history in which some ten segments of twenty entries live at a time."""
    number, what = divmod(at, 3)
    if what == 0:
        partitions = (TopicIdPartition(ORDERS.topic_id, partition) for partition in range(20))
        return segment(number, *(entry(number * 9, number * 9 + 9, partition=one) for one in partitions))
    return segment(max(number - 10, 0), state=DELETING if what == 1 else DELETED)


def write_for_ever(directory: Path, told: Connection) -> None:
    store = RemoteWalMetadataStore(file_in(directory))
    for at in count(store.progress.get(0, 0)):
        store.apply(numbered_record(at), (0, at))
        told.send(at)


def test_what_was_read_outlives_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_index, "WAITING_ROWS", 100)
    monkeypatch.setattr(run_index, "_SWEEP_FROM_RUNS", 50)
    monkeypatch.setattr(segment_table, "_CHECKPOINT_BYTES", 1 << 18)
    context, rng, in_memory, applied = (
        multiprocessing.get_context("fork"),
        random.Random(3),
        RemoteWalMetadataStore(),
        0,
    )
    for _ in range(3):
        told, telling = context.Pipe(duplex=False)
        process = context.Process(target=write_for_ever, args=(tmp_path, telling))
        process.start()
        for _ in range(rng.randrange(1, 60)):
            at = told.recv()
        process.kill()
        process.join()
        while told.poll():
            at = told.recv()
        known = RemoteWalMetadataStore(file_in(tmp_path))
        assert known.progress[0] in (at + 1, at + 2)
        for at in range(applied, known.progress[0]):
            in_memory.apply(numbered_record(at), (0, at))
        applied = known.progress[0]
        assert picture(known) == picture(in_memory)
        del known
        gc.collect()  # no connection may be open over a fork


def test_readers_beside_the_writer_see_whole_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_index, "WAITING_ROWS", 8)
    monkeypatch.setattr(segment_table, "_CHECKPOINT_BYTES", 1 << 16)
    store, found = RemoteWalMetadataStore(file_in(tmp_path)), set[int]()
    chain, is_written, failures = LeaderEpochs([(0, 0)]), threading.Event(), list[BaseException]()

    def read() -> None:
        try:
            while not is_written.is_set():
                image, stored = store.image(), store.stored_ranges(ORDERS, chain)
                numbers = [known.combined_segment_id.sequence for known in image.segments]
                assert numbers == list(range(image.progress.get(0, 0)))
                assert len(numbers) % 2 == 0
                [(begin, end)] = stored or [(0, 0)]
                assert begin == 0
                assert end % 20 == 0
                assert end >= len(numbers) * 10
                found.add(len(numbers))
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for first in range(0, 400, 2):
        pair = (first, first + 1)
        store.apply_all((segment(at, entry(at * 10, at * 10 + 9)), (0, at)) for at in pair)
    is_written.set()
    for reader in readers:
        reader.join()
    assert not failures, failures
    assert found


def test_the_file_does_not_grow_with_what_came_and_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_index, "WAITING_ROWS", 500)
    monkeypatch.setattr(released_offsets, "WAITING_ROWS", 500)
    monkeypatch.setattr(run_index, "_SWEEP_FROM_RUNS", 100)
    monkeypatch.setattr(segment_table, "_CHECKPOINT_BYTES", 1 << 18)
    store, sizes = RemoteWalMetadataStore(file_in(tmp_path)), []
    partitions = [TopicIdPartition(ORDERS.topic_id, number) for number in range(40)]
    for number in range(600):
        store.apply(segment(number, *(entry(number, number, partition=one) for one in partitions)))
        if number >= 100:
            for state in (DELETING, DELETED):
                store.apply(segment(number - 100, state=state))
        sizes.append(store.file_bytes)
    assert max(sizes[300:]) <= 1.2 * max(sizes[:300])
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        [[spans]] = connection.execute("SELECT count(*) FROM spans")
    assert spans <= 40 * (100 * 40 // 500 * 2 + 4)


def test_what_is_known_of_objects_takes_what_operators_reckon_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_index, "WAITING_ROWS", 4000)
    objects, partitions = 600, [TopicIdPartition(ORDERS.topic_id, number) for number in range(50)]
    uploaded = PublishedSegment.of(segment(0, *with_digests([entry(0, 9, partition=one) for one in partitions])))
    store, in_memory = RemoteWalMetadataStore(file_in(tmp_path)), []
    tracemalloc.start()
    try:
        for number in range(objects):
            store.apply(uploaded._replace(combined_segment_id=segment_id(number)), (0, number))
            if number in (objects // 2, objects - 1):
                gc.collect()
                in_memory.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert in_memory[1] - in_memory[0] <= 200 * objects / 2 + 300_000, "of pages, the setting is the bound"
    assert left_by_a_stopped_agent(tmp_path).stat().st_size / (objects * len(partitions)) <= 100
