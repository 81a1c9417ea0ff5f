"""How the agent reaches Kafka, from the broker's own settings."""

from agent.settings.process_settings import ClientSettings
from agent.settings.setting_types import AgentSettingsError
from kafka_log.server_properties import BrokerProperties
from metadata_topic.topic.client_config import KafkaClientConfig, read_command_config


def client_config(broker: BrokerProperties, settings: ClientSettings) -> KafkaClientConfig:
    """How the agent reaches Kafka. Raises AgentSettingsError."""
    servers = settings.bootstrap_servers
    if servers is None:
        reserved = {broker.inter_broker_listener_name, *broker.controller_listener_names}
        client = [listener for name, listener in broker.listeners.items() if name not in reserved]
        if not client:
            raise AgentSettingsError(
                "remote.wal.agent.bootstrap.servers: the broker has no client listener, so it must be set"
            )
        servers = f"{client[0].host or '127.0.0.1'}:{client[0].port}"
    file = settings.client_config
    return read_command_config(servers, file)
