"""`remote-wal decommission`: gives the objects of a broker that is gone for good to another broker's agent."""

from contextlib import closing
from typing import Annotated

import typer

from cli.completion import complete_broker, complete_gone_broker
from cli.connection import Connection
from cli.option_groups import grouped


@grouped
def decommission(
    broker: Annotated[
        int,
        typer.Argument(help="The broker that is gone for good.", min=0, autocompletion=complete_gone_broker),
    ],
    heir: Annotated[
        int,
        typer.Option(help="The broker whose agent is to care for its objects.", min=0, autocompletion=complete_broker),
    ],
    connection: Connection,
) -> None:
    """Give the objects of a broker that is gone to another broker's agent, which deletes them when their time
    comes, and have the other agents forget where its own was.

    Without it, the living broker with the lowest id takes over after remote.wal.node.takeover.ms. The broker must not
    be in the cluster any more; should it come back, its agent takes its care back.
    """
    import time
    from dataclasses import replace

    from kafka_cluster.cluster import KafkaCluster
    from metadata_topic.settings.settings_topic import SettingsWriter, read_settings
    from metadata_topic.topic.topic_session import TopicSession
    from plugin.wall_clock import wall_ms
    from rlm.lifecycle.node_care import StoreRegistrations, inheritance, publish_registration

    client = connection.client_config()
    living = [one.broker_id for one in KafkaCluster(client, "remote-wal-decommission", 30.0).brokers()]
    _, agents = read_settings(client)
    with TopicSession(client, heir, time.monotonic) as topic:
        registration = inheritance(broker, heir, living, StoreRegistrations(topic.store, agents.keys))
        publish_registration(topic.publisher, registration, wall_ms())
        topic.published()
    if (gone := agents.get(broker)) is not None and not gone.is_gone:
        with closing(SettingsWriter(client)) as writer:
            writer.register_agent(replace(gone, peer_address=None, bypass_address=None, is_gone=True))
    typer.echo(f"the agent of broker {heir} cares for the objects of broker {broker}")
