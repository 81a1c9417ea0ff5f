"""Compares versions of the agents: the same loads, in turns, on the same warm brokers and on stock.

Brokers become faster for minutes after a start, because their compilers continue, and a machine changes its speed from
one quarter of an hour to the next. So the brokers stay, and only the agents are restarted between two runs.
"""

import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from local_cluster.broker_config import AgentsMode
from local_cluster.cluster import LocalCluster
from local_cluster.object_store.store_spec import StoreSpec
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from perf.clusters import object_store, started_cluster
from perf.ladder.report import line_of, print_tables, write_json
from perf.ladder.turns import Entrant, Length, Measured, Turns
from perf.ladder.workloads import Workload
from perf.options import LatencyMs, Partitions, Rounds, Scale, WarmUp, WorkloadNames, chosen_workloads

THIS = "this"
_STORE = "directory"
_KEPT = {
    "log.segment.bytes": str(32 << 20),
    "log.retention.bytes": str(64 << 20),
    "log.retention.check.interval.ms": "10000",
}
"""Long comparisons write much, so the brokers, and therefore the store, keep little of it."""


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
    policy: Annotated[LinkPolicy, typer.Option(help="Of the agents' topics.")] = LinkPolicy.ALWAYS,
    results: Annotated[Path, typer.Option(dir_okay=False, help="Where the data go.")] = Path(
        "perf/results/versions.json"
    ),
) -> None:
    """Compare the agents of this checkout with those of others on brokers that stay."""
    loads = chosen_workloads(workload or ["acks-all-six"], partitions)
    settings = TopicSettings(True, policy)
    measured = compare_versions(loads, Length(rounds, scale, warm_up), checkout or [], settings, latency_ms, results)
    print_tables(loads, measured)


def compare_versions(
    loads: Sequence[Workload],
    length: Length,
    checkouts: Sequence[Path],
    settings: TopicSettings,
    latency_ms: int,
    results: Path,
) -> Sequence[Measured]:
    """Compare this checkout and others in turns, with topics of these settings."""
    from rich.console import Console

    console = Console()
    results.parent.mkdir(parents=True, exist_ok=True)

    def keep(measured: Sequence[Measured]) -> None:
        if measured[-1].not_kept_up_with:
            console.print(line_of(measured[-1]), soft_wrap=True)
        write_json(results, loads, measured)

    with (
        console.status("preparing") as line,
        tempfile.TemporaryDirectory(prefix="remote-wal-perf-") as directory,
        object_store(_STORE, latency_ms) as store,
        started_cluster(Path(directory) / "stock", None, overrides=_KEPT) as stock,
        started_cluster(Path(directory) / "agents", AgentsMode(store), overrides=_KEPT) as agents,
    ):
        turns = Turns(length, line.update, keep)
        entrants = [
            Entrant(name, agents, "links", settings, partial(_put_in_place, agents, mode))
            for name, mode in modes_of(store, checkouts).items()
        ]
        turns.run(loads, _STORE, stock, entrants)
    console.print(f"written: {results}")
    return turns.measured


def _put_in_place(cluster: LocalCluster, mode: AgentsMode, topic: str) -> None:
    # One after the other: an agent's last words are replicated by way of the others.
    for broker_id in cluster.broker_ids:
        cluster.agent(broker_id).terminate()
        cluster.configure(mode)  # counts for those that do not run
        cluster.start_agent(broker_id)
    cluster.admin.wait_for_full_isr(topic)


def modes_of(store: StoreSpec, checkouts: Sequence[Path]) -> dict[str, AgentsMode]:
    """Return the modes by the versions' names: their directories' names, or their paths if those are not unique."""
    paths = [path.resolve() for path in checkouts]
    named = Counter(path.name for path in paths)
    modes = {THIS: AgentsMode(store)}
    for path in paths:
        is_unique = named[path.name] == 1 and path.name != THIS
        modes[path.name if is_unique else str(path)] = AgentsMode(store, checkout=path)
    return modes
