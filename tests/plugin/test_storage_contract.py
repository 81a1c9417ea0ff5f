"""What every backend keeps."""

import threading

import pytest

from kafka_log.crc32c import crc32c
from plugin.blob_storage import StoredBlob
from plugin.errors import (
    RemoteResourceNotFoundError,
    RemoteSegmentConflictError,
    RemoteSegmentCorruptError,
    RemoteStorageConfigError,
)
from plugin.format.object_keys import ObjectKeyFactory
from plugin.remote_wal_storage_manager import StorageContext, StoredSegment
from plugin.router_object_id import ROUTER_KIND, RouterObjectId
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState
from plugin.store_loop import ask, ask_each
from tests.plugin.storage_backends import Backend, segment


def test_each_entrys_range_holds_the_batches_that_were_given(backend: Backend) -> None:
    manager = backend.manager()
    metadata, records = segment(0, [b"first" * 10, b"second", memoryview(b"--third--")[2:-2]])
    update = ask(manager.copy_log_segment_data(metadata, records))
    assert update.combined_segment_id == metadata.combined_segment_id
    assert update.state == RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    for given, entry, expected in zip(metadata.entries, update.entries, records, strict=True):
        data = ask(
            manager.fetch_log_segment(update.combined_segment_id, entry.start_file_position, entry.end_file_position)
        )
        assert data == bytes(expected)
        assert entry.crc32c == crc32c(data)
        assert (entry.topic_id_partition, entry.first_offset) == (
            given.topic_id_partition,
            given.first_offset,
        )


def test_a_range_across_entries_is_one_request(backend: Backend) -> None:
    manager = backend.manager()
    update = ask(manager.copy_log_segment_data(*segment(0, [b"abc", b"def", b"ghi"])))
    before = manager.request_counts.get
    start, end = update.entries[0].start_file_position + 2, update.entries[2].end_file_position - 1
    assert ask(manager.fetch_log_segment(update.combined_segment_id, start, end)) == b"cdefgh"
    assert manager.request_counts.get == before + 1


def test_copying_the_same_again_succeeds(backend: Backend) -> None:
    manager = backend.manager()
    assert ask(manager.copy_log_segment_data(*segment(0, [b"abc"]))) == ask(
        manager.copy_log_segment_data(*segment(0, [b"abc"]))
    )
    assert len(list(ask_each(manager.list_log_segments()))) == 1


@pytest.mark.parametrize("other", [b"abd", b"abcd"])
def test_other_bytes_under_the_same_id_are_a_conflict_and_change_nothing(backend: Backend, other: bytes) -> None:
    manager = backend.manager()
    update = ask(manager.copy_log_segment_data(*segment(0, [b"abc"])))
    with pytest.raises(RemoteSegmentConflictError):
        ask(manager.copy_log_segment_data(*segment(0, [other])))
    start = update.entries[0].start_file_position
    assert ask(manager.fetch_log_segment(update.combined_segment_id, start, start + 3)) == b"abc"


