"""Shell completion from the cluster: names of topics and ids of brokers, if the command line says where the cluster is.

A shell asks at each press of the key, and prints the answer into the line being written. So this gives up soon, and
prints only names, whatever goes wrong.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from kafka_cluster.answers import ClusterListing
    from kafka_cluster.client_config import KafkaClientConfig

CONNECT_TIMEOUT_S = 1.0
ANSWER_TIMEOUT_S = 2.0


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return topics, without those of Kafka and of the agents themselves, and without those already on the line."""
    given = context.params.get("topics") or context.params.get("topic") or ()
    names = [name for name in _metadata(context).topics if not name.startswith("__") and name not in given]
    return sorted(name for name in names if name.startswith(incomplete))


def complete_broker(context: typer.Context, incomplete: str) -> list[str]:
    return [str(one) for one in sorted(_metadata(context).brokers) if str(one).startswith(incomplete)]


def complete_gone_broker(context: typer.Context, incomplete: str) -> list[str]:
    """Return the brokers that have replicas and are not alive."""
    found = _metadata(context)
    replicas = {one for topic in found.topics.values() for partition in topic.partitions for one in partition.replicas}
    return [str(one) for one in sorted(replicas - set(found.brokers)) if str(one).startswith(incomplete)]


def _metadata(context: typer.Context) -> "ClusterListing":
    """Return what the cluster lists; nothing if it does not answer."""
    from kafka_cluster.answers import ClusterListing
    from kafka_cluster.cluster import KafkaCluster
    from kafka_cluster.preflight import reach

    with _in_silence():
        if (client := _client(context.params)) is not None:
            reach(client, timeout_s=CONNECT_TIMEOUT_S)
            return KafkaCluster(client, "remote-wal-completion", ANSWER_TIMEOUT_S).listing()
    return ClusterListing("", {}, {})


def _client(given: dict[str, Any]) -> "KafkaClientConfig | None":
    """Return the client for the options so far, or the client that the broker's agent uses."""
    bootstrap_server, broker_config = given.get("bootstrap_server"), given.get("broker_config")
    if bootstrap_server is not None:
        from cli.connection import client_config

        return client_config(bootstrap_server, _path(given.get("command_config")))
    if broker_config is not None:
        from agent.settings.kafka_client import client_config as agents_client_config
        from agent.settings_file import read_settings_file

        broker, settings = read_settings_file(Path(str(broker_config)))
        return agents_client_config(broker, settings.client)
    return None


def _path(given: object) -> Path | None:
    return None if given is None else Path(str(given))


@contextlib.contextmanager
def _in_silence() -> Iterator[None]:
    """Suppress all errors and log lines: the command itself will report them."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.suppress(Exception):
            yield
    finally:
        logging.disable(before)
