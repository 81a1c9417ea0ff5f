"""What an agent's restart costs: from its start to the first byte that it relays, and the gap in replication.

The start is measured alone, with a bare socket in the place of the local broker. The gaps are measured on a cluster
under load, by what Kafka has of it: how long a replica that is fetched by way of the restarted agent does not grow (the
local broker's own of another leader, and another broker's of the local leader), and how long producers with acks=all
wait.
"""

import json
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from perf.agent_start import start_seconds
from perf.replica_growth import ReplicaGrowth
from perf.steady_load import SteadyLoad

_AGENT, _OTHER = 3, 1
"""The broker whose agent is restarted, and one that it exchanges records with."""
_PATIENCE_S = 60.0
_STEADY_S = 1.5
"""So long all flows before the agent is ended, and after it has come back."""
_SUPERVISOR_S = 0.1
"""What a service manager waits before it starts a process anew that ended by itself."""
_IN, _OUT = "restart-in", "restart-out"


@dataclass(frozen=True, slots=True)
class Restart:
    """One restart, in seconds."""

    how: str
    drained_s: float
    """From the signal to the process's end."""
    begun_s: float
    """From the signal to where the longest of the gaps began."""
    gap_in_s: float
    """For how long the local broker's replica of another leader's partition did not grow."""
    gap_out_s: float
    """For how long another broker's replica of a partition that is led here did not grow."""
    acks_all_s: float
    """For how long no record with acks=all was acknowledged."""

    @property
    def gap_s(self) -> float:
        return max(self.gap_in_s, self.gap_out_s)


def restart(
    rounds: Annotated[int, typer.Option(min=1, help="Restarts of each kind, and starts.")] = 20,
    records_per_s: Annotated[int, typer.Option(min=10, help="Records of 1 KB to each of both topics.")] = 200,
    warm_up_s: Annotated[float, typer.Option(min=0, help="How long the load runs before the first restart.")] = 20.0,
    json_file: Annotated[Path | None, typer.Option("--json", dir_okay=False, help="Where the figures go.")] = None,
) -> None:
    """Start an agent, restart it in order under load, kill it under load; print how long nothing was relayed.

    SIGTERM and Ctrl-C take everything down.
    """
    from rich.console import Console

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console()
    found: list[Restart] = []
    with (
        console.status("preparing") as line,
        tempfile.TemporaryDirectory(prefix="remote-wal-restart-") as directory,
    ):
        starts = []
        for number in range(rounds):
            line.update(f"start {number + 1} of {rounds}")
            starts.append(start_seconds(Path(directory) / f"start-{number}"))
        line.update("starting the cluster")
        with _loaded(Path(directory) / "cluster", records_per_s) as (cluster, loads):
            line.update("letting the brokers' compilers come to rest")
            threading.Event().wait(warm_up_s)
            for number in range(rounds):
                for how in ("graceful", "killed"):
                    line.update(f"{how}, {number + 1} of {rounds}")
                    found.append(_restart(cluster, loads, how))
                    if json_file is not None:  # after each, so that a run that is cut short leaves its part
                        json_file.write_text(_as_json(starts, found, records_per_s))
    _print(console, starts, found)


@contextmanager
def _loaded(directory: Path, records_per_s: int) -> Iterator[tuple[LocalCluster, list[SteadyLoad]]]:
    settings = ClusterSettings(agents=AgentsMode(), full_compiler=True)
    cluster = LocalCluster.create(directory, settings=settings)
    try:
        cluster.start()
        cluster.create_topic(_IN, assignment=[[_OTHER, 2, _AGENT]])
        cluster.create_topic(_OUT, assignment=[[_AGENT, _OTHER, 2]])
        _switch_on(cluster)
        loads = [
            SteadyLoad(cluster.bootstrap_servers, topic, records_per_s / 2, acks)
            for topic in (_IN, _OUT)
            for acks in ("1", "all")
        ]
        for load in loads:
            load.start()
        try:
            yield cluster, loads
        finally:
            for load in loads:
                load.stop()
    finally:
        cluster.destroy()


def _switch_on(cluster: LocalCluster) -> None:
    from metadata_topic.settings.settings_topic import SettingsWriter
    from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
    from metadata_topic.topic.client_config import KafkaClientConfig

    writer = SettingsWriter(KafkaClientConfig(cluster.bootstrap_servers))
    for topic in (_IN, _OUT):
        writer.set_topic(topic, TopicSettings(True, LinkPolicy.ALWAYS))
        cluster.admin.wait_for_full_isr(topic, timeout_s=_PATIENCE_S)
    writer.close()


def _restart(cluster: LocalCluster, loads: list[SteadyLoad], how: str) -> Restart:
    pause = threading.Event().wait
    cluster.wait_for_agent(_AGENT)
    for topic in (_IN, _OUT):
        cluster.admin.wait_for_full_isr(topic, timeout_s=_PATIENCE_S)
    incoming = ReplicaGrowth(cluster, _AGENT, _IN)
    outgoing = ReplicaGrowth(cluster, _OTHER, _OUT)
    with incoming, outgoing:
        pause(_STEADY_S)
        begun_s = time.monotonic()
        agent = cluster.agent(_AGENT)
        if how == "graceful":
            agent.request_exit()
            agent.wait_for_exit(_PATIENCE_S)
        else:
            agent.kill()
            pause(_SUPERVISOR_S)
        drained_s = time.monotonic() - begun_s
        agent.start()
        for growth in (incoming, outgoing):
            growth.wait_until_grown_since(time.monotonic(), _PATIENCE_S)
        pause(_STEADY_S)
        ended_s = time.monotonic()
    acks_all = [load.longest_pause(begun_s, ended_s).length_s for load in loads if load.acks == "all"]
    return Restart(
        how,
        drained_s,
        max(
            (growth.longest_pause(begun_s, ended_s) for growth in (incoming, outgoing)), key=lambda each: each.length_s
        ).begun_s
        - begun_s,
        incoming.longest_pause(begun_s, ended_s).length_s,
        outgoing.longest_pause(begun_s, ended_s).length_s,
        max(acks_all),
    )


def _as_json(starts: list[float], found: list[Restart], records_per_s: int) -> str:
    restarts = [{**asdict(one), "gap_s": one.gap_s} for one in found]
    return json.dumps({"records_per_s": records_per_s, "starts_s": starts, "restarts": restarts}, indent=1)


def _print(console: Any, starts: list[float], found: list[Restart]) -> None:
    from rich.table import Table

    table = Table("what", "times", title="Restarts of one agent of three, in seconds")
    for column in ("median", "longest"):
        table.add_column(column, justify="right")

    def row(what: str, values: list[float]) -> None:
        table.add_row(what, str(len(values)), f"{statistics.median(values):.2f}", f"{max(values):.2f}")

    row("from its start to the first byte relayed", starts)
    for how in dict.fromkeys(one.how for one in found):
        of_kind = [one for one in found if one.how == how]
        figures: list[tuple[str, Callable[[Restart], float]]] = [
            ("from the signal to its end", lambda one: one.drained_s),
            ("nothing came to the local broker", lambda one: one.gap_in_s),
            ("nothing went to another broker", lambda one: one.gap_out_s),
            ("acks=all waited", lambda one: one.acks_all_s),
        ]
        for what, figure in figures:
            row(f"{how}: {what}", [figure(one) for one in of_kind])
    console.print(table)
