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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from cli.tables import show, table
from demo.load import Heartbeat
from local_cluster.broker_config import AgentsMode
from local_cluster.cluster import LocalCluster
from local_cluster.topic_switch import LINKED, set_topics
from perf.clusters import started_cluster
from perf.restart.agent_start import start_seconds
from perf.restart.pauses import longest_pause
from perf.restart.replica_growth import ReplicaGrowth

_AGENT, _OTHER = 3, 1
"""The broker whose agent is restarted, and one that it exchanges records with."""
_PATIENCE_S = 60.0
_RECORD_BYTES = 1000
_PRODUCER = {
    "enable.idempotence": False,
    # Else librdkafka's own back-off after a retriable error would be measured.
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 100,
}
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
    _print(starts, found)


@contextmanager
def _loaded(directory: Path, records_per_s: int) -> Iterator[tuple[LocalCluster, list[Heartbeat]]]:
    with started_cluster(directory, AgentsMode()) as cluster:
        cluster.admin.create_topic(_IN, assignment=[[_OTHER, 2, _AGENT]])
        cluster.admin.create_topic(_OUT, assignment=[[_AGENT, _OTHER, 2]])
        set_topics(cluster.bootstrap_servers, (_IN, _OUT), LINKED)
        loads = [
            Heartbeat(
                cluster.bootstrap_servers,
                topic,
                config={"acks": acks, **_PRODUCER},
                interval_s=2 / records_per_s,
                value=bytes(_RECORD_BYTES),
            )
            for topic in (_IN, _OUT)
            for acks in ("1", "all")
        ]
        for load in loads:
            load.start()
        try:
            yield cluster, loads
        finally:
            for load in loads:
                load.abandon()


def _restart(cluster: LocalCluster, loads: list[Heartbeat], how: str) -> Restart:
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
    # Of each topic, the second.
    acks_all = [longest_pause(load.acknowledged_s, begun_s, ended_s).length_s for load in loads[1::2]]
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


def _print(starts: list[float], found: list[Restart]) -> None:
    rows = [("from its start to the first byte relayed", starts)]
    for how in dict.fromkeys(one.how for one in found):
        figures = {
            "from the signal to its end": "drained_s",
            "nothing came to the local broker": "gap_in_s",
            "nothing went to another broker": "gap_out_s",
            "acks=all waited": "acks_all_s",
        }
        for what, figure in figures.items():
            rows.append((f"{how}: {what}", [getattr(one, figure) for one in found if one.how == how]))
    told = [(what, len(values), f"{statistics.median(values):.2f}", f"{max(values):.2f}") for what, values in rows]
    title = "Restarts of one agent of three, in seconds"
    show(table("what", "times", ">median", ">longest", rows=told, title=title))
