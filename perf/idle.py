"""What an agent costs when nothing happens: many idle partitions, all with remote.wal.storage.enable."""

import tempfile
import threading
from pathlib import Path
from typing import Annotated

import typer

from local_cluster.agent_metrics import scrape
from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from metadata_topic.settings.settings_topic import SettingsWriter
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from metadata_topic.topic.client_config import KafkaClientConfig

_TOPIC = "idle"


def idle(
    partitions: Annotated[int, typer.Option(min=1, help="Replicas per broker.")] = 2000,
    seconds: Annotated[float, typer.Option(min=1.0)] = 30.0,
    settle_seconds: Annotated[float, typer.Option(min=0.0)] = 30.0,
) -> None:
    """Measure each agent's share of a core while so many partitions per broker are idle."""
    from rich.console import Console

    console = Console()
    with (
        console.status("starting the cluster") as line,
        tempfile.TemporaryDirectory(prefix="remote-wal-idle-") as directory,
    ):
        cluster = LocalCluster.create(
            Path(directory) / "agents", settings=ClusterSettings(agents=AgentsMode(), full_compiler=True)
        )
        try:
            cluster.start()
            line.update(f"creating {partitions} partitions")
            cluster.create_topic(_TOPIC, partitions=partitions)
            writer = SettingsWriter(KafkaClientConfig(cluster.bootstrap_servers))
            writer.set_topic(_TOPIC, TopicSettings(True, LinkPolicy.COST))
            writer.close()
            pause = threading.Event()
            line.update("letting it settle")
            pause.wait(settle_seconds)
            before = {broker: scrape(cluster, broker).counters.cpu_s for broker in cluster.broker_ids}
            line.update("measuring")
            pause.wait(seconds)
            used = {broker: scrape(cluster, broker).counters.cpu_s - cpu_s for broker, cpu_s in before.items()}
        finally:
            cluster.destroy()
    for broker, cpu_s in used.items():
        console.print(f"agent {broker}: {cpu_s / seconds:.2%} of a core with {partitions} idle partitions per broker")
