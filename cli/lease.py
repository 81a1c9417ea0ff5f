"""`remote-wal lease`: decides which of two clusters with one id owns the bucket."""

import typer

from cli.command_group import command_group
from cli.option_groups import grouped
from cli.recovery_sources import BrokersCluster, client_of, open_stores

app = command_group("The lease in the bucket.")
_TIMEOUT_S = 30.0


@app.callback()
def _group() -> None:
    """The lease in the bucket."""


@app.command()
@grouped
def take(where: BrokersCluster) -> None:
    """Have this cluster own the bucket: any other one with its id stops uploading and deleting.

    For when a cluster was cloned, and agents say that another one has renewed the lease. Run it in the original, and
    give the clone a prefix of its own.
    """
    from agent.settings_file import agent_settings
    from agent.wiring.lease_watch import LeasesInTopic, make_lease
    from kafka_log.server_properties import load_broker_properties
    from metadata_topic.settings.settings_topic import SettingsReader
    from plugin.remote_wal_storage_manager import blobs_of
    from recovery.cluster_view import ask_cluster

    broker = load_broker_properties(where.broker_config)
    settings = agent_settings(broker, where.broker_config)
    client = client_of(broker, settings, where)
    cluster_id, _ = ask_cluster(client)
    storage, archive = open_stores(broker, settings, cluster_id)
    reader = SettingsReader(client)
    reader.start()
    try:
        if not reader.wait_until_ready(_TIMEOUT_S):
            raise typer.BadParameter("the settings topic was not read to its end")
        recorded = LeasesInTopic(client, reader, broker.node_id)
        number = make_lease(blobs_of(storage, "take", "lease"), recorded).take()
    finally:
        reader.close()
        storage.close()
        if archive is not None:
            archive.close()
    typer.echo(f"cluster {cluster_id} has the lease (number {number}); its agents go on within two minutes")
