"""`remote-wal lease`: decides which of two clusters with one id owns the bucket."""

import typer

from cli.option_groups import command_group, grouped
from cli.recovery.recovery_sources import BrokersCluster, open_stores

app = command_group("The lease in the bucket.")
_TIMEOUT_S = 30.0


@app.command()
@grouped
def take(where: BrokersCluster) -> None:
    """Have this cluster own the bucket: any other one with its id stops uploading and deleting.

    For when a cluster was cloned, and agents say that another one has renewed the lease. Run it in the original, and
    give the clone a prefix of its own.
    """
    from contextlib import closing

    from agent.lease_watch import LeasesInTopic, make_lease
    from metadata_topic.settings.settings_topic import SettingsReader
    from plugin.remote_wal_storage_manager import blobs_of

    with open_stores(where) as stores, closing(SettingsReader(stores.client)) as reader:
        reader.start()
        if not reader.wait_until_ready(_TIMEOUT_S):
            raise typer.BadParameter("the settings topic was not read to its end")
        recorded = LeasesInTopic(stores.client, reader, stores.broker.node_id)
        number = make_lease(blobs_of(stores.storage, "take", "lease"), recorded).take()
    typer.echo(f"cluster {stores.cluster_id} has the lease (number {number}); its agents go on within two minutes")
