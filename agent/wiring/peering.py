"""Where this agent, its broker and the other agents are found, and how it names itself, out of the settings."""

from dataclasses import replace

from agent.identity import AgentIdentity
from agent.settings.gateway_settings import GatewaySettings
from agent.settings.process_settings import AccessSettings, PeerSettings, TlsSettings
from kafka_log.server_properties import BrokerProperties
from replication.wire.broker_requests import METADATA_MANAGER_REQUESTS, BrokerRequests
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES
from replication.wire.peer_connection import Address, PeerTls
from replication.wire.peer_protocol import CAPABILITIES, Hello, PeerCapabilities


def peer_tls(settings: TlsSettings) -> PeerTls | None:
    """What agents prove themselves with; None where they speak plaintext."""
    certificate, key, authority = settings.certificate_file, settings.key_file, settings.ca_file
    if certificate is None or key is None or authority is None:
        return None
    return PeerTls(certificate, key, authority)


def gateway_tls(settings: TlsSettings, gateway: GatewaySettings) -> PeerTls | None:
    """What the gateway shows to other agents. Without TLS between agents nobody asks for it."""
    own = peer_tls(settings)
    certificate, key = gateway.peer_ssl_certificate_file, gateway.peer_ssl_key_file
    if own is None or certificate is None or key is None:
        return own
    return replace(own, certificate_file=certificate, key_file=key)


def peer_addresses(broker: BrokerProperties, settings: PeerSettings) -> dict[int, Address]:
    """The other agents by broker id."""
    return {broker_id: peer for broker_id, peer in settings.peers.items() if broker_id != broker.node_id}


def replica_listeners(broker: BrokerProperties, settings: PeerSettings) -> dict[int, Address]:
    """Where this agent poses as each other broker, by broker id."""
    return {broker_id: posing_address(settings, broker_id) for broker_id in peer_addresses(broker, settings)}


def posing_address(settings: PeerSettings, broker_id: int) -> Address:
    """Where this agent poses as that broker."""
    return Address(settings.replica_listen_host, settings.replica_port_base + broker_id)


def broker_listener(broker: BrokerProperties) -> Address:
    """The local broker's own inter-broker listener."""
    listener = broker.listeners[broker.inter_broker_listener_name]
    return Address(listener.host or "127.0.0.1", listener.port)


def broker_requests(broker: BrokerProperties, settings: AccessSettings) -> BrokerRequests:
    """What brokers may ask each other. The clients of KIP-405's metadata manager count where they come by agents."""
    raw, inter_broker = broker.raw, broker.inter_broker_listener_name
    is_tiered = raw.get("remote.log.storage.system.enable", "").lower() == "true"
    listener = raw.get("remote.log.metadata.manager.listener.name", inter_broker)
    tiering = METADATA_MANAGER_REQUESTS if is_tiered and listener == inter_broker else ()
    return BrokerRequests({*settings.requests, *tiering})


def max_request_bytes(broker: BrokerProperties) -> int:
    """What the brokers take, as far as the own one tells. One that takes less refuses what is larger itself."""
    return max(int(broker.raw.get("socket.request.max.bytes", "0")), DEFAULT_MAX_FRAME_BYTES)


def own_hello(identity: AgentIdentity, *, archives: bool, takes_digests: bool = False, shares: bool = False) -> Hello:
    """Without an archive of its own it says nothing of links to archive objects, as it could read none.

    A leader's agent that gave it such a link would have to send the whole response once more, inline. `shares`: it
    reads objects for others of its zone.
    """
    unread = PeerCapabilities.NONE if archives else PeerCapabilities.ARCHIVE_LINKS
    wanted = PeerCapabilities.LINK_DIGESTS if takes_digests else PeerCapabilities.NONE
    wanted |= PeerCapabilities.SHARED_READS if shares else PeerCapabilities.NONE
    return Hello(identity.cluster_id, identity.broker_id, identity.incarnation, CAPABILITIES & ~unread | wanted)
