"""Makes the agent's Kafka client configuration from the broker's own settings."""

from agent.settings.agent_settings import AgentSettings
from agent.settings.http_listener import is_loopback
from agent.settings.process_settings import ClientSettings
from agent.settings.setting_types import AgentSettingsError
from kafka_cluster.client_config import KafkaClientConfig, read_command_config
from kafka_cluster.errors import ClientPropertyError
from kafka_log.broker_files.server_properties import BrokerProperties
from replication.wire.peer_connection import Address

_KEY = "remote.wal.agent.client.listener"


def client_config(broker: BrokerProperties, settings: ClientSettings) -> KafkaClientConfig:
    """Return the client configuration. Raises AgentSettingsError, ClientPropertyError."""
    servers = settings.bootstrap_servers
    if servers is None:
        listener = broker.listeners[bootstrap_listener(broker, settings)]
        servers = str(Address(listener.host or "127.0.0.1", listener.port))
    try:
        return read_command_config(servers, settings.client_config)
    except OSError as error:
        raise ClientPropertyError("read", "remote.wal.agent.client.config", str(error)) from error


def bootstrap_listener(broker: BrokerProperties, settings: ClientSettings) -> str:
    """Return the broker's listener that the agent uses if no servers are named. Raises AgentSettingsError.

    It is the first client listener, or the one that brokers and clients share, as in Kafka's own default file. One that
    is advertised for this host alone comes last: replication's is, also before brokers use it.
    """
    client = client_listeners(broker)
    advertised = broker.advertised_listeners
    known = [name for name in (*client, broker.inter_broker_listener_name) if name in advertised]
    found = [name for name in known if not is_loopback(advertised[name].host)] or client
    if not found:
        raise AgentSettingsError(
            "remote.wal.agent.bootstrap.servers: the broker has no client listener, so it must be set"
        )
    return settings.client_listener or found[0]


def client_listeners(broker: BrokerProperties) -> list[str]:
    """Return all listeners except those for brokers and controllers, in their order."""
    reserved = {broker.inter_broker_listener_name, *broker.controller_listener_names}
    return [name for name in broker.listeners if name not in reserved]


def listeners_past_agent(broker: BrokerProperties, settings: AgentSettings) -> list[str]:
    """Return the listeners by which clients reach the broker without its agent; that for agents does not count."""
    known = settings.gateway.by_agents | {settings.client.client_listener}
    return sorted({*client_listeners(broker)} & {*broker.advertised_listeners} - known)


def check_client(broker: BrokerProperties, settings: AgentSettings) -> None:
    """Check the settings of the agent's Kafka client. Raises AgentSettingsError, naming the key."""
    name, gateway = settings.client.client_listener, settings.gateway
    if name and name not in client_listeners(broker):
        raise AgentSettingsError(f"{_KEY}: {name} is none of the broker's listeners for clients")
    if gateway.enable and name in gateway.by_agents:
        raise AgentSettingsError(f"{_KEY}: {name} leads to agents, which are to reach Kafka without each other")
