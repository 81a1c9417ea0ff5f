"""acks=all to brokers directly and by agents that hold the answers, in turns on one cluster of real brokers.

Of two topics one is linked whole, and the other goes inline, as in stock Kafka. Producers whose answers are held stand
in one zone, so they reach two of three brokers by the gateway of their zone, as an operator's do; the others are led
past all agents.
"""

import json as json_codec
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from local_cluster.agent_metrics import scrape
from local_cluster.broker_config import AgentsMode
from local_cluster.topic_switch import set_topics
from local_cluster.zone_gateways import ZoneGateways
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from perf.clusters import object_store, started_cluster

if TYPE_CHECKING:
    from local_cluster.cluster import LocalCluster

_GATEWAYS = ZoneGateways({1: "az1", 2: "az2", 3: "az3"}, durable=True, pipelined=True)
_PARTITIONS = 12
_LINKED, _STOCK = "linked", "stock"
_RECORD_BYTES = 1000


@dataclass(frozen=True, slots=True)
class Load:
    """Kafka's own producers, with its default settings but for these."""

    name: str
    producers: int = 1
    records_per_s: int = -1
    """Of each; -1: as fast as it goes."""


LOADS = (
    Load("one producer, as fast as it goes"),
    Load("one producer at 4 MB/s", records_per_s=4_000),
    Load("six producers, as fast as they go", producers=6),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of a load came to."""

    load: str
    way: str
    acks: str
    mb_per_s: float
    p50_ms: float
    p99_ms: float
    agents_cpu_s_per_gb: float


def acks(
    store: Annotated[str, typer.Option(help="directory, s3, s3express or s3-native.")] = "directory",
    latency_ms: Annotated[int, typer.Option(min=0, help="The store's latency for PUT and for GET.")] = 5,
    records: Annotated[int, typer.Option(min=1000, help="Of each producer and run.")] = 60_000,
    rounds: Annotated[int, typer.Option(min=1)] = 2,
    json: Annotated[Path | None, typer.Option(dir_okay=False, help="Where the figures go as JSON.")] = None,
) -> None:
    """Measure acks=all with links, directly and with held answers, beside stock Kafka and acks=1."""
    from rich.console import Console

    from cli.tables import show, table

    console = Console(stderr=True)
    with (
        console.status("starting the cluster"),
        tempfile.TemporaryDirectory(prefix="remote-wal-acks-") as directory,
        object_store(store, latency_ms) as spec,
        started_cluster(Path(directory) / "agents", AgentsMode(spec, gateways=_GATEWAYS)) as cluster,
    ):
        assignment = [[1 + (one + step) % 3 for step in range(3)] for one in range(_PARTITIONS)]
        for topic in (_LINKED, _STOCK):
            cluster.admin.create_topic(topic, assignment=assignment)
        set_topics(cluster.bootstrap_servers, [_LINKED], TopicSettings(enable=True, link_policy=LinkPolicy.ALWAYS))
        outcomes = []
        for one in _runs(cluster, records, rounds):
            outcomes.append(one)
            console.print(f"{one.load}, {one.way}, acks={one.acks}: {one.mb_per_s:.1f} MB/s, p50 {one.p50_ms:.0f} ms")
    rows = [
        [one.load, one.way, one.acks, *(f"{value:.1f}" for value in list(asdict(one).values())[3:])] for one in outcomes
    ]
    show(table("load", "way", "acks", "MB/s", "p50 ms", "p99 ms", "agents' CPU s/GB", rows=rows))
    if json is not None:
        json.write_text(json_codec.dumps([asdict(one) for one in outcomes], indent=2) + "\n")


def _runs(cluster: "LocalCluster", records: int, rounds: int) -> Iterator[Outcome]:
    """Each load by each way, one after the other, in each round; the first runs, which warm up, are not told."""
    direct = cluster.layout.bootstrap_servers
    held = _GATEWAYS.bootstrap_servers(cluster.layout, "az1")
    ways = [
        ("held", held, _LINKED, "all"),
        ("direct", direct, _LINKED, "all"),
        ("stock", direct, _STOCK, "all"),
        ("direct", direct, _LINKED, "1"),
    ]
    for way, address, topic, acks_ in ways:
        _run(cluster, LOADS[0], way, address, topic, {"acks": acks_}, records // 10)
    for _ in range(rounds):
        for load in LOADS:
            for way, address, topic, acks_ in ways:
                yield _run(cluster, load, way, address, topic, {"acks": acks_}, records)


def _run(
    cluster: "LocalCluster", load: Load, way: str, address: str, topic: str, config: Mapping[str, str], records: int
) -> Outcome:
    tools = cluster.runtime.tools(address)
    before = _cpu_s(cluster)
    with ThreadPoolExecutor(load.producers) as pool:
        each = max(records // load.producers, 1000)
        running = [
            pool.submit(
                tools.produce,
                topic,
                records=each,
                record_bytes=_RECORD_BYTES,
                records_per_s=load.records_per_s,
                config=config,
            )
            for _ in range(load.producers)
        ]
        results = [one.result() for one in running]
    mb_per_s = sum(one.records_per_s for one in results) * _RECORD_BYTES / 1e6
    gb = sum(one.records for one in results) * _RECORD_BYTES / 1e9
    p50_ms = sum(one.p50_ms for one in results) / len(results)
    p99_ms = sum(one.p99_ms for one in results) / len(results)
    return Outcome(load.name, way, config["acks"], mb_per_s, p50_ms, p99_ms, (_cpu_s(cluster) - before) / gb)


def _cpu_s(cluster: "LocalCluster") -> float:
    return sum(scrape(cluster, one).counters.cpu_s for one in cluster.broker_ids)
