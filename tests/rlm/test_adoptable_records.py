"""What a gateway stored is named in objects in the place of its bytes, where the log has just that."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.states import STARTED
from plugin.adopted_records import MAX_SOURCES, AdoptedRecords, BatchSource, RecordsList
from plugin.format.adoption_note import split_note
from plugin.local_directory import LocalWalStorageManager
from plugin.remote_wal_storage_manager import StorageContext, blobs_of
from plugin.router_object_id import RouterObjectId
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)
from plugin.store_loop import ask
from plugin.wall_clock import Clocks
from plugin.wrappers.adopting_storage import AdoptingStorage
from rlm.write_path.metrics import WriteMetrics
from rlm.write_path.uploads.adoptable_records import NAMED_WITHIN_MS, AdoptableRecords, AdoptionLimits, Offer
from rlm.write_path.uploads.combine_task import RLMWalCombineTask
from rlm.write_path.uploads.segment_queue import MetaQueueItem
from tests.kafka_log.batches import batch
from tests.metric_values import metric_value
from tests.rlm.memory_storage import MemoryPublisher, MemoryStorage

PARTITION = TopicIdPartition(TopicId(b"c" * 16), 3)
WALL_MS = 60_000
LIMITS = AdoptionLimits(kept_bytes=20_000, wait_max_s=5.0, age_max_s=60.0)


def source(number: int = 0) -> BatchSource:
    return BatchSource(RouterObjectId(2, 9, 5, number), b"")


def sent(payload: bytes = b"p") -> bytes:
    return batch(0, payload=payload * 700, leader_epoch=-1)


def item(*appended: bytes) -> MetaQueueItem:
    raw = b"".join(appended)
    return MetaQueueItem(PARTITION, tuple(scan_batches(raw, 0, len(raw))), memoryview(raw), 0.0, 0.0)


def appended(payload: bytes, offset: int) -> bytes:
    return batch(offset, payload=payload * 700, leader_epoch=4)


class Rig:
    def __init__(self) -> None:
        self.records = AdoptableRecords(LIMITS)
        self.told: list[bool] = []
        self.is_pending = False

    def offer(self, *contents: bytes, of: BatchSource | None = None, now_s: float = 0.0) -> Offer | None:
        return self.records.offer(of or source(), 9, b"".join(contents), map(len, contents), now_s, self.told.append)

    def adopts(self, *items: MetaQueueItem, stored: bool = True) -> list[tuple[int, int]]:
        """Where in the gateway's objects the batches stand that are adopted, and their sizes."""
        records, adoption = self.records.adopt(items, WALL_MS)
        if stored:
            adoption.stored(lambda: self.is_pending)
        else:
            adoption.failed()
        assert [bytes(one) for one in records] == [bytes(one.records) for one in items]
        batches = [one.batches for one in records if isinstance(one, AdoptedRecords)]
        return [(one.source_start, one.length) for each in batches for one in each]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_what_the_log_has_but_for_offset_and_epoch_is_adopted(rig: Rig) -> None:
    one, two = sent(b"a"), sent(b"b")
    rig.offer(one, two)
    assert rig.adopts(item(appended(b"b", 70), appended(b"z", 71), appended(b"a", 72))) == [
        (9 + len(one), len(two)),
        (9, len(one)),
    ]
    rig.records.look_again(1.0)
    assert rig.told == [True]
    assert rig.records.kept_bytes == 0


def test_what_the_broker_made_anew_is_not_adopted_and_told_in_time(rig: Rig) -> None:
    offer = rig.offer(sent())
    assert offer is not None
    recompressed = batch(70, payload=b"p" * 700, attributes=8)
    assert rig.adopts(item(recompressed)) == []
    rig.records.answered(offer, 10.0)
    rig.records.look_again(14.9)
    assert rig.told == []
    rig.records.look_again(15.0)
    assert rig.told == [False]
    assert rig.adopts(item(appended(b"p", 71))) == []


def test_one_batch_for_two_partitions_in_a_request_is_adopted_and_told_of_once(rig: Rig) -> None:
    rig.offer(sent(), sent())
    assert rig.adopts(item(appended(b"p", 70)), item(appended(b"p", 30))) == [(9, len(sent()))] * 2
    rig.records.look_again(60.0)
    assert rig.told == [True]
    assert rig.records.kept_bytes == 0
    assert rig.adopts(item(appended(b"p", 71))) == []


def test_without_an_answer_an_offer_ends_too(rig: Rig) -> None:
    rig.offer(sent())
    rig.records.look_again(59.0)
    assert rig.told == []
    rig.records.look_again(60.0)
    assert rig.told == [False]


def test_a_part_that_is_adopted_keeps_the_object(rig: Rig) -> None:
    rig.offer(sent(b"a"), sent(b"b"))
    rig.adopts(item(appended(b"a", 70)))
    rig.records.look_again(1.0)
    assert rig.told == []
    rig.records.look_again(60.0)
    assert rig.told == [True]


