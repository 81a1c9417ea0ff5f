"""A bucket for each zone, as the agent takes them up: what is away keeps neither replication nor the others back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agent.settings.setting_types import AgentSettingsError
from agent.settings_file import agent_settings
from agent.storage_loading import StorageLoading
from kafka_log.broker_files.server_properties import parse_broker_properties
from plugin.errors import RemoteStorageError
from plugin.format.bucket_id import bucket_id
from plugin.loading import StorageSpec
from plugin.remote_wal_storage_manager import StorageContext
from plugin.store_loop import ask
from plugin.wrappers.guarded_storage import GuardedStorageManager
from plugin.zones.bucket_loading import load_storage
from tests.agent.agent_rig import running_agent
from tests.faulty_store import Fault, FaultyFront, FaultyServer
from tests.plugin.storage_backends import segment

CONTEXT = StorageContext("cluster", 1)
FILE = Path("/etc/kafka/server.properties")


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer(FaultyFront(), ["bucket-one", "bucket-two"]) as server:
        yield server


@pytest.fixture
def spec(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> StorageSpec:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "planted")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    monkeypatch.setattr("plugin.loading.RETRY_S", 0.05)
    settings = {"endpoint.url": server.endpoint_url, "allow.http": "true", "region": "us-east-1",
                "total.timeout.ms": "1000", "attempt.timeout.ms": "1000"}  # fmt: skip
    buckets = {"az1": "bucket-one", "az2": "bucket-two"}
    return StorageSpec("plugin.s3.S3WalStorageManager", None, settings, "rsm.", buckets, "az1")


def away(bucket: str) -> Fault:
    return Fault("error", path_part=bucket)


@asynccontextmanager
async def loading(spec: StorageSpec) -> AsyncIterator[tuple[StorageLoading, GuardedStorageManager]]:
    storage = GuardedStorageManager()
    loading = StorageLoading(spec, CONTEXT, storage)
    running = asyncio.create_task(loading.run())
    try:
        yield loading, storage
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        storage.close()


async def until_there(storage: GuardedStorageManager) -> None:
    assert await asyncio.to_thread(storage.wait_until_there, 60)


async def test_the_own_zones_bucket_is_away_and_the_others_are_read_all_the_same(
    spec: StorageSpec, server: FaultyServer
) -> None:
    other = load_storage(replace(spec, zone="az2"), CONTEXT)
    update = await asyncio.to_thread(ask, other.copy_log_segment_data(*segment(0, [b"abc"])))
    other.close()
    server.faults.add(away("bucket-one"))
    async with loading(spec) as (loaded, storage):
        await until_there(storage)
        assert "bucket-one" in str(loaded.missing)
        named = (update.combined_segment_id, 0, 4, update.custom_metadata)
        assert await asyncio.to_thread(ask, storage.fetch_log_segment(*named)) == b"RWAL"
        with pytest.raises(RemoteStorageError, match=r"bucket-one|503|in time"):
            await asyncio.to_thread(ask, storage.copy_log_segment_data(*segment(1, [b"abc"])))
        server.faults.clear()
        async with asyncio.timeout(60):
            while str(loaded.missing) != "None":  # noqa: ASYNC110 - a thread is behind it
                await asyncio.sleep(0.01)
        written = await asyncio.to_thread(ask, storage.copy_log_segment_data(*segment(1, [b"abc"])))
        assert written.custom_metadata == bucket_id("bucket-one")
        assert (loaded.missing, loaded.away) == (None, {})


async def test_another_zones_bucket_is_away_and_the_own_one_is_written_to(
    spec: StorageSpec, server: FaultyServer
) -> None:
    server.faults.add(away("bucket-two"))
    async with loading(spec) as (loaded, storage):
        await until_there(storage)
        await asyncio.to_thread(ask, storage.copy_log_segment_data(*segment(0, [b"abc"])))
        assert loaded.missing is None


async def test_another_zones_settings_are_wrong_and_that_is_told_of_that_bucket_alone(spec: StorageSpec) -> None:
    wrong = replace(spec, settings={**spec.settings, "zone.az2.attempt.timeout.ms": "soon"})
    async with loading(wrong) as (loaded, storage):
        await until_there(storage)
        await asyncio.to_thread(ask, storage.copy_log_segment_data(*segment(0, [b"abc"])))
        assert loaded.missing is None
        assert "rsm.attempt.timeout.ms" in loaded.away["bucket-two"]


async def test_while_no_bucket_is_there_nothing_is(spec: StorageSpec, server: FaultyServer) -> None:
    alone = replace(spec, buckets={"az1": "bucket-one"})
    server.faults.add(away("bucket-one"))
    async with loading(alone) as (loaded, storage):
        async with asyncio.timeout(60):
            while loaded.missing is None or "503" not in loaded.missing:  # noqa: ASYNC110 - a thread is behind it
                await asyncio.sleep(0.01)
        assert not storage.is_there
        server.faults.clear()
        await until_there(storage)


@pytest.mark.parametrize("rack", ["", "broker.rack=az9\n"])
async def test_a_broker_whose_zone_has_no_bucket_is_served_inline_and_readyz_names_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rack: str
) -> None:
    buckets = f"az1={tmp_path}/one,az2={tmp_path}/two\n{rack}"
    async with running_agent(tmp_path, monkeypatch, remote_wal_buckets=buckets) as rig:
        await rig.until(lambda: any("remote.wal.buckets" in reason for reason in rig.agent.state.not_ready()))
        await rig.expect_relaying()
        assert rig.agent.state.describe()["storage_ready"] is False


async def test_an_agent_writes_to_its_zones_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buckets = f"az1={tmp_path}/one,az2={tmp_path}/two\nbroker.rack=az2"
    async with running_agent(tmp_path, monkeypatch, remote_wal_buckets=buckets) as rig:
        relaying = rig.agent.state.relaying
        assert relaying is not None
        await rig.until(lambda: relaying.storage.is_there)
        assert not any("bucket" in reason for reason in rig.agent.state.degraded())
        update = await asyncio.to_thread(ask, relaying.storage.copy_log_segment_data(*segment(0, [b"abc"])))
        assert update.custom_metadata == bucket_id(f"{tmp_path}/two")
        assert list((tmp_path / "two").rglob("*.rwal"))


async def test_buckets_that_reads_gave_up_degrade_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buckets = f"az1={tmp_path}/one,az2={tmp_path}/two\nbroker.rack=az2"
    async with running_agent(tmp_path, monkeypatch, remote_wal_buckets=buckets) as rig:
        relaying = rig.agent.state.relaying
        assert relaying is not None
        await rig.until(lambda: relaying.storage.is_there)
        metadata, _ = segment(0, [])
        for _ in range(3):
            relaying.hydration.timed_out([(metadata.combined_segment_id, bucket_id(f"{tmp_path}/one"))])
        assert rig.agent.state.describe()["buckets_given_up"] == [f"{tmp_path}/one"]
        assert any(f"{tmp_path}/one" in reason for reason in rig.agent.state.degraded())


@pytest.mark.parametrize("buckets", ["az1", "az1=a,az1=b", "=a"])
def test_a_list_that_cannot_be_read_is_told_with_its_key(buckets: str) -> None:
    raw = {"node.id": "1", "log.dirs": "/d", "remote.wal.buckets": buckets}
    with pytest.raises(AgentSettingsError, match=r"remote\.wal\.buckets"):
        agent_settings(parse_broker_properties(raw, FILE), FILE)


def test_the_spec_has_the_zone_of_the_broker_and_the_storage_managers_own_settings() -> None:
    raw = {"node.id": "1", "log.dirs": "/d", "broker.rack": "az2", "remote.wal.buckets": "az1=a, az2=b",
           "rsm.wal.config.region": "r"}  # fmt: skip
    broker = parse_broker_properties(raw, FILE)
    spec = agent_settings(broker, FILE).store_spec(broker)
    assert (spec.buckets, spec.zone, spec.settings) == ({"az1": "a", "az2": "b"}, "az2", {"region": "r"})
