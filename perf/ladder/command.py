"""The ladder: the same loads against stock Kafka and against each step towards links.

Two clusters run side by side, one stock, one with agents; the rungs of a store share its cluster and differ in the
settings of their topics. If root allows it, each broker with its agent, and the store, has a host of its own: a network
namespace.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from local_cluster.broker_config import AgentsMode
from local_cluster.zone_gateways import ZoneGateways
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from perf.clusters import NATIVE, Ground, ground, object_store, started_cluster
from perf.ladder.report import line_of, print_tables, write_json
from perf.ladder.turns import Entrant, Length, Measured, Turns
from perf.ladder.workloads import Workload
from perf.options import LatencyMs, Partitions, Results, Rounds, Scale, WarmUp, WorkloadNames, chosen_workloads


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the ladder; `policy` None leaves remote.wal.storage.enable off."""

    name: str
    store: str
    policy: LinkPolicy | None
    is_pipelined: bool = False
    """Whether clients connect through agents that hold the answers to acks=all, as clients of the zone az1 do."""


RUNGS = (
    Rung("inline", "directory", None),
    Rung("cost", "directory", LinkPolicy.COST),
    Rung("latency", "directory", LinkPolicy.LATENCY),
    Rung("links", "directory", LinkPolicy.ALWAYS),
    Rung("acks-pipelined", "directory", LinkPolicy.ALWAYS, is_pipelined=True),
    Rung("links-s3", "s3", LinkPolicy.ALWAYS),
    Rung("cost-s3-tls", NATIVE, LinkPolicy.COST),
    Rung("latency-s3-tls", NATIVE, LinkPolicy.LATENCY),
    Rung("links-s3-tls", NATIVE, LinkPolicy.ALWAYS),
    Rung("acks-pipelined-s3-tls", NATIVE, LinkPolicy.ALWAYS, is_pipelined=True),
)
_GATEWAYS = ZoneGateways({1: "az1", 2: "az2", 3: "az3"}, durable=True, pipelined=True)
_LARGE_SEGMENTS = {"log.segment.bytes": str(1 << 30)}
"""Large segments, so that no run is slowed by a roll in another."""


def ladder(
    workload: WorkloadNames = None,
    rung: Annotated[list[str] | None, typer.Option(help="Only these rungs, beside stock.")] = None,
    rounds: Rounds = 3,
    scale: Scale = 1.0,
    warm_up: WarmUp = 0.5,
    partitions: Partitions = None,
    latency_ms: LatencyMs = 5,
    tools_as_shipped: Annotated[
        bool,
        typer.Option(help="Run Kafka's tools with their scripts' JVM options, not with those that warm up sooner."),
    ] = False,
    loopback: Annotated[bool, typer.Option(help="All on this host, though root may make network namespaces.")] = False,
    results: Results = Path("perf/results"),
) -> None:
    """Run Kafka's perf tools against stock and against agents in turns; print tables and write JSON.

    A load that a cluster does not keep up with is told; exits with 1 then. Where links are wanted for every byte (the
    rungs `links`) and less than 99 % is linked, figures are void.
    """
    from rich.console import Console

    workloads = chosen_workloads(workload, partitions)
    rungs = [one for one in RUNGS if rung is None or one.name in rung]
    if not rungs:
        raise typer.BadParameter(f"nothing to run; there are {', '.join(one.name for one in RUNGS)}")
    results.mkdir(parents=True, exist_ok=True)
    about: dict[str, object] = {"rounds": rounds, "scale": scale, "warm_up": warm_up, "latency_ms": latency_ms}
    about |= {"partitions": {one.name: one.partitions for one in workloads}, "tools_as_shipped": tools_as_shipped}
    console = Console()

    def keep(measured: Sequence[Measured]) -> None:
        console.print(line_of(measured[-1]), soft_wrap=True)
        write_json(results / "ladder.json", workloads, measured, **about)

    with console.status("preparing") as line, ground(loopback=loopback) as where:
        turns = Turns(Length(rounds, scale, warm_up), line.update, keep, tools_as_shipped)
        about["hosts"] = where.told
        console.print(where.told)
        _climb(where, turns, rungs, workloads, latency_ms)
    print_tables(workloads, turns.measured)
    console.print(f"written: {results / 'ladder.json'}")
    if any(run.not_kept_up_with for run in turns.measured):
        raise typer.Exit(1)


def _climb(where: Ground, turns: Turns, rungs: Sequence[Rung], workloads: Sequence[Workload], latency_ms: int) -> None:
    """Measure the rungs, one kind of store after the other."""
    for kind in dict.fromkeys(one.store for one in rungs):
        of_kind = [one for one in rungs if one.store == kind]
        gateways = _GATEWAYS if where.agents is None else replace(_GATEWAYS, network=where.agents.network)
        are_wanted = any(one.is_pipelined for one in of_kind)
        with (
            tempfile.TemporaryDirectory(prefix="remote-wal-perf-") as directory,
            object_store(kind, latency_ms, where.agents) as store,
            started_cluster(Path(directory) / "stock", None, overrides=_LARGE_SEGMENTS, hosts=where.stock) as stock,
            started_cluster(
                Path(directory) / "agents",
                AgentsMode(store, tls=kind == NATIVE, gateways=gateways if are_wanted else None),
                overrides=_LARGE_SEGMENTS,
                hosts=where.agents,
            ) as agents,
        ):
            by_agents = gateways.bootstrap_servers(agents.layout, "az1")
            entrants = [
                Entrant(
                    one.name,
                    agents,
                    one.name,
                    TopicSettings(True, one.policy) if one.policy else None,
                    bootstrap_servers=by_agents if one.is_pipelined else "",
                )
                for one in of_kind
            ]
            turns.run(workloads, kind, stock, entrants)
