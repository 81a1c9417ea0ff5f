"""What an agent costs when nothing happens: many idle partitions, all with remote.wal.storage.enable."""

import tempfile
import threading
from pathlib import Path
from typing import Annotated

import typer

from local_cluster.agent_metrics import scrape
from local_cluster.broker_config import AgentsMode
from local_cluster.topic_switch import set_topics
from perf.clusters import started_cluster

_TOPIC = "idle"


def idle(
    partitions: Annotated[int, typer.Option(min=1, help="Replicas per broker.")] = 2000,
    seconds: Annotated[float, typer.Option(min=1.0)] = 30.0,
    settle_seconds: Annotated[float, typer.Option(min=0.0)] = 30.0,
) -> None:
    """Measure each agent's share of a core while so many partitions per broker are idle."""
    from rich.console import Console

    console, pause = Console(), threading.Event().wait
    with (
        console.status("starting the cluster") as line,
        tempfile.TemporaryDirectory(prefix="remote-wal-idle-") as directory,
        started_cluster(Path(directory) / "agents", AgentsMode()) as cluster,
    ):
        line.update(f"creating {partitions} partitions")
        cluster.admin.create_topic(_TOPIC, partitions=partitions)
        set_topics(cluster.bootstrap_servers, [_TOPIC])
        line.update("letting it settle")
        pause(settle_seconds)
        before = {broker: scrape(cluster, broker).counters.cpu_s for broker in cluster.broker_ids}
        line.update("measuring")
        pause(seconds)
        used = {broker: scrape(cluster, broker).counters.cpu_s - cpu_s for broker, cpu_s in before.items()}
    for broker, cpu_s in used.items():
        console.print(f"agent {broker}: {cpu_s / seconds:.2%} of a core with {partitions} idle partitions per broker")
