"""The archive put together as the agent does it: directories for both stores, a log directory on disk."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agent.archive_side import ArchiveParts, ArchiveSide, CareDuties, archive_links
from agent.settings import AgentSettings
from kafka_log.record_batch import scan_batches
from kafka_log.segment_files import log_file_name
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.archive_records import ArchiveRecord
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.records.states import DELETING, FINISHED, STARTED
from metadata_topic.settings.topic_settings import LinkPolicy
from metadata_topic.store.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.archive_object import OpenArchiveObject
from plugin.archive_object_id import ArchiveObjectId
from plugin.archive_storage import load_archive_storage
from plugin.local_directory import LocalWalStorageManager
from plugin.prices import Prices
from plugin.remote_wal_storage_manager import StorageContext
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteWalCombinedLogSegmentMetadata,
)
from rlm.archive.archive_care import ArchiveCare, KnownLogs
from rlm.write_path.assignment import Assignment
from rlm.write_path.combine_task import Clocks
from rlm.write_path.metrics import ArchiveMetrics
from tests.kafka_log.batches import batches

ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 3)
CONTEXT = StorageContext("cluster", 1)
WALL_MS = 1_700_000_000_000


class TopicInMemory:
    """A publisher whose records are read at once."""

    def __init__(self) -> None:
        self.archive = ArchiveStore()
        self.committed = asyncio.Event()

    def publish(self, record: ArchiveRecord) -> None:
        self.archive.apply(record)
        if record.state is FINISHED:
            self.committed.set()


def _settings(**changes: object) -> AgentSettings:
    return AgentSettings.model_validate(
        {
            "remote.wal.archive.storage.manager.class.name": "plugin.local_directory.LocalWalStorageManager",
            "remote.wal.archive.object.min.bytes": "1",
            **changes,
        }
    )


def _uploaded(tmp_path: Path) -> tuple[LocalWalStorageManager, RemoteWalMetadataStore, bytes]:
    storage = LocalWalStorageManager()
    storage.configure({"directory": str(tmp_path / "wal")}, CONTEXT)
    raw = batches(6, records=2)
    entry = RemoteLogSegmentMetadataEntry(ORDERS, 0, 0, 11, -1, -1, 0)
    started = RemoteWalCombinedLogSegmentMetadata(CombinedSegmentId(1, 7, 0), (entry,), STARTED, WALL_MS)
    update = storage.copy_log_segment_data(started, [raw])
    store = RemoteWalMetadataStore()
    store.apply(replace(started, entries=update.entries, state=FINISHED, size_bytes=update.size_bytes))
    return storage, store, raw


async def test_a_led_partition_with_the_archive_on_is_archived(tmp_path: Path) -> None:
    storage, store, raw = _uploaded(tmp_path)
    directory = tmp_path / "orders-3"
    directory.mkdir()
    (directory / log_file_name(0)).write_bytes(raw)
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    topic = TopicInMemory()
    side = ArchiveSide(
        _settings(),
        {"rsm.wal.archive.config.directory": str(tmp_path / "archive")},
        CONTEXT,
        CombinedSegmentId(1, 8, 0),
        ArchiveParts(
            storage, store, topic.archive, topic, ArchiveMetrics(CollectorRegistry()),
            Clocks(time.monotonic, lambda: WALL_MS + 1), lambda: True,
        ),
        lambda: CareDuties({1: 8}, KnownLogs({}, ())),
    )  # fmt: skip
    assignment = Assignment(ORDERS, "orders", directory, LinkPolicy.COST, 20, archive=True)
    side.assign([replace(assignment, archive=False)])
    running = asyncio.create_task(side.run())
    side.assign([assignment])
    async with asyncio.timeout(10):
        await topic.committed.wait()
    ((object_id, _),) = topic.archive.objects(FINISHED)
    assert side.storage is not None
    assert side.missing is None
    (stored,) = side.storage.list()
    (run,) = side.storage.fetch_runs(stored)
    assert object_id.writer_id < side.next_writer_id
    assert side.storage.fetch(object_id, run.start_file_position, run.end_file_position) == raw
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    side.close()
    storage.close()


@pytest.mark.parametrize("name", ["no.such.Manager", "plugin.local_directory.LocalWalStorageManager"])
async def test_an_archive_that_cannot_be_loaded_is_told_and_stops_nothing(tmp_path: Path, name: str) -> None:
    storage, store, _ = _uploaded(tmp_path)
    topic = TopicInMemory()
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    side = ArchiveSide(
        _settings(**{"remote.wal.archive.storage.manager.class.name": name}),
        {},
        CONTEXT,
        CombinedSegmentId(1, 8, 0),
        ArchiveParts(
            storage, store, topic.archive, topic, ArchiveMetrics(CollectorRegistry()),
            Clocks(time.monotonic, lambda: WALL_MS), lambda: True,
        ),
        lambda: CareDuties({}, KnownLogs({}, ())),
    )  # fmt: skip
    load = side._load

    def load_and_tell() -> None:
        assert load() is None
        loop.call_soon_threadsafe(told.set)

    side._load = load_and_tell  # type: ignore[method-assign]
    running = asyncio.create_task(side.run())
    async with asyncio.timeout(10):
        await told.wait()
    assert not running.done()
    assert side.missing is not None
    assert "configure" in side.missing or "load" in side.missing
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    side.close()
    storage.close()


@pytest.mark.parametrize(
    ("objects", "doubt", "writer_is_known", "healed"),
    [(1, "", True, True), (11, "", True, False), (1, "it began anew", True, False), (1, "", False, False)],
    ids=["few", "most", "doubt", "unknown-writer"],
)
async def test_orphans_are_healed_unless_it_is_the_metadata_that_seems_lost(
    tmp_path: Path, objects: int, doubt: str, writer_is_known: bool, healed: bool
) -> None:
    archive_storage = load_archive_storage(
        "plugin.local_directory.LocalWalStorageManager", None, {"directory": str(tmp_path / "archive")}, CONTEXT
    )
    raw = batches(6, records=2)
    for sequence in range(objects):
        named = ArchiveObjectId(ORDERS, 0, 11, CombinedSegmentId(1, 7, sequence))
        building = OpenArchiveObject(CONTEXT.cluster_id, named, WALL_MS, 1000)
        building.append(0, 11, memoryview(raw), scan_batches(raw, 0, len(raw)))
        archive_storage.write(named, building.seal())
    wal_storage, store, _ = _uploaded(tmp_path)
    topic = TopicInMemory()
    duties = [CareDuties({}, KnownLogs({}, ()))]
    later_ms = time.time_ns() // 1_000_000 + 2 * 3_600_000
    side = ArchiveSide(
        _settings(),
        {"rsm.wal.archive.config.directory": str(tmp_path / "archive")},
        CONTEXT,
        CombinedSegmentId(1, 8, 0),
        ArchiveParts(
            wal_storage, store, topic.archive, topic, ArchiveMetrics(CollectorRegistry()),
            Clocks(time.monotonic, lambda: later_ms), lambda: True, lambda: doubt,
        ),
        lambda: duties[0],
    )  # fmt: skip
    metrics = ArchiveMetrics(CollectorRegistry())
    if writer_is_known:
        store.apply(RemoteWalNodeRegistration(1, 7, 1, 0))
    care = ArchiveCare(topic.archive, archive_storage, topic, side._care_limits(), metrics, store.knows_incarnation)
    assert not side._search_orphans(care)
    assert topic.archive.objects(DELETING) == []
    duties[0] = CareDuties({1: 8}, KnownLogs({}, ()))
    assert side._search_orphans(care)
    assert len(topic.archive.objects(DELETING)) == (objects if healed else 0)
    archive_storage.close()
    wal_storage.close()


def test_where_reading_from_the_archive_never_pays_only_topics_with_links_always_get_its_links() -> None:
    settings = _settings(
        **{
            "remote.wal.archive.enable": "true",
            "remote.wal.archive.storage.manager.class.name": "plugin.s3.S3WalStorageManager",
        }
    )
    prices = Prices.load()
    usual = archive_links(settings, ArchiveStore(), prices)
    dear = replace(prices, s3_standard=replace(prices.s3_standard, retrieval_gb=0.03))
    never = archive_links(settings, ArchiveStore(), dear)
    assert usual is not None
    assert never is not None
    assert usual.min_run_bytes < 1 << 20 < 1 << 40 < never.min_run_bytes
    assert archive_links(_settings(), ArchiveStore(), dear) is None
