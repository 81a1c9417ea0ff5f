"""Derives from the settings the addresses and the identity of this agent, its broker and the other agents."""

from dataclasses import replace
from functools import reduce
from operator import or_

from agent.identity import AgentIdentity
from agent.settings.agent_settings import AgentSettings
from agent.settings.gateway_settings import GatewaySettings
from agent.settings.process_settings import PeerSettings, ProcessSettings, TlsSettings
from kafka_log.broker_files.server_properties import BrokerProperties
from replication.wire.broker_requests import METADATA_MANAGER_REQUESTS, BrokerRequests
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES
from replication.wire.peer_connection import Address, PeerTls
from replication.wire.peer_protocol import CAPABILITIES, Hello, PeerCapabilities


def peer_tls(settings: TlsSettings) -> PeerTls | None:
    """Return the TLS files for connections between agents; None if they speak plaintext."""
    certificate, key, authority = settings.certificate_file, settings.key_file, settings.ca_file
    if certificate is None or key is None or authority is None:
        return None
    return PeerTls(certificate, key, authority)


def gateway_tls(settings: TlsSettings, gateway: GatewaySettings) -> PeerTls | None:
    """Return the TLS files with the gateway's certificate; None without TLS between agents."""
    own = peer_tls(settings)
    certificate, key = gateway.peer_ssl_certificate_file, gateway.peer_ssl_key_file
    if own is None or certificate is None or key is None:
        return own
    return replace(own, certificate_file=certificate, key_file=key)


def peer_addresses(broker: BrokerProperties, settings: PeerSettings) -> dict[int, Address]:
    """Return the other agents' addresses by broker id."""
    return {broker_id: peer for broker_id, peer in settings.peers.items() if broker_id != broker.node_id}


def is_forwarded(broker: BrokerProperties, port: int) -> bool:
    """Return whether the agent forwards this port to its own broker: the broker advertises it to other brokers, and
    has no listener there."""
    advertised = broker.advertised_listeners.get(broker.inter_broker_listener_name)
    return (
        advertised is not None and advertised.port == port and all(at.port != port for at in broker.listeners.values())
    )


def broker_listener(broker: BrokerProperties, name: str | None = None) -> Address:
    """Return the address at which this agent dials a listener of its broker: the inter-broker one, or another."""
    listener = broker.listeners[name or broker.inter_broker_listener_name]
    return Address(listener.host or "127.0.0.1", listener.port)


def broker_requests(broker: BrokerProperties, settings: ProcessSettings) -> BrokerRequests:
    """Return the kinds of requests that brokers may send each other, with those of KIP-405's metadata manager if it
    uses agents."""
    raw, inter_broker = broker.raw, broker.inter_broker_listener_name
    is_tiered = raw.get("remote.log.storage.system.enable", "").lower() == "true"
    listener = raw.get("remote.log.metadata.manager.listener.name", inter_broker)
    tiering = METADATA_MANAGER_REQUESTS if is_tiered and listener == inter_broker else ()
    return BrokerRequests({*settings.requests, *tiering})


def max_request_bytes(broker: BrokerProperties) -> int:
    """Return the largest request that brokers accept, judged by the local broker's settings.

    Other brokers refuse larger ones themselves.
    """
    return max(int(broker.raw.get("socket.request.max.bytes", "0")), DEFAULT_MAX_FRAME_BYTES)


def own_hello(identity: AgentIdentity, settings: AgentSettings, *, shares_reads: bool = True) -> Hello:
    """Return this agent's hello. Without an archive of its own it cannot read archive objects, and so excludes them.

    Otherwise a leader's agent would have to send each such response again, inline.
    """
    wanted = {
        PeerCapabilities.LINK_DIGESTS: settings.link.takes_digests,
        PeerCapabilities.SHARED_READS: shares_reads,
        PeerCapabilities.PACKED: settings.link.pack_enable,
    }
    capabilities = reduce(or_, (one for one, is_wanted in wanted.items() if is_wanted), CAPABILITIES)
    if not settings.archive.enable:
        capabilities &= ~PeerCapabilities.ARCHIVE_LINKS
    return Hello(identity.cluster_id, identity.broker_id, identity.incarnation, capabilities)
