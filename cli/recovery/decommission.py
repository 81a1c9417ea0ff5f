"""`remote-wal decommission`: gives the objects of a broker that is gone for good to another broker's agent."""

from collections.abc import Collection
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from cli.option_groups import grouped
from cli.recovery.recovery_sources import BrokersCluster, open_metadata, open_stores

if TYPE_CHECKING:
    from metadata_topic.topic.topic_session import TopicSession


@grouped
def decommission(
    broker: Annotated[
        int,
        typer.Argument(help="The broker that is gone for good.", min=0),
    ],
    heir: Annotated[
        int,
        typer.Option(help="The broker whose agent is to care for its objects.", min=0),
    ],
    where: BrokersCluster,
) -> None:
    """Give the objects of a broker that is gone to another broker's agent, which deletes them when their time
    comes, and have the other agents forget where its own was.

    Without it, the living broker with the lowest id takes over after an hour. The broker must not be in the cluster any
    more; should it come back, its agent takes its care back. Use the settings of a broker that stays: they name the
    store with the agents' snapshots.
    """
    from dataclasses import replace

    from kafka_cluster.cluster import KafkaCluster
    from metadata_topic.settings.settings_table import AGENTS
    from metadata_topic.settings.settings_topic import SettingsWriter, read_settings

    with open_stores(where) as stores:
        client = stores.client
        living = [one.broker_id for one in KafkaCluster(client, "remote-wal-decommission", 30.0).brokers()]
        if heir not in living:
            there = ", ".join(map(str, sorted(living)))
            raise typer.BadParameter(f"broker {heir} is not in the cluster: there are {there}", param_hint="--heir")
        agents = read_settings(client).agents
        with open_metadata(stores) as topic:
            give_care(topic, broker, heir, living, agents.keys())
    if (gone := agents.get(broker)) is not None and not gone.is_gone:
        with closing(SettingsWriter(client)) as writer:
            writer.put(AGENTS, {broker: replace(gone, peer_address=None, bypass_address=None, is_gone=True)})
    typer.echo(f"the agent of broker {heir} cares for the objects of broker {broker}")


def give_care(
    topic: "TopicSession", broker_id: int, heir_id: int, living: Collection[int], agents: Collection[int]
) -> None:
    """Register the heir as owner of the broker's objects, and read that back. Raises DecommissionError,
    MetadataTopicError.

    `agents` are the brokers whose agents are in the settings topic. The topic must not be in doubt: the broker's last
    incarnation may be missing then, and agents refuse an older one.
    """
    from plugin.wall_clock import wall_ms
    from rlm.lifecycle.object_ownership import DecommissionError, inheritance

    topic.publish(inheritance(broker_id, heir_id, living, topic.store, agents, wall_ms()))
    topic.published()
    if not topic.read_to_end() or topic.store.caretaker_of(broker_id) != heir_id:
        raise DecommissionError(
            f"what the metadata topic says does not make broker {heir_id} care for broker {broker_id}: run it again"
        )
