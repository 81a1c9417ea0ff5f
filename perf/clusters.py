"""What benchmarks share: clusters of this machine, object stores with a latency, and what a load used of both."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from local_cluster.agent_metrics import Counters, scrape
from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.object_store.native import LOOPBACK, start_native_store
from local_cluster.object_store.store_spec import LocalDirectoryStore, OwnStore, StoreSpec
from local_cluster.zones import ZoneHosts

Rounds = Annotated[int, typer.Option(min=1)]
Scale = Annotated[float, typer.Option(min=0.01, help="Shorter or longer loads.")]
LatencyMs = Annotated[int, typer.Option(min=0, help="The store's latency for PUT and for GET.")]


_START_S = 300.0
"""Counts are worth making on a machine with other work, too, where the compiler takes its time."""
STORE_HOST = 9
"""The store's number among hosts."""
_BROKERS = {"group.initial.rebalance.delay.ms": "0"}
"""Consumers start at once."""
T = TypeVar("T")
_MEMORY = Path("/dev/shm")  # noqa: S108 (a directory of its own is made in it)


@contextmanager
def started_cluster(directory: Path, agents: AgentsMode | None, **settings: Any) -> Iterator[LocalCluster]:
    """Start a cluster with the full compiler, because it lives long enough; destroy it at the end."""
    made = ClusterSettings(agents, _BROKERS, full_compiler=True, **settings)
    cluster = LocalCluster.create(directory, settings=made)
    try:
        cluster.start(_START_S)
        yield cluster
    finally:
        cluster.kill_all()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def object_store(kind: OwnStore, latency_ms: int, hosts: ZoneHosts | None = None) -> Iterator[StoreSpec]:
    """Start a directory with this latency for PUT and GET, or a native S3 server as it is, on a host of its own if
    there are hosts.

    Objects are in memory if possible, so that the store does not wait for this machine's disk, which the brokers' logs
    are on.
    """
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as objects:
        if kind is OwnStore.LOCAL:
            yield LocalDirectoryStore(latency_ms, latency_ms, Path(objects))
        else:
            host, prefix = (LOOPBACK, ()) if hosts is None else (hosts.address(STORE_HOST), hosts.prefix(STORE_HOST))
            process, spec = start_native_store(Path(objects), "remote-wal", host=host, prefix=prefix)
            try:
                yield spec
            finally:
                process.kill()


def spread(brokers: Sequence[int], partitions: int) -> list[list[int]]:
    """Return each partition's replicas: all brokers, each leading in turn from the second on. So a topic's only
    partition is led in another zone than the first, where clients are."""
    firsts = [brokers[number % len(brokers)] for number in range(1, partitions + 1)]
    return [[first, *(broker for broker in brokers if broker != first)] for first in firsts]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a cluster used of CPU, network and store while a load ran."""

    seconds: float
    brokers_cpu_s: float = 0.0
    agents: Mapping[int, Counters] | None = None
    """The growth of the agents' counters, by broker; None without agents."""
    entered_bytes: int = 0
    """Bytes that entered the brokers' hosts, as the kernel counts them; 0 if they have none."""

    @property
    def counted(self) -> Counters:
        """The growth of all agents' counters together."""
        return sum((self.agents or {}).values(), Counters())


def used_by(cluster: LocalCluster, load: Callable[[], T]) -> tuple[T, Usage]:
    """Run a load; return its result, and what the cluster used meanwhile."""
    has_agents, ids = cluster.settings.agents is not None, cluster.broker_ids

    def used() -> tuple[float, float, int]:
        entered = hosts.entered_bytes() if (hosts := cluster.settings.hosts) is not None else {}
        cpu_s = sum(cluster.broker(one).cpu_s() for one in ids)
        return time.monotonic(), cpu_s, sum(entered.get(one, 0) for one in ids)

    before, begun = {one: scrape(cluster, one) for one in ids} if has_agents else {}, used()
    result = load()
    seconds, cpu_s, entered = (now - then for now, then in zip(used(), begun, strict=True))
    grown = {one: scrape(cluster, one).subtract(earlier) for one, earlier in before.items()}
    return result, Usage(seconds, cpu_s, grown if has_agents else None, int(entered))
