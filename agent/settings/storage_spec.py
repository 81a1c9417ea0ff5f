"""Says which storage manager the agent, or a tool beside it, uses for combined segments, from the broker's settings."""

from agent.settings.upload_settings import StorageSettings
from kafka_log.broker_files.server_properties import BrokerProperties
from plugin.loading import IMPL_PREFIX, settings_under_prefix
from plugin.zones.buckets import StorageSpec


def storage_spec(settings: StorageSettings, broker: BrokerProperties) -> StorageSpec:
    """Return the spec of the storage manager for this broker's agent; with a bucket for each zone, it writes to its
    zone's."""
    return StorageSpec(
        settings.manager_class_name,
        settings.manager_class_path,
        settings_under_prefix(broker.raw),
        IMPL_PREFIX,
        settings.buckets,
        broker.rack,
    )
