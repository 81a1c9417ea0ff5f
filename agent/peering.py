"""Where this agent, its broker and the other agents are found, and how it names itself, out of the settings."""

from agent.identity import AgentIdentity
from agent.process_settings import PeerSettings, TlsSettings
from kafka_log.server_properties import BrokerProperties
from replication.wire.peer_connection import Address, PeerTls
from replication.wire.peer_protocol import CAPABILITIES, Hello, PeerCapabilities


def peer_tls(settings: TlsSettings) -> PeerTls | None:
    """What agents prove themselves with; None where they speak plaintext."""
    certificate, key, authority = settings.certificate_file, settings.key_file, settings.ca_file
    if certificate is None or key is None or authority is None:
        return None
    return PeerTls(certificate, key, authority)


def peer_addresses(broker: BrokerProperties, settings: PeerSettings) -> dict[int, Address]:
    """The other agents by broker id."""
    return {broker_id: peer for broker_id, peer in settings.peers.items() if broker_id != broker.node_id}


def replica_listeners(broker: BrokerProperties, settings: PeerSettings) -> dict[int, Address]:
    """Where this agent poses as each other broker, by broker id."""
    host, base = settings.replica_listen_host, settings.replica_port_base
    return {broker_id: Address(host, base + broker_id) for broker_id in peer_addresses(broker, settings)}


def broker_listener(broker: BrokerProperties) -> Address:
    """The local broker's own inter-broker listener."""
    listener = broker.listeners[broker.inter_broker_listener_name]
    return Address(listener.host or "127.0.0.1", listener.port)


def own_hello(identity: AgentIdentity, archives: bool) -> Hello:
    """Without an archive of its own it says nothing of links to archive objects, as it could read none.

    A leader's agent that gave it such a link would have to send the whole response once more, inline.
    """
    unread = PeerCapabilities.NONE if archives else PeerCapabilities.ARCHIVE_LINKS
    return Hello(identity.cluster_id, identity.broker_id, identity.incarnation, CAPABILITIES & ~unread)
