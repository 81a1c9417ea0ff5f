"""A log comes back whose batches gateways have stored in part, and what is lost of these takes nothing else along."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.records import PublishedSegment
from metadata_topic.records.states import FINISHED
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.adopted_records import AdoptedBatch, AdoptedRecords, BatchSource
from plugin.blob_storage import StoredBlob
from plugin.loading import StorageSpec, load_storage_manager
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StorageContext, blobs_of
from plugin.router_object_id import RouterObjectId
from plugin.segment_metadata import (
    CombinedSegmentId,
)
from plugin.store_loop import ask
from plugin.wrappers.adopting_storage import AdoptingStorage
from recovery.logs.log_plan import PlanRules
from recovery.logs.run_reader import ReadExtent, RunReader
from recovery.metadata.inventory import Inventory, from_metadata, from_objects
from tests.kafka_log.batches import batch
from tests.recovery.stored_objects import Records, records, started

ORDERS, CLICKS = (TopicIdPartition(TopicId(name.ljust(16)), 0) for name in (b"orders", b"clicks"))
SOURCE = BatchSource(RouterObjectId(9, 1, 5, 0), b"")
BEFORE = b"another client's"


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[RemoteWalStorageManager]:
    context = StorageContext("cluster-1", 1)
    made = AdoptingStorage(
        load_storage_manager(
            StorageSpec("plugin.local_directory.LocalWalStorageManager", None, {"directory": str(tmp_path)}), context
        )
    )
    yield made
    made.close()


def sent(count: int) -> list[bytes]:
    return [batch(0, 1, -1, b"a record's payload") for _ in range(count)]


def by_a_gateway(storage: RemoteWalStorageManager, of: Records) -> AdoptedRecords:
    """The second batch of a log's is in the gateway's object alone."""
    raw = of[3]
    (size,) = {len(one) for one in sent(1)}
    ask(blobs_of(storage, "put", "-").put_blob(SOURCE.object_id.blob_name, BEFORE, sent(1)[0]))
    return AdoptedRecords(raw, (AdoptedBatch(size, size, SOURCE, len(BEFORE)),))


def upload(storage: RemoteWalStorageManager, sequence: int, *parts: Records, adopts: bool = False) -> PublishedSegment:
    """Its metadata, as it would be published. Of the first part a batch is named, where it `adopts`."""
    metadata = started(CombinedSegmentId(1, 1, sequence), *parts)
    stored = [by_a_gateway(storage, parts[0]) if adopts else parts[0][3], *(data for _, _, _, data in parts[1:])]
    update = ask(storage.copy_log_segment_data(metadata, stored))
    told = replace(
        metadata,
        entries=update.entries,
        state=FINISHED,
        size_bytes=update.size_bytes,
        custom_metadata=update.custom_metadata,
    )
    return PublishedSegment.of(told)


def told(storage: RemoteWalStorageManager, *published: PublishedSegment) -> Inventory:
    store = RemoteWalMetadataStore()
    store.apply_all((one, (0, number)) for number, one in enumerate(published))
    return from_metadata(store, ArchiveStore(), storage, None)


def read(storage: RemoteWalStorageManager, inventory: Inventory, partition: TopicIdPartition = ORDERS) -> bytes:
    reader, plan = RunReader(storage), inventory.log_runs(partition).plan(PlanRules())
    found: list[ReadExtent] = [reader.read(0, extent) for extent in plan.extents]
    return b"".join(bytes(one.records) for one in found)


@pytest.mark.parametrize("is_told", [True, False])
def test_what_a_gateway_stored_comes_back_as_the_log_had_it(storage: RemoteWalStorageManager, is_told: bool) -> None:
    first, second = records(ORDERS, 4, 0, 2), records(ORDERS, 4, 3, 4)
    published = [upload(storage, 1, first, adopts=True), upload(storage, 2, second)]
    inventory = told(storage, *published) if is_told else from_objects(storage, None)
    assert read(storage, inventory) == first[3] + second[3]


def test_what_nobody_told_of_and_names_what_is_gone_takes_nothing_along(storage: RemoteWalStorageManager) -> None:
    first, clicks, again = records(ORDERS, 4, 0, 2), records(CLICKS, 4, 0, 1), records(ORDERS, 4, 0, 2)
    upload(storage, 1, first, clicks, adopts=True)
    whole = told(storage)
    assert read(storage, whole) == first[3]
    ask(blobs_of(storage, "delete", "-").delete_blob(StoredBlob(SOURCE.object_id.blob_name, 0)))
    inventory = told(storage)
    assert inventory.runs.keys() == {CLICKS}
    assert read(storage, inventory, CLICKS) == clicks[3]
    inventory = told(storage, upload(storage, 2, again))
    assert len(inventory.runs[ORDERS]) == 1
    assert read(storage, inventory) == again[3]


def test_what_the_topic_tells_of_and_is_gone_is_missed(storage: RemoteWalStorageManager) -> None:
    published = upload(storage, 1, records(ORDERS, 4, 0, 2), adopts=True)
    ask(blobs_of(storage, "delete", "-").delete_blob(StoredBlob(SOURCE.object_id.blob_name, 0)))
    assert told(storage, published).runs.keys() == {ORDERS}
