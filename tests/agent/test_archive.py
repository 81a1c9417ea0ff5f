"""The archive with the limits that the agent gives it: directories for both stores, a log directory on disk."""

import asyncio
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agent.settings.agent_settings import AgentSettings
from agent.wiring.lifecycle import archiving_limits
from agent.wiring.write_path import archive_links
from kafka_log.record_batch import scan_batches
from kafka_log.segment_files import log_file_name
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.archive_records import ArchiveRecord
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.records.states import DELETING, FINISHED, STARTED
from metadata_topic.settings.topic_settings import LinkPolicy
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.archive_storage import ArchiveStorage, load_archive_storage
from plugin.format.archive_object import OpenArchiveObject
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.loading import StorageSpec
from plugin.local_directory import LocalWalStorageManager
from plugin.prices import Prices
from plugin.remote_wal_storage_manager import StorageContext
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteWalCombinedLogSegmentMetadata,
)
from plugin.store_loop import ask
from plugin.wall_clock import Clocks
from rlm.archive.archive_care import ArchiveCare, CareDuties, CareLimits
from rlm.archive.archive_task import ArchiveSources
from rlm.archive.archiving import Archiving, ArchivingLimits
from rlm.lifecycle.release import ClusterView
from rlm.write_path.assignment import Assignment
from rlm.write_path.metrics import ArchiveMetrics
from rlm.write_path.runtime import Runtime
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
            **changes,
        }
    )


def _load(tmp_path: Path) -> ArchiveStorage:
    where = {"directory": str(tmp_path / "archive")}
    return load_archive_storage(StorageSpec("plugin.local_directory.LocalWalStorageManager", None, where), CONTEXT)


def _limits() -> ArchivingLimits:
    """All is archived, whatever its size."""
    limits = archiving_limits(_settings())
    return replace(limits, task=replace(limits.task, plan=replace(limits.task.plan, min_bytes=1, settled_ms=0)))


def _uploaded(tmp_path: Path) -> tuple[LocalWalStorageManager, RemoteWalMetadataStore, bytes]:
    storage = LocalWalStorageManager()
    storage.configure({"directory": str(tmp_path / "wal")}, CONTEXT)
    raw = batches(6, records=2)
    entry = RemoteLogSegmentMetadataEntry(ORDERS, 0, 0, 11, -1, -1, 0)
    started = RemoteWalCombinedLogSegmentMetadata(CombinedSegmentId(1, 7, 0), (entry,), STARTED, WALL_MS)
    update = ask(storage.copy_log_segment_data(started, [raw]))
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
    archiving = Archiving(
        partial(_load, tmp_path),
        CombinedSegmentId(1, 8, 0),
        ArchiveSources("cluster", storage, store, topic.archive, topic, lambda: True),
        _limits(),
        lambda: CareDuties({1: 8}, ClusterView()),
        ArchiveMetrics(CollectorRegistry()),
        Runtime(Clocks(time.monotonic, lambda: WALL_MS + 1)),
    )
    assignment = Assignment(ORDERS, "orders", directory, LinkPolicy.COST, 20, archive=True)
    archiving.assign([replace(assignment, archive=False)])
    running = asyncio.create_task(archiving.run())
    archiving.assign([assignment])
    async with asyncio.timeout(60):
        await topic.committed.wait()
    ((object_id, _),) = topic.archive.objects(FINISHED)
    assert archiving.storage is not None
    assert archiving.missing is None
    ((stored,),) = [part async for part in archiving.storage.list()]
    (run,) = await archiving.storage.fetch_runs(stored)
    assert await archiving.storage.fetch(object_id, run.start_file_position, run.end_file_position) == raw
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    archiving.close()
    storage.close()


@pytest.mark.parametrize("name", ["no.such.Manager", "plugin.local_directory.LocalWalStorageManager"])
async def test_an_archive_that_cannot_be_loaded_is_told_and_stops_nothing(tmp_path: Path, name: str) -> None:
    storage, store, _ = _uploaded(tmp_path)
    topic = TopicInMemory()
    told = asyncio.Event()

    async def sleep(_seconds: float) -> None:
        told.set()
        await asyncio.Event().wait()

    archiving = Archiving(
        partial(load_archive_storage, StorageSpec(name, None, {}), CONTEXT),
        CombinedSegmentId(1, 8, 0),
        ArchiveSources("cluster", storage, store, topic.archive, topic, lambda: True),
        _limits(),
        lambda: CareDuties({}, ClusterView()),
        ArchiveMetrics(CollectorRegistry()),
        Runtime(Clocks(time.monotonic, lambda: WALL_MS)),
    )
    running = asyncio.create_task(archiving.run(sleep))
    async with asyncio.timeout(60):
        await told.wait()
    assert not running.done()
    assert archiving.missing is not None
    assert "configure" in archiving.missing or "load" in archiving.missing
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    archiving.close()
    storage.close()


@pytest.mark.parametrize(
    ("objects", "doubt", "writer_is_known", "healed"),
    [(1, "", True, True), (11, "", True, False), (1, "it began anew", True, False), (1, "", False, False)],
    ids=["few", "most", "doubt", "unknown-writer"],
)
async def test_orphans_are_healed_unless_it_is_the_metadata_that_seems_lost(
    tmp_path: Path, objects: int, doubt: str, writer_is_known: bool, healed: bool
) -> None:
    archive_storage = _load(tmp_path)
    raw = batches(6, records=2)
    for sequence in range(objects):
        named = ArchiveObjectId(ORDERS, 0, 11, CombinedSegmentId(1, 7, sequence))
        building = OpenArchiveObject(CONTEXT.cluster_id, named, WALL_MS, 1000)
        building.append(0, 11, memoryview(raw), scan_batches(raw, 0, len(raw)))
        ask(archive_storage.write(named, building.seal()))
    wal_storage, store, _ = _uploaded(tmp_path)
    topic = TopicInMemory()
    duties = [CareDuties({}, ClusterView())]
    later_ms = time.time_ns() // 1_000_000 + 2 * 3_600_000
    sources = ArchiveSources("cluster", wal_storage, store, topic.archive, topic, lambda: True, lambda: doubt)
    metrics = ArchiveMetrics(CollectorRegistry())
    archiving = Archiving(
        partial(_load, tmp_path),
        CombinedSegmentId(1, 8, 0),
        sources,
        _limits(),
        lambda: duties[0],
        metrics,
        Runtime(Clocks(time.monotonic, lambda: later_ms)),
    )
    if writer_is_known:
        store.apply(RemoteWalNodeRegistration(1, 7, 1, 0))
    care = ArchiveCare(sources, archive_storage, CareLimits(), metrics)
    assert not archiving.search_orphans(care)
    assert topic.archive.objects(DELETING) == []
    duties[0] = CareDuties({1: 8}, ClusterView())
    assert archiving.search_orphans(care)
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
    usual = archive_links(settings.archive, ArchiveStore(), prices)
    dear = replace(prices, s3_standard=replace(prices.s3_standard, retrieval_gb=0.03))
    never = archive_links(settings.archive, ArchiveStore(), dear)
    assert usual is not None
    assert never is not None
    assert usual.min_run_bytes < 1 << 20 < 1 << 40 < never.min_run_bytes
    assert archive_links(_settings().archive, ArchiveStore(), dear) is None
