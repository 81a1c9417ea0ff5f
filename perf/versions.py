"""Versions of the agents beside each other: the same loads, in turns, on the same warm brokers and on stock.

Brokers become faster for minutes after a start, as their compilers go on, and a machine changes its speed from one
quarter of an hour to the next. So the brokers stay, and only the agents are ended and started anew between two runs.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from local_cluster.broker_config import AgentsMode
from local_cluster.cluster import LocalCluster
from local_cluster.store_spec import StoreSpec
from metadata_topic.settings.settings_topic import SettingsWriter
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from metadata_topic.topic.client_config import KafkaClientConfig
from perf.ladder import STOCK, Measured, Tell, measure, object_store, started_cluster
from perf.options import LatencyMs, Partitions, Rounds, Scale, WarmUp, WorkloadNames, chosen_workloads
from perf.report import agent_rows, compare, round_rows
from perf.workloads import WORKLOADS, Workload

THIS = "this"
_STORE = "directory"
_KEPT = {
    "log.segment.bytes": str(32 << 20),
    "log.retention.bytes": str(64 << 20),
    "log.retention.check.interval.ms": "10000",
}
"""Long comparisons write much; so the brokers, and behind them the store, keep little of it."""


@dataclass(slots=True)
class Turns:
    """Runs loads on stock and on the agents of each version."""

    stock: LocalCluster
    agents: LocalCluster
    modes: Mapping[str, AgentsMode]
    """By the version's name."""
    tell: Tell
    keep: Callable[[Sequence[Measured]], None]

    def run(self, workloads: Sequence[Workload], rounds: int, scale: float, warm_up: float) -> list[Measured]:
        """Each load in `rounds` rounds. Which version comes first changes from round to round."""
        measured: list[Measured] = []
        for workload in workloads:
            self._create_topics(workload)
            for cluster in (self.stock, self.agents):
                self.tell(f"{workload.title}: warming up")
                workload.run(cluster.tools, workload.name, scale * warm_up)
            for number in range(rounds):
                for name in (STOCK, *_turned(list(self.modes), number)):
                    self.tell(f"{workload.title}: {name}, round {number + 1} of {rounds}")
                    measured.append(self._measure(workload, name, number, scale))
                    self.keep(measured)
        return measured

    def _create_topics(self, workload: Workload) -> None:
        for cluster in (self.stock, self.agents):
            cluster.create_topic(workload.name, partitions=workload.partitions)
        writer = SettingsWriter(KafkaClientConfig(self.agents.bootstrap_servers))
        writer.set_topic(workload.name, TopicSettings(True, LinkPolicy.ALWAYS))
        writer.close()

    def _measure(self, workload: Workload, name: str, number: int, scale: float) -> Measured:
        cluster = self.stock
        if name != STOCK:
            cluster = self.agents
            self._put_in_place(self.modes[name])
            cluster.admin.wait_for_full_isr(workload.name, partitions=workload.partitions)
        ran = measure(workload, cluster, cluster.tools, workload.name, scale)
        return Measured(workload.name, _STORE, name, number, *ran)

    def _put_in_place(self, mode: AgentsMode) -> None:
        # One after the other: an agent's last words are replicated by way of the others.
        for broker_id in self.agents.broker_ids:
            self.agents.stop_agent(broker_id)
            self.agents.configure(mode)  # counts for those that do not run
            self.agents.start_agent(broker_id)


def versions(
    checkout: Annotated[
        list[Path] | None,
        typer.Argument(exists=True, file_okay=False, help="Other checkouts of this project, beside this one."),
    ] = None,
    workload: WorkloadNames = None,
    rounds: Rounds = 3,
    scale: Scale = 1.0,
    warm_up: WarmUp = 2.0,
    partitions: Partitions = None,
    latency_ms: LatencyMs = 5,
    results: Annotated[Path, typer.Option(dir_okay=False, help="Where the data go.")] = Path(
        "perf/results/versions.json"
    ),
) -> None:
    """Compare the agents of this checkout with those of others on brokers that stay; links for every byte."""
    from rich.console import Console

    console = Console()
    loads = chosen_workloads(workload or ["acks-all-six"], partitions)
    if not loads:
        raise typer.BadParameter(f"nothing to run; there are {', '.join(one.name for one in WORKLOADS)}")
    results.parent.mkdir(parents=True, exist_ok=True)

    def keep(measured: Sequence[Measured]) -> None:
        results.write_text(json.dumps({"versions": _rows(loads, measured), "rounds": round_rows(measured)}, indent=1))

    with (
        console.status("preparing") as line,
        tempfile.TemporaryDirectory(prefix="remote-wal-perf-") as directory,
        object_store(_STORE, latency_ms) as store,
        started_cluster(Path(directory) / "stock", None, _KEPT) as stock,
        started_cluster(Path(directory) / "agents", AgentsMode(store), _KEPT) as agents,
    ):
        turns = Turns(stock, agents, _modes(store, checkout or []), line.update, keep)
        measured = turns.run(loads, rounds, scale, warm_up)
    _print(console, _rows(loads, measured))
    console.print(f"written: {results}")


def _turned(names: list[str], number: int) -> list[str]:
    return names[number % len(names) :] + names[: number % len(names)]


def _modes(store: StoreSpec, checkouts: Sequence[Path]) -> dict[str, AgentsMode]:
    paths = [path.resolve() for path in checkouts]
    named = Counter(path.name for path in paths)
    modes = {THIS: AgentsMode(store)}
    for path in paths:
        is_unique = named[path.name] == 1 and path.name != THIS
        modes[path.name if is_unique else str(path)] = AgentsMode(store, checkout=path)
    return modes


def _rows(workloads: Sequence[Workload], measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """One row per load, version and compared figure, with what the version's agents did for it."""
    costs = {(row["workload"], row["rung"]): row for row in agent_rows(measured)}
    return [row | costs[row["workload"], row["rung"]] for row in compare(workloads, measured)]


def _print(console: Any, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    figures = Table("load", "figure", "version", title="Beside stock Kafka in the same round (medians)")
    for column in ("stock", "version's", "compared", "range"):
        figures.add_column(column, justify="right")
    costs = Table("load", "version", title="What the agents did, all three together")
    for column in ("KB/object", "CPU ms/object", "CPU ms/MB", "high watermark, ms"):
        costs.add_column(column, justify="right")
    for row in rows:
        figures.add_row(
            row["workload"],
            row["figure"],
            row["rung"],
            f"{row['stock']:.1f}",
            f"{row['value']:.1f}",
            f"{row['compared']:.2f}",
            f"{row['compared_min']:.2f} to {row['compared_max']:.2f}",
        )
    for row in {(row["workload"], row["rung"]): row for row in rows}.values():
        replicated_mb, puts = row["linked_bytes"] / 2e6, max(row["puts"], 1)
        times = row["stages_ms"].get("high_watermark", {"p50": float("nan"), "p99": float("nan")})
        costs.add_row(
            row["workload"],
            row["rung"],
            f"{replicated_mb * 1e3 / puts:,.0f}",
            f"{row['agent_cpu_s'] * 1e3 / puts:.1f}",
            f"{row['agent_cpu_s'] * 1e3 / max(replicated_mb, 1e-9):.1f}",
            f"{times['p50']:.1f}/{times['p99']:.0f}",
        )
    console.print(figures)
    console.print(costs)