def test_what_is_kept_is_bounded(rig: Rig) -> None:
    assert rig.offer(batch(payload=b"x" * 19_000)) is not None
    assert rig.offer(sent(), sent()) is None
    assert rig.records.kept_bytes < LIMITS.kept_bytes


@pytest.mark.parametrize("content", [batch(payload=b"small"), b"x" * 900, sent()[:-1], sent() + sent()])
def test_what_is_not_one_batch_of_some_size_is_not_offered(rig: Rig, content: bytes) -> None:
    assert rig.offer(content) is None


def test_a_segment_names_no_more_objects_than_it_can(rig: Rig) -> None:
    payloads = [bytes([number]) for number in range(MAX_SOURCES + 2)]
    for number, payload in enumerate(payloads):
        assert rig.offer(sent(payload), of=source(number)) is not None
    adopted = rig.adopts(item(*[appended(payload, at) for at, payload in enumerate(payloads)]))
    assert len(adopted) == MAX_SOURCES


class Uploads:
    def __init__(self, storage: MemoryStorage | AdoptingStorage) -> None:
        self.metrics, self.publisher = WriteMetrics(CollectorRegistry()), MemoryPublisher()
        self.adoptable = AdoptableRecords(LIMITS)
        self.told: list[bool] = []
        self.wall_ms = WALL_MS
        self.task = RLMWalCombineTask(
            storage,
            self.publisher,
            CombinedSegmentId(1, 77, 0),
            self.metrics,
            Clocks(lambda: 5.0, lambda: self.wall_ms),
            adoptable=self.adoptable,
        )


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[LocalWalStorageManager]:
    storage = LocalWalStorageManager()
    storage.configure({"directory": str(tmp_path)}, StorageContext("cluster", 1))
    yield storage
    storage.close()


async def test_an_object_holds_only_what_no_gateway_stored(bare: LocalWalStorageManager) -> None:
    storage = AdoptingStorage(bare)
    uploads = Uploads(storage)
    await blobs_of(storage, "put", "-").put_blob(source().object_id.blob_name, sent(b"a"))
    uploads.adoptable.offer(source(), 0, sent(b"a"), [len(sent(b"a"))], 0.0, uploads.told.append)
    wanted = item(appended(b"a", 70), appended(b"z", 71))
    segment = await uploads.task.combine([wanted])
    assert segment is not None
    (entry,) = segment.entries
    assert segment.size_bytes < entry.end_file_position
    found = await asyncio.to_thread(
        ask,
        storage.fetch_log_segment(
            segment.combined_segment_id, entry.start_file_position, entry.end_file_position, segment.custom_metadata
        ),
    )
    assert found == bytes(wanted.records)
    published = uploads.publisher.published[-1]
    assert published.custom_metadata == segment.custom_metadata
    note = split_note(published.custom_metadata)[1]
    assert note is not None
    assert note.sources == (source().object_id,)
    assert metric_value(uploads.metrics.adopted_bytes) == len(sent(b"a"))
    uploads.adoptable.look_again(5.0)
    assert uploads.told == [True]
    uploads.task.close()


async def test_an_object_that_is_stored_long_after_what_it_names_is_told_of_by_nobody(
    bare: LocalWalStorageManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = AdoptingStorage(bare)
    uploads = Uploads(storage)
    uploads.adoptable.offer(source(), 0, sent(b"a"), [len(sent(b"a"))], 0.0, uploads.told.append)
    copy = bare.copy_log_segment_data

    async def stand_still(
        metadata: RemoteWalCombinedLogSegmentMetadata, records: RecordsList
    ) -> RemoteWalCombinedLogSegmentMetadataUpdate:
        uploads.wall_ms += NAMED_WITHIN_MS + 1
        return await copy(metadata, records)

    monkeypatch.setattr(bare, "copy_log_segment_data", stand_still)
    assert await uploads.task.combine([item(appended(b"a", 70))]) is None
    assert [one.state for one in uploads.publisher.published] == [STARTED]
    again = await uploads.task.combine([item(appended(b"a", 70))])
    assert again is not None
    assert split_note(again.custom_metadata)[1] is None
    uploads.adoptable.look_again(70.0)
    assert uploads.told == [False]
    uploads.task.close()


async def test_a_store_that_cannot_is_given_bytes() -> None:
    storage = MemoryStorage()
    uploads = Uploads(storage)
    uploads.adoptable.offer(source(), 0, sent(), [len(sent())], 0.0, uploads.told.append)
    wanted = item(appended(b"p", 70))
    segment = await uploads.task.combine([wanted])
    assert segment is not None
    assert storage.records_of(segment.combined_segment_id, segment.entries[0]) == bytes(wanted.records)
    uploads.task.close()
