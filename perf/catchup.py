"""How a follower catches up after it missed much, beside stock Kafka: time, and bytes that cross the zone border."""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from cli.tables import show, table
from local_cluster.agent_metrics import Counters, scrape_all
from local_cluster.broker_config import AgentsMode
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.topic_switch import LINKED, set_topics
from local_cluster.workload.replica_comparison import compare_replicas
from perf.clusters import log_bytes, object_store, started_cluster
from perf.options import LatencyMs, Results

_FOLLOWER = 3
_RECORD_BYTES = 1000
_PATIENCE_S = 300.0
_LOOK_S = 0.02
_STOCK = "stock"
_AGENTS = "agents"


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """One catch-up."""

    cluster: str
    round: int
    missed_bytes: int
    seconds: float
    """From the first byte that the follower's log grows by until it is level with the leaders'."""
    border_bytes: int
    """To this and all other followers meanwhile, requests included; in stock Kafka, what was missed."""
    linked_share: float
    agent_cpu_s: float
    gets: int

    @property
    def mb_per_s(self) -> float:
        return self.missed_bytes / 1e6 / self.seconds


def catchup(
    megabytes: Annotated[int, typer.Option(min=1, help="What the follower misses.")] = 200,
    partitions: Annotated[int, typer.Option(min=1)] = 6,
    rounds: Annotated[int, typer.Option(min=1)] = 2,
    latency_ms: LatencyMs = 5,
    results: Results = Path("perf/results"),
) -> None:
    """Kill a broker, produce, start the leaders' agents anew, start the broker, and watch it catch up."""
    from rich.console import Console

    console = Console()
    results.mkdir(parents=True, exist_ok=True)
    file = results / "catchup.json"
    about = {"megabytes": megabytes, "partitions": partitions, "latency_ms": latency_ms}
    found: list[CaughtUp] = []
    with (
        console.status("preparing") as line,
        tempfile.TemporaryDirectory(prefix="remote-wal-catchup-") as directory,
        object_store("directory", latency_ms) as store,
        started_cluster(Path(directory) / _STOCK, None) as stock,
        started_cluster(Path(directory) / _AGENTS, AgentsMode(store)) as agents,
    ):
        for number in range(rounds):
            for name, cluster in ((_STOCK, stock), (_AGENTS, agents)):
                line.update(f"{name}, round {number + 1} of {rounds}")
                found.append(_catch_up(cluster, name, number, megabytes, partitions))
                # After each, so that a run that is cut short leaves its part.
                file.write_text(json.dumps({**about, "rounds": [asdict(one) for one in found]}, indent=1))
    _print(found)
    console.print(f"written: {file}")


def _catch_up(cluster: LocalCluster, name: str, number: int, megabytes: int, partitions: int) -> CaughtUp:
    topic = f"missed-{number}"
    # Two leaders, so that the follower reads from both at a time.
    cluster.admin.create_topic(topic, assignment=[[1 + p % 2, 2 - p % 2, _FOLLOWER] for p in range(partitions)])
    if name == _AGENTS:
        set_topics(cluster.bootstrap_servers, [topic], LINKED)
    cluster.admin.wait_for_full_isr(topic, timeout_s=_PATIENCE_S)
    cluster.broker(_FOLLOWER).kill()
    for partition in range(partitions):
        cluster.admin.wait_for_isr(topic, [1, 2], partition=partition, timeout_s=_PATIENCE_S)
    cluster.tools.produce(
        topic, records=megabytes * 1_000_000 // _RECORD_BYTES, record_bytes=_RECORD_BYTES, config={"acks": "1"}
    )
    before = Counters()
    if name == _AGENTS:
        wait_until(lambda: scrape_all(cluster).gauge("remote_wal_upload_lag_bytes") == 0, "all is stored", _PATIENCE_S)
        for broker_id in (1, 2):
            cluster.agent(broker_id).terminate()
            cluster.start_agent(broker_id)
        before = scrape_all(cluster).counters
    missed_bytes = log_bytes(cluster, 1, topic, partitions)
    cluster.start_broker(_FOLLOWER, wait=False)
    seconds = _seconds_to_grow(lambda: log_bytes(cluster, _FOLLOWER, topic, partitions), missed_bytes)
    cluster.wait_for_brokers([_FOLLOWER])
    cluster.admin.wait_for_full_isr(topic, timeout_s=_PATIENCE_S)
    counted = scrape_all(cluster).counters.since(before) if name == _AGENTS else Counters()
    comparison = compare_replicas(cluster, topic, _PATIENCE_S)
    if not comparison.identical:
        raise SystemExit(f"{name}: {comparison}")
    linked, inline = counted.linked_bytes, counted.inline_bytes
    return CaughtUp(
        name,
        number,
        missed_bytes,
        seconds,
        int(counted.zone_bytes) if name == _AGENTS else missed_bytes,
        linked / max(linked + inline, 1),
        counted.cpu_s,
        int(counted.gets),
    )


def _seconds_to_grow(held_bytes: Callable[[], int], end_bytes: int) -> float:
    start_bytes = held_bytes()
    wait_until(lambda: held_bytes() > start_bytes, "the follower fetches", _PATIENCE_S, interval_s=_LOOK_S)
    started = time.monotonic()
    wait_until(lambda: held_bytes() >= end_bytes, "the follower has all", _PATIENCE_S, interval_s=_LOOK_S)
    return time.monotonic() - started


def _print(found: list[CaughtUp]) -> None:
    rows = []
    for name in (_STOCK, _AGENTS):
        runs = [run for run in found if run.cluster == name]
        figure = {
            key: median(getattr(run, key) for run in runs)
            for key in ("missed_bytes", "seconds", "mb_per_s", "border_bytes", "linked_share", "agent_cpu_s", "gets")
        }
        of_agents = (f"{figure['linked_share']:.1%}", f"{figure['agent_cpu_s']:.1f}", f"{figure['gets']:,.0f}")
        rows.append(
            (
                name,
                f"{figure['missed_bytes'] / 1e6:,.0f}",
                f"{figure['seconds']:.1f}",
                f"{figure['mb_per_s']:.0f}",
                f"{figure['border_bytes'] / 1e6:,.1f}",
                f"{figure['border_bytes'] / figure['missed_bytes']:.2%}",
                *(of_agents if name == _AGENTS else ("", "", "")),
            )
        )
    columns = (">missed MB", ">s", ">MB/s", ">border MB", ">of missed", ">linked", ">agents' CPU s", ">GET")
    show(table("cluster", *columns, rows=rows, title="Catching up (medians)"))