def test_of_concurrent_writers_of_one_key_one_wins(backend: Backend) -> None:
    manager = backend.manager()
    ready = threading.Barrier(4)
    outcomes: list[bytes | None] = []

    def write(body: bytes) -> None:
        ready.wait()
        try:
            ask(manager.copy_log_segment_data(*segment(0, [body])))
            outcomes.append(body)
        except RemoteSegmentConflictError:
            outcomes.append(None)

    writers = [threading.Thread(target=write, args=(bytes([n]) * 5000,)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    (winner,) = [outcome for outcome in outcomes if outcome is not None]
    (stored,) = ask_each(manager.list_log_segments())
    (entry,) = ask(manager.fetch_segment_metadata(stored)).entries
    assert entry.crc32c == crc32c(winner)


def test_a_missing_object_is_not_found_and_asked_for_once(backend: Backend) -> None:
    manager = backend.manager()
    with pytest.raises(RemoteResourceNotFoundError):
        ask(manager.fetch_log_segment(CombinedSegmentId(1, 7, 99), 0, 10))
    assert manager.request_counts.get == 1


@pytest.mark.parametrize("start", [0, 10**6])
def test_a_range_beyond_the_object_is_corrupt_after_one_refetch(backend: Backend, start: int) -> None:
    manager = backend.manager()
    update = ask(manager.copy_log_segment_data(*segment(0, [b"abc"])))
    with pytest.raises(RemoteSegmentCorruptError):
        ask(manager.fetch_log_segment(update.combined_segment_id, start, start + update.size_bytes + 1))
    assert manager.request_counts.get == 2


def test_deleting_is_idempotent(backend: Backend) -> None:
    manager = backend.manager()
    update = ask(manager.copy_log_segment_data(*segment(0, [b"abc"])))
    ask(manager.delete_log_segment_data(update.combined_segment_id))
    ask(manager.delete_log_segment_data(update.combined_segment_id))
    ask(manager.delete_log_segment_data(CombinedSegmentId(4, 4, 4)))
    assert list(ask_each(manager.list_log_segments())) == []
    with pytest.raises(RemoteResourceNotFoundError):
        ask(manager.fetch_log_segment(update.combined_segment_id, 0, 1))


def test_listing_gives_all_objects_with_their_sizes_and_can_be_limited_to_a_broker(backend: Backend) -> None:
    manager = backend.manager()
    sizes = {}
    for broker, sequence in [(1, 0), (1, 1), (2, 0), (11, 5)]:
        update = ask(manager.copy_log_segment_data(*segment(sequence, [b"x" * (10 + sequence)], broker)))
        sizes[update.combined_segment_id] = update.size_bytes
    listed = list(ask_each(manager.list_log_segments()))
    assert {stored.combined_segment_id: stored.size_bytes for stored in listed} == sizes
    assert all(stored.last_modified_ms > 1_600_000_000_000 for stored in listed)
    of_broker_1 = {stored.combined_segment_id for stored in ask_each(manager.list_log_segments(1))}
    assert of_broker_1 == {CombinedSegmentId(1, 7, 0), CombinedSegmentId(1, 7, 1)}


def test_clusters_that_share_a_store_do_not_see_each_other(backend: Backend) -> None:
    ours, theirs = backend.manager(), backend.manager(cluster_id=backend.cluster_id + "1")
    update = ask(ours.copy_log_segment_data(*segment(0, [b"abc"])))
    assert list(ask_each(theirs.list_log_segments())) == []
    with pytest.raises(RemoteResourceNotFoundError):
        ask(theirs.fetch_log_segment(update.combined_segment_id, 0, 1))


def test_objects_that_are_not_ours_are_passed_over_and_counted(backend: Backend) -> None:
    manager = backend.manager()
    ask(manager.copy_log_segment_data(*segment(0, [b"abc"])))
    store = backend.store()
    for name in ("1/readme.txt", "1/000000000007/000000000001.rwal.bak", "01/000000000007/000000000001.rwal"):
        ask(store.put_if_absent(f"{backend.cluster_id}/{name}", [b"foreign"]))
    assert [stored.combined_segment_id.sequence for stored in ask_each(manager.list_log_segments())] == [0]
    assert manager.request_counts.foreign_objects == 3


def test_blobs_stand_beside_segments_and_are_not_foreign(backend: Backend) -> None:
    manager = backend.manager()
    ask(manager.copy_log_segment_data(*segment(0, [b"abc"])))
    directory = "metadata-snapshots/1"
    contents = {f"{directory}/a/00000-of-00002": b"one" * 1000, f"{directory}/a/00001-of-00002": b"two"}
    for name, content in contents.items():
        ask(manager.blobs.put_blob(name, content))
        ask(manager.blobs.put_blob(name, content))
    ask(manager.blobs.put_blob("metadata-snapshots/11/a/00000-of-00001", b"another broker's"))
    listed = list(ask_each(manager.blobs.list_blobs(directory)))
    assert {blob.name: ask(manager.blobs.get_blob(blob)) for blob in listed} == contents
    assert len(list(ask_each(manager.blobs.list_blobs("metadata-snapshots")))) == 3
    with pytest.raises(RemoteSegmentConflictError):
        ask(manager.blobs.put_blob(listed[0].name, b"other bytes"))
    assert [stored.combined_segment_id.sequence for stored in ask_each(manager.list_log_segments())] == [0]
    assert manager.request_counts.foreign_objects == 0
    for blob in listed:
        ask(manager.blobs.delete_blob(blob))
        ask(manager.blobs.delete_blob(blob))
    assert list(ask_each(manager.blobs.list_blobs(directory))) == []
    with pytest.raises(RemoteResourceNotFoundError):
        ask(manager.blobs.get_blob(listed[0]))


def test_an_object_of_the_router_channel_is_written_in_chunks_and_read_in_parts(backend: Backend) -> None:
    manager = backend.manager()
    name = RouterObjectId(7, 2, 170_000_000, 9).blob_name
    custom_metadata = ask(manager.blobs.put_blob(name, memoryview(bytearray(b"one")), b"two", b"three"))
    blob = StoredBlob(name, 0, custom_metadata)
    assert [ask(manager.blobs.get_blob(blob, 3, 6)), ask(manager.blobs.get_blob(blob, 0, 11))] == [
        b"two",
        b"onetwothree",
    ]
    with pytest.raises(RemoteSegmentCorruptError):
        ask(manager.blobs.get_blob(blob, 6, 12))
    assert [one.name for one in ask_each(manager.blobs.list_blobs(f"{ROUTER_KIND}/7"))] == [name]
    assert [one.size_bytes for one in ask_each(manager.blobs.list_blobs(ROUTER_KIND))] == [11]
    assert list(ask_each(manager.list_log_segments())) == []
    assert manager.request_counts.foreign_objects == 0
    ask(manager.blobs.delete_blob(blob))
    with pytest.raises(RemoteResourceNotFoundError):
        ask(manager.blobs.get_blob(blob, 0, 1))


@pytest.mark.parametrize("count", [0, 1, 9, 4000], ids="{}-entries".format)
def test_an_object_tells_its_own_metadata(backend: Backend, count: int) -> None:
    """4000 entries need a footer larger than the tail that is read first."""
    manager = backend.manager()
    metadata, records = segment(0, [n.to_bytes(4, "big") * (1 + n % 5) for n in range(count)])
    update = ask(manager.copy_log_segment_data(metadata, records))
    (stored,) = ask_each(manager.list_log_segments())
    recovered = ask(manager.fetch_segment_metadata(stored))
    assert recovered.entries == update.entries
    assert recovered.state == RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    assert (recovered.combined_segment_id, recovered.event_timestamp_ms, recovered.size_bytes) == (
        metadata.combined_segment_id,
        metadata.event_timestamp_ms,
        update.size_bytes,
    )


def test_an_object_with_another_segments_bytes_is_corrupt(backend: Backend) -> None:
    manager = backend.manager()
    update = ask(manager.copy_log_segment_data(*segment(0, [b"abc"])))
    copied = ask(manager.fetch_log_segment(update.combined_segment_id, 0, update.size_bytes))
    other = CombinedSegmentId(1, 7, 1)
    key = ObjectKeyFactory.of("", backend.cluster_id).key_of(other)
    ask(backend.store().put_if_absent(key, [copied]))
    with pytest.raises(RemoteSegmentCorruptError, match="holds segment"):
        ask(manager.fetch_segment_metadata(StoredSegment(other, key, len(copied), 0)))


@pytest.mark.parametrize("size", [1, 60, 127, 500])
def test_an_object_of_garbage_is_corrupt(backend: Backend, size: int) -> None:
    manager = backend.manager()
    segment_id = CombinedSegmentId(1, 7, 1)
    key = ObjectKeyFactory.of("", backend.cluster_id).key_of(segment_id)
    ask(backend.store().put_if_absent(key, [bytes(size)]))
    with pytest.raises(RemoteSegmentCorruptError):
        ask(manager.fetch_segment_metadata(StoredSegment(segment_id, key, size, 0)))


def test_the_start_up_self_test_leaves_nothing_behind(backend: Backend) -> None:
    backend.manager()
    assert list(ask(backend.store().list_page(f"{backend.cluster_id}/", None)).objects) == []


def test_a_store_that_nobody_writes_is_not_tested_by_a_write(backend: Backend) -> None:
    manager = backend.unwritten()
    assert (manager.request_counts.put, manager.request_counts.delete) == (0, 0)


def test_requests_and_bytes_are_counted(backend: Backend) -> None:
    manager = backend.unwritten()
    update = ask(manager.copy_log_segment_data(*segment(0, [b"abc"])))
    ask(manager.fetch_log_segment(update.combined_segment_id, 112, 115))
    list(ask_each(manager.list_log_segments()))
    ask(manager.delete_log_segment_data(update.combined_segment_id))
    counts = manager.request_counts
    assert (counts.put, counts.get, counts.head, counts.list, counts.delete) == (1, 1, 0, 1, 1)
    assert (counts.put_bytes, counts.get_bytes, counts.failures) == (update.size_bytes, 3, {})


def test_an_unknown_setting_is_refused_by_name(backend: Backend) -> None:
    with pytest.raises(RemoteStorageConfigError, match=r"put\.latency\.sm"):
        backend.manager(put_latency_sm="5")


@pytest.mark.parametrize("prefix", ["/absolute", "a/../b", "a//b", "nul\0", ".."])
def test_a_prefix_that_could_leave_its_place_is_refused(backend: Backend, prefix: str) -> None:
    with pytest.raises(RemoteStorageConfigError, match="prefix"):
        backend.manager(prefix=prefix)


def test_a_cluster_id_that_could_leave_its_place_is_refused(backend: Backend) -> None:
    with pytest.raises(RemoteStorageConfigError, match="cluster id"):
        backend.unconfigured().configure(backend.settings, StorageContext("../other", 1))


def test_closing_twice_is_fine(backend: Backend) -> None:
    manager = backend.manager()
    manager.close()
    manager.close()
