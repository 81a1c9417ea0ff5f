"""The sources of `remote-wal report`, from its options: the cluster, the store, and the agents' settings."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kafka_cluster.client_config import KafkaClientConfig
    from retention_job.settings import InventoryFile, KafkaSource, Sources, StoreSections

_TIMEOUT_S = 30.0


class Inventories(NamedTuple):
    """Inventories that replace listings."""

    combined_segments: "tuple[InventoryFile, ...] | None" = None
    archive: "tuple[InventoryFile, ...] | None" = None


def report_sources(
    kafka: "KafkaSource",
    cluster_id: str,
    broker_config: Path | None,
    inventories: Inventories,
    state_path: str,
    is_incremental: bool,
) -> "tuple[Sources, StoreSections]":
    """Return what to read, and the sections of price tables for the stores.

    `broker_config` is a broker's server.properties, with its agent's stores and life times. Without it, the agents'
    defaults count, and only an inventory shows the store's objects. Raises AgentSettingsError, BrokerPropertiesError.
    """
    from agent.settings.setting_types import milliseconds
    from agent.settings_file import read_settings_file
    from plugin.loading import settings_under_prefix
    from retention_job.settings import LifeTimes, Sources, StoreListing, StoreSections

    given, given_archive = inventories
    if broker_config is None:
        return Sources(kafka, state_path, given, is_incremental, archive=given_archive), StoreSections()
    broker, settings = read_settings_file(broker_config)
    life_times = LifeTimes(
        milliseconds(settings.lifecycle.expiration_delete_grace_s),
        milliseconds(settings.lifecycle.uncommitted_ttl_s),
        milliseconds(settings.archive.delete_grace_s),
    )
    sections = StoreSections(settings.storage.price_section, settings.archive.price_section, settings.price_network)
    listing = given or StoreListing(
        settings_under_prefix(broker.raw, settings.storage.manager_impl_prefix),
        cluster_id,
        settings.storage.manager_class_name,
        settings.storage.manager_class_path,
        settings.storage.buckets,
    )
    archive: StoreListing | tuple[InventoryFile, ...] | None = given_archive
    if archive is None and settings.archive.enable:
        archive = StoreListing(
            settings_under_prefix(broker.raw, settings.archive.storage_manager_impl_prefix),
            cluster_id,
            settings.archive.storage_manager_class_name,
            settings.archive.storage_manager_class_path,
        )
    return Sources(kafka, state_path, listing, is_incremental, life_times, archive), sections


def kafka_source(bootstrap_server: str, command_config: Path | None) -> "KafkaSource":
    """Return the source with the Java properties unchanged for Spark's connector.

    Raises OSError for an unreadable file.
    """
    from kafka_cluster.client_config import read_java_properties
    from retention_job.settings import KafkaSource

    if command_config is None:
        return KafkaSource(bootstrap_server)
    return KafkaSource(bootstrap_server, read_java_properties(command_config))


def cluster_id_of(client: "KafkaClientConfig") -> str:
    """Return Kafka's cluster id, which object keys begin with. Blocks. Raises SourceError."""
    from kafka_cluster.cluster import KafkaCluster
    from kafka_cluster.errors import KafkaClusterError
    from retention_job.errors import SourceError

    try:
        return KafkaCluster(client, "remote-wal-report", _TIMEOUT_S).listing().cluster_id
    except KafkaClusterError as error:
        hint = "is it up, and reachable from here?"
        raise SourceError("ask for", client.bootstrap_servers, error.reason, hint) from error
