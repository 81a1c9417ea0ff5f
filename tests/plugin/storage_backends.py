"""The backends under test, and the segments that tests write."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.clients.object_store import ObjectStore
from plugin.object_wal_storage_manager import ObjectWalStorageManager
from plugin.remote_wal_storage_manager import StorageContext
from plugin.segment_metadata import (
    UNKNOWN_POSITION,
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from tests.faulty_store import Fault


def thorough(*names: str) -> list[Any]:
    """Parameters of tests that only `./run test --all` runs."""
    return [pytest.param(name, marks=pytest.mark.thorough) for name in names]


class VirtualTime:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@dataclass(slots=True)
class Backend:
    """One backend, its settings, and the managers made of it."""

    manager_class: Callable[..., ObjectWalStorageManager]
    settings: Mapping[str, str]
    cluster_id: str
    made: list[ObjectWalStorageManager]

    def unconfigured(self, time: VirtualTime | None = None) -> ObjectWalStorageManager:
        arguments = {"clock": time.clock, "sleep": time.sleep} if time else {}
        manager = self.manager_class(**arguments)
        self.made.append(manager)
        return manager

    def manager(
        self, time: VirtualTime | None = None, cluster_id: str | None = None, **changes: str
    ) -> ObjectWalStorageManager:
        """`changes` in Python's spelling: attempt_timeout_ms."""
        manager = self.unconfigured(time)
        manager.configure(self.changed(**changes), StorageContext(cluster_id or self.cluster_id, 1))
        return manager

    def unwritten(self, time: VirtualTime | None = None, **changes: str) -> ObjectWalStorageManager:
        """A manager whose user writes nothing, so no write tests the store."""
        manager = self.unconfigured(time)
        manager.configure(self.changed(**changes), StorageContext(self.cluster_id, 1, is_written=False))
        return manager

    def changed(self, **changes: str) -> dict[str, str]:
        return {**self.settings, **{name.replace("_", "."): value for name, value in changes.items()}}

    def its(self, fault: Fault) -> Fault:
        """The fault for this backend's objects alone: what hung in another test goes on once its fault is cleared."""
        return replace(fault, path_part=f"{self.cluster_id}/")

    def store(self) -> ObjectStore:
        """The bare store, as an intruder would have it."""
        return self.unwritten().requests.store


def segment(
    sequence: int, records: Sequence[bytes | memoryview], broker_id: int = 1
) -> tuple[RemoteWalCombinedLogSegmentMetadata, Sequence[bytes | memoryview]]:
    """What a combine task hands over: entries without positions, and their batches."""
    entries = tuple(
        RemoteLogSegmentMetadataEntry(
            TopicIdPartition(TopicId(bytes([n % 7]) * 16), n), 3, 100 * n, 100 * n + 9, UNKNOWN_POSITION,
            UNKNOWN_POSITION, 0,
        )
        for n in range(len(records))
    )  # fmt: skip
    metadata = RemoteWalCombinedLogSegmentMetadata(
        CombinedSegmentId(broker_id, 7, sequence),
        entries,
        RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        1_700_000_000_000,
    )
    return metadata, records
