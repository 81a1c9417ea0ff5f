"""What benchmarks run on: clusters of this machine, and object stores with a latency."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.object_store.native import start_native_store
from local_cluster.object_store.store_spec import LocalDirectoryStore, S3Store, StoreKind, StoreSpec

NATIVE = StoreKind.S3_NATIVE.value
"""A native S3 server under TLS."""
_MEMORY = Path("/dev/shm")  # noqa: S108 (a directory of its own is made in it)


@contextmanager
def started_cluster(
    directory: Path, agents: AgentsMode | None, *, brokers: int = 3, **settings: Any
) -> Iterator[LocalCluster]:
    """A cluster that runs, as one that lives long enough for the full compiler; destroyed in the end."""
    made = ClusterSettings(agents=agents, full_compiler=True, **settings)
    cluster = LocalCluster.create(directory, brokers=brokers, settings=made)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill_all()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def object_store(kind: str, latency_ms: int) -> Iterator[StoreSpec]:
    """A directory, or an S3 server of this machine; these with this latency for PUT and GET. Or a native one, as it is.

    What is in memory does not wait for this machine's disk, which the brokers' logs are on.
    """
    if kind == "directory":
        with directory_in_memory() as directory:
            yield LocalDirectoryStore(latency_ms, latency_ms, directory)
        return
    if kind == NATIVE:
        with directory_in_memory() as directory:
            process, spec = start_native_store(directory, "remote-wal")
            try:
                yield spec
            finally:
                process.kill()
        return
    from local_cluster.object_store.front import ObjectStoreFront
    from local_cluster.object_store.server import ObjectStoreServer

    front = ObjectStoreFront(put_latency=latency_ms / 1000, get_latency=latency_ms / 1000)
    with ObjectStoreServer(front, ("remote-wal",)) as server:
        yield S3Store(server.endpoint_url, "remote-wal")


@contextmanager
def directory_in_memory() -> Iterator[Path]:
    """For objects, where the machine has such a place.

    So a store's latency is the simulated one and not that of this machine's disk, which the brokers' logs are on.
    """
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as directory:
        yield Path(directory)


def log_bytes(cluster: LocalCluster, broker_id: int, topic: str, partitions: int = 1) -> int:
    """Of all partitions' replicas there."""
    directories = (cluster.files.partition_directory(broker_id, topic, number) for number in range(partitions))
    return sum(file.stat().st_size for found in directories if found is not None for file in found.glob("*.log"))
