"""Segments of which gateways have stored batches already are read as if all were in them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.adopted_records import (
    MAX_SOURCES,
    RECORDS_START,
    AdoptedBatch,
    AdoptedRecords,
    AdoptionTable,
    BatchSource,
    RecordsList,
)
from plugin.blob_storage import StoredBlob
from plugin.errors import RemoteResourceNotFoundError, RemoteSegmentCorruptError
from plugin.format.adoption_note import AdoptionNote, join_note, split_note
from plugin.format.bucket_id import bucket_id
from plugin.local_directory import LocalWalStorageManager
from plugin.remote_wal_storage_manager import StorageContext, blobs_of
from plugin.router_object_id import RouterObjectId
from plugin.segment_metadata import (
    UNKNOWN_POSITION,
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)
from plugin.store_loop import ask, ask_each
from plugin.wrappers.adopting_storage import GAP_BYTES, AdoptingStorage
from tests.plugin.two_zones import bucket, two_zones

SEGMENT_ID = CombinedSegmentId(1, 7, 0)


def source(number: int, custom_metadata: bytes = b"") -> BatchSource:
    return BatchSource(RouterObjectId(2, 9, 5, number), custom_metadata)


@dataclass(slots=True)
class Written:
    """Logs' records, what gateways stored of them, and all of it as one segment."""

    records: list[AdoptedRecords] = field(default_factory=list)
    objects: dict[BatchSource, bytearray] = field(default_factory=dict)

    def entry(self, *batches: tuple[BatchSource | None, bytes]) -> None:
        """Batches as clients sent them; None: through no gateway."""
        log, adopted = bytearray(), []
        for at, (where, sent) in enumerate(batches):
            kept = bytearray(sent)
            kept[0:8], kept[12:16] = (1000 + at).to_bytes(8), (5 + at).to_bytes(4)
            if where is not None:
                stored = self.objects.setdefault(where, bytearray(b"another's"))
                adopted.append(AdoptedBatch(len(log), len(sent), where, len(stored)))
                stored += sent
            log += kept
        self.records.append(AdoptedRecords(bytes(log), tuple(adopted)))

    @property
    def all_records(self) -> bytes:
        return b"".join(bytes(one) for one in self.records)

    def metadata(self) -> RemoteWalCombinedLogSegmentMetadata:
        entries = tuple(
            RemoteLogSegmentMetadataEntry(
                TopicIdPartition(TopicId(bytes(16)), number), 3, 0, 9, UNKNOWN_POSITION, UNKNOWN_POSITION, 0
            )
            for number in range(len(self.records))
        )
        return RemoteWalCombinedLogSegmentMetadata(
            SEGMENT_ID, entries, RemoteLogSegmentState.COPY_SEGMENT_STARTED, 1_700_000_000_000
        )

    def store(self, storage: "Blobs") -> RemoteWalCombinedLogSegmentMetadataUpdate:
        for where, stored in self.objects.items():
            ask(blobs_of(storage, "put", "-").put_blob(where.object_id.blob_name, bytes(stored)))
        return ask(storage.copy_log_segment_data(self.metadata(), self.records))


Blobs = LocalWalStorageManager | AdoptingStorage


def local(directory: Path) -> LocalWalStorageManager:
    storage = LocalWalStorageManager()
    storage.configure({"directory": str(directory)}, StorageContext("cluster", 1))
    return storage


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[LocalWalStorageManager]:
    storage = local(tmp_path)
    yield storage
    storage.close()


def mixed() -> Written:
    written = Written()
    written.entry((source(0), b"a" * 80), (None, b"b" * 30), (source(1), b"c" * 100))
    written.entry((None, b"d" * 40))
    written.entry((source(0), b"e" * 70), (source(0), b"f" * 16))
    return written


batches = st.tuples(st.none() | st.integers(0, 3).map(source), st.binary(min_size=16, max_size=60))


@given(st.lists(st.lists(batches, min_size=1, max_size=5), min_size=1, max_size=4), st.data())
def test_any_range_is_that_of_the_records(
    tmp_path_factory: pytest.TempPathFactory, entries: list[list[tuple[BatchSource | None, bytes]]], data: st.DataObject
) -> None:
    bare = local(tmp_path_factory.mktemp("store"))
    written = Written()
    for entry in entries:
        written.entry(*entry)
    update, expected = written.store(bare), written.all_records
    start = data.draw(st.integers(0, len(expected) - 1))
    end = data.draw(st.integers(start + 1, len(expected)))
    found = ask(
        AdoptingStorage(bare).fetch_log_segment(
            SEGMENT_ID, RECORDS_START + start, RECORDS_START + end, update.custom_metadata
        )
    )
    assert found == expected[start:end]


def test_a_segment_holds_no_byte_that_a_gateway_stored(bare: LocalWalStorageManager) -> None:
    written = Written()
    written.entry(*[(source(0), bytes([n]) * 10_000) for n in range(50)])
    update = written.store(bare)
    assert update.size_bytes < 2000
    assert [stored.size_bytes for stored in ask_each(bare.list_log_segments())] == [update.size_bytes]


def test_the_object_alone_tells_what_the_metadata_does(bare: LocalWalStorageManager) -> None:
    update = mixed().store(bare)
    storage = AdoptingStorage(bare)
    (stored,) = ask_each(storage.list_log_segments())
    found = ask(storage.fetch_segment_metadata(stored))
    assert (found.entries, found.size_bytes, found.custom_metadata) == (
        update.entries,
        update.size_bytes,
        update.custom_metadata,
    )
    note = split_note(found.custom_metadata)[1]
    assert note is not None
    assert note.sources == (source(0).object_id, source(1).object_id)


