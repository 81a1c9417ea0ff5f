"""Clusters of this machine for benchmarks, and object stores with a latency."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.object_store.native import LOOPBACK, start_native_store
from local_cluster.object_store.store_spec import LocalDirectoryStore, S3Store, StoreKind, StoreSpec
from local_cluster.zone_hosts import ZoneHosts, hosts_where_allowed

NATIVE = StoreKind.S3_NATIVE.value
"""A native S3 server under TLS."""
_STORE = 9
"""The store's number among hosts."""
_STOCK_HOSTS, _AGENTS_HOSTS = (ZoneHosts(network, (1, 2, 3, _STORE)) for network in ("198.18", "198.19"))
"""The hosts' networks are kept free for benchmarks (RFC 2544)."""
_MEMORY = Path("/dev/shm")  # noqa: S108 (a directory of its own is made in it)


@dataclass(frozen=True, slots=True)
class Ground:
    """The hosts of a stock cluster and of one with agents."""

    stock: ZoneHosts | None = None
    agents: ZoneHosts | None = None
    """The hosts of the cluster with agents, and of the store."""

    @property
    def told(self) -> str:
        """A description for people."""
        if self.agents is None:
            return "Brokers, agents and the store share this host, and its loopback."
        return "Each broker with its agent, and a native store, has a network namespace of its own."


@contextmanager
def ground(*, loopback: bool) -> Iterator[Ground]:
    """Make network namespaces as hosts, if root and the machine allow it and `loopback` is not set."""
    hosts = () if loopback else (_STOCK_HOSTS, _AGENTS_HOSTS)
    with hosts_where_allowed(*hosts) as are_there:
        yield Ground(*hosts) if are_there else Ground()


@contextmanager
def started_cluster(
    directory: Path, agents: AgentsMode | None, *, brokers: int = 3, **settings: Any
) -> Iterator[LocalCluster]:
    """Start a cluster with the full compiler, because it lives long enough; destroy it at the end."""
    made = ClusterSettings(agents=agents, full_compiler=True, **settings)
    cluster = LocalCluster.create(directory, brokers=brokers, settings=made)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill_all()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def object_store(kind: str, latency_ms: int, hosts: ZoneHosts | None = None) -> Iterator[StoreSpec]:
    """Start a directory or an S3 server of this machine with this latency for PUT and GET, or a native one as it is.

    A native one is on a host of its own, if there are hosts, the others on this one. Objects are in memory, so that the
    store does not wait for this machine's disk, which the brokers' logs are on.
    """
    if kind == "directory":
        with directory_in_memory() as directory:
            yield LocalDirectoryStore(latency_ms, latency_ms, directory)
        return
    if kind == NATIVE:
        with directory_in_memory() as directory:
            host, prefix = (LOOPBACK, ()) if hosts is None else (hosts.address(_STORE), hosts.prefix(_STORE))
            process, spec = start_native_store(directory, "remote-wal", host=host, prefix=prefix)
            try:
                yield spec
            finally:
                process.kill()
        return
    from local_cluster.object_store.front import ObjectStoreFront
    from local_cluster.object_store.server import ObjectStoreServer

    front = ObjectStoreFront(put_latency=latency_ms / 1000, get_latency=latency_ms / 1000)
    with ObjectStoreServer(front, ("remote-wal",), host=LOOPBACK if hosts is None else hosts.here) as server:
        yield S3Store(server.endpoint_url, "remote-wal")


@contextmanager
def directory_in_memory() -> Iterator[Path]:
    """Make a directory for objects, in memory if possible.

    So a store's latency is the simulated one and not that of this machine's disk, which the brokers' logs are on.
    """
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as directory:
        yield Path(directory)
