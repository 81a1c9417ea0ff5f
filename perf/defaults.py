"""Measures what the default policy links on real brokers: plain loads with it, compared with inline and with `always`.

Each load runs on three topics of one cluster, one after the other, so that a change of the machine's speed affects all.
"""

import json as json_format
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from cli.connection import Json
from cli.tables import show, table
from local_cluster.agent_metrics import Counters, scrape
from local_cluster.broker_config import AgentsMode
from local_cluster.cluster import LocalCluster
from local_cluster.kafka_tools import KafkaTools
from local_cluster.topic_switch import set_topics
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from perf.clusters import object_store, started_cluster
from perf.ladder.small_requests import figures_of, librdkafka_latencies
from perf.ladder.turns import NOT_KEPT_UP, spread
from perf.ladder.workloads import RECORD_BYTES, Figures, produced
from perf.options import LatencyMs

_PARTITIONS: Final = 12
_INLINE: Final = "inline"
_TOPICS: Final = {
    _INLINE: None,
    "cost": TopicSettings(True, LinkPolicy.COST),
    "always": TopicSettings(True, LinkPolicy.ALWAYS),
}
"""By name, the settings of the topics that are compared."""
_CLUSTER: Final = {"log.segment.bytes": str(1 << 30)}

Run = Callable[[KafkaTools, str, float], Figures]
"""Runs a load against a topic for this many seconds."""


def java(mb_per_s: float, acks: str, producers: int = 1, **config: str) -> Run:
    """Run Kafka's producers, at this rate together; 0: as fast as they can, with as many records as 30 MB/s would
    send.
    """

    def run(tools: KafkaTools, topic: str, seconds: float) -> Figures:
        each_per_s = round(mb_per_s * 1e6 / RECORD_BYTES / producers)
        records = producers * int((each_per_s or 30_000 / producers) * seconds)
        settings = {"acks": acks} | {name.replace("_", "."): value for name, value in config.items()}
        return produced(tools, topic, producers, records, settings, each_per_s or -1)

    return run


def librdkafka(records_per_s: int) -> Run:
    """Run one producer that sends each record at once, with acks=all."""

    def run(tools: KafkaTools, topic: str, seconds: float) -> Figures:
        servers, config = tools.bootstrap_servers, {"linger.ms": 0}
        taken_ms = librdkafka_latencies(servers, topic, records_per_s, seconds, config, _PARTITIONS)
        return {"MB/s": records_per_s * RECORD_BYTES / 1e6, **figures_of(taken_ms)}

    return run


LOADS: Final[Mapping[str, Run]] = {
    "acks=1, 3 MB/s": java(3, "1"),
    "acks=1, 10 MB/s": java(10, "1"),
    "acks=1, as fast as it can": java(0, "1"),
    "acks=all, 4 MB/s": java(4, "all"),
    "acks=all, 10 MB/s": java(10, "all"),
    "acks=all, 128 KB batches, 10 MB/s": java(10, "all", linger_ms="20", batch_size="131072"),
    "acks=all, six producers, 12 MB/s": java(12, "all", 6),
    "acks=all, librdkafka, linger 0, 900/s": librdkafka(900),
    "acks=all, librdkafka, linger 0, 2,000/s": librdkafka(2000),
    "acks=all, librdkafka, linger 0, 5,000/s": librdkafka(5000),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one load on one topic."""

    load: str
    topic: str
    figures: Figures
    linked_shares: Sequence[float]
    """Linked shares of the record bytes that followers got: of all leaders together first, then by leader."""
    machine_load: float
    """The average number of running or waiting processes in the last minute."""
    not_kept_up_with: str = ""


def defaults(
    load: Annotated[list[str] | None, typer.Option(help="Only loads that have this in their name.")] = None,
    topic: Annotated[list[str] | None, typer.Option(help="Only these: inline, cost, always.")] = None,
    seconds: Annotated[float, typer.Option(min=2, help="For each load on each topic.")] = 15.0,
    latency_ms: LatencyMs = 5,
    store: Annotated[str, typer.Option(help="directory, s3 or s3-native.")] = "directory",
    busy: Annotated[bool, typer.Option(help="Beside a loop that keeps one core busy.")] = False,
    json: Json = False,
) -> None:
    """Run plain producers against topics that are inline, by cost (the default) and always linked."""
    loads = {name: run for name, run in LOADS.items() if load is None or any(part in name for part in load)}
    measured = list[Measured]()
    with (
        tempfile.TemporaryDirectory(prefix="remote-wal-perf-") as directory,
        object_store(store, latency_ms) as spec,
        started_cluster(Path(directory) / "agents", AgentsMode(spec), overrides=_CLUSTER) as cluster,
        _busy_core() if busy else nullcontext(),
    ):
        tools = cluster.runtime.tools(cluster.bootstrap_servers)
        names = {
            one: _created(cluster, one, settings) for one, settings in _TOPICS.items() if topic is None or one in topic
        }
        for warmed in names.values():
            java(5, "1")(tools, warmed, 5.0)
        for name, run in loads.items():
            for kind, kafka_topic in names.items():
                measured.append(_measure(cluster, tools, name, run, kind, kafka_topic, seconds))
                if not json:
                    _print(measured[-1:])
    if json:
        typer.echo(json_format.dumps([asdict(one) for one in measured], indent=1))
    else:
        _print(measured)


def _created(cluster: LocalCluster, name: str, settings: TopicSettings | None) -> str:
    brokers = cluster.broker_ids
    cluster.admin.create_topic(name, assignment=spread(brokers, brokers, _PARTITIONS))
    if settings is not None:
        set_topics(cluster.bootstrap_servers, [name], settings)
    return name


def _measure(
    cluster: LocalCluster, tools: KafkaTools, name: str, run: Run, kind: str, topic: str, seconds: float
) -> Measured:
    before = {one: scrape(cluster, one).counters for one in cluster.broker_ids}
    try:
        figures, reason = run(tools, topic, seconds), ""
    except NOT_KEPT_UP as error:
        figures, reason = {}, str(error) or type(error).__name__
    counted = [scrape(cluster, one).counters.since(earlier) for one, earlier in before.items()]
    shares = [one.topics_linked_share for one in (sum(counted, Counters()), *counted)]
    return Measured(name, kind, figures, shares, os.getloadavg()[0], reason)


def _print(measured: Sequence[Measured]) -> None:
    rows = [
        (
            one.load,
            one.topic,
            *(
                f"{one.figures[figure]:.1f}" if figure in one.figures else "-"
                for figure in ("MB/s", "p50 ms", "p99 ms")
            ),
            *(("", "") if one.topic == _INLINE else _shares(one)),
            one.not_kept_up_with or f"{one.machine_load:.1f}",
        )
        for one in measured
    ]
    columns = ("load", "topic", ">MB/s", ">p50 ms", ">p99 ms", ">linked", "by leader", ">machine")
    show(table(*columns, rows=rows, title="Plain loads by the default policy, inline and always linked"))


def _shares(one: Measured) -> tuple[str, str]:
    total, *by_leader = (f"{share:.1%}" for share in one.linked_shares)
    return total, " ".join(by_leader)


@contextmanager
def _busy_core() -> Iterator[None]:
    """Keep one core busy inside the block."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()