def test_what_lies_together_is_read_together_and_tables_are_kept(bare: LocalWalStorageManager) -> None:
    written = Written()
    written.entry(*[(source(0), b"x" * 100) for _ in range(20)])
    written.objects[source(0)] += bytes(GAP_BYTES + 1)
    written.entry((source(0), b"y" * 100))
    update = written.store(bare)
    storage = AdoptingStorage(bare)
    whole = RECORDS_START, update.entries[-1].end_file_position
    for requests in (3, 2):  # with the table, and without
        before = bare.request_counts.get
        assert ask(storage.fetch_log_segment(SEGMENT_ID, *whole, update.custom_metadata)) == written.all_records
        assert bare.request_counts.get == before + requests


def test_a_range_beyond_the_records_is_refused(bare: LocalWalStorageManager) -> None:
    update = mixed().store(bare)
    end = update.entries[-1].end_file_position
    with pytest.raises(RemoteSegmentCorruptError):
        ask(AdoptingStorage(bare).fetch_log_segment(SEGMENT_ID, RECORDS_START, end + 1, update.custom_metadata))


def test_a_gateways_object_that_is_gone_is_told_as_such(bare: LocalWalStorageManager) -> None:
    written = mixed()
    update = written.store(bare)
    ask(bare.blobs.delete_blob(StoredBlob(source(1).object_id.blob_name, 0)))
    first = update.entries[0]
    with pytest.raises(RemoteResourceNotFoundError):
        ask(
            AdoptingStorage(bare).fetch_log_segment(
                SEGMENT_ID, first.start_file_position, first.end_file_position, update.custom_metadata
            )
        )


def test_a_segments_deletion_leaves_what_others_may_name(bare: LocalWalStorageManager) -> None:
    update = mixed().store(bare)
    ask(AdoptingStorage(bare).delete_log_segment_data(SEGMENT_ID, update.custom_metadata))
    assert not list(ask_each(bare.list_log_segments()))
    assert {blob.name for blob in ask_each(bare.blobs.list_blobs("router"))} == {
        source(n).object_id.blob_name for n in (0, 1)
    }


def test_a_damaged_table_is_told_as_such(bare: LocalWalStorageManager) -> None:
    update = mixed().store(bare)
    plain, note = split_note(update.custom_metadata)
    assert note is not None
    wrong = join_note(plain, note._replace(table_crc32c=note.table_crc32c ^ 1))
    with pytest.raises(RemoteSegmentCorruptError):
        ask(AdoptingStorage(bare).fetch_log_segment(SEGMENT_ID, RECORDS_START, RECORDS_START + 9, wrong))


def test_segment_and_gateways_objects_may_be_in_different_buckets(tmp_path: Path) -> None:
    there = two_zones(tmp_path, "az2", "cluster")
    where = source(0)
    custom_metadata = ask(there.blobs.put_blob(where.object_id.blob_name, b"another's" + b"a" * 80))
    written = Written()
    written.entry((where._replace(custom_metadata=custom_metadata), b"a" * 80), (None, b"b" * 20))
    here = AdoptingStorage(two_zones(tmp_path, "az1", "cluster"))
    assert here.adopts
    update = ask(here.copy_log_segment_data(written.metadata(), written.records))
    assert here.place_of(update.custom_metadata) == bucket(tmp_path, "az1")
    end = update.entries[-1].end_file_position
    assert ask(here.fetch_log_segment(SEGMENT_ID, RECORDS_START, end, update.custom_metadata)) == written.all_records
    for stored in ask_each(here.list_log_segments()):
        found = ask(here.fetch_segment_metadata(stored)).custom_metadata
        assert ask(here.fetch_log_segment(SEGMENT_ID, RECORDS_START, end, found)) == written.all_records
    ask(here.delete_log_segment_data(SEGMENT_ID, update.custom_metadata))
    assert not list(ask_each(here.list_log_segments()))
    here.close()
    there.close()


numbers = st.tuples(st.integers(0, 2**31 - 1), *[st.integers(0, 2**bits - 1) for bits in (48, 40, 48)])
notes = st.builds(
    AdoptionNote,
    *[st.integers(0, 2**32 - 1)] * 3,
    st.lists(numbers.map(lambda each: RouterObjectId(*each)), max_size=MAX_SOURCES).map(tuple),
)
plain = st.one_of(
    st.just(b""),
    st.just(bucket_id("one")),
)


@given(plain, notes)
def test_a_note_is_found_again_beside_every_bucket(custom_metadata: bytes, note: AdoptionNote) -> None:
    joined = join_note(custom_metadata, note)
    assert len(joined) <= 1024
    assert split_note(joined) == (custom_metadata, note)
    assert split_note(custom_metadata) == (custom_metadata, None)


def table() -> AdoptionTable:
    records: RecordsList = mixed().records
    return AdoptionTable.of(records, RECORDS_START)


@given(st.data())
def test_a_table_that_anybody_wrote_is_read_or_refused(data: st.DataObject) -> None:
    raw = bytearray(table().encode())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        AdoptionTable.decode(bytes(raw[: data.draw(st.integers(0, len(raw)))]), RECORDS_START)
    except ValueError:
        return


def test_too_many_objects_are_refused() -> None:
    written = Written()
    written.entry(*[(source(n), bytes(64)) for n in range(MAX_SOURCES + 1)])
    with pytest.raises(ValueError, match="13 objects"):
        AdoptionTable.of(written.records, RECORDS_START).encode()
