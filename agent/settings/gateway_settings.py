"""The settings of the zone gateway for clients. See `agent.settings.setting_types`."""

import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import structlog
from pydantic import BeforeValidator, Field

from agent.settings.http_listener import is_loopback
from agent.settings.process_settings import PeerSettings
from agent.settings.setting_types import (
    MAX_PORT,
    AgentSettingsError,
    ListenerSetting,
    Section,
    has_pair,
    keyed,
)
from kafka_log.broker_files.server_properties import BrokerProperties

log = structlog.get_logger(__name__)

_KEY = "remote.wal.gateway"


def parse_zone_listeners(value: object) -> object:
    """Parse listeners by zone, such as `az2=CLIENT_AZ2,az3=CLIENT_AZ3`."""
    if not isinstance(value, str):
        return value
    listeners: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in value.split(","))):
        zone, equals, name = (part.strip() for part in item.partition("="))
        if not equals or not zone or not name:
            raise ValueError(f"{item!r} is not <zone>=<listener>")
        if zone in listeners:
            raise ValueError(f"zone {zone} is named twice")
        listeners[zone] = name.upper()
    return listeners


def parse_networks(value: object) -> object:
    """Parse zones by network, such as `10.1.0.0/16=az1,10.2.0.0/16=az2`."""
    if not isinstance(value, str):
        return value
    networks: dict[Network, str] = {}
    for item in filter(None, (part.strip() for part in value.split(","))):
        network, equals, zone = (part.strip() for part in item.rpartition("="))
        if not equals or not zone:
            raise ValueError(f"{item!r} is not <network>=<zone>")
        if (parsed := ipaddress.ip_network(network)) in networks:
            raise ValueError(f"network {parsed} is named twice")
        networks[parsed] = zone
    return networks


Network = ipaddress.IPv4Network | ipaddress.IPv6Network
NetworksSetting = Annotated[dict[Network, str], BeforeValidator(parse_networks)]
ZoneListenersSetting = Annotated[dict[str, str], BeforeValidator(parse_zone_listeners)]


class GatewaySettings(Section, alias_generator=keyed(f"{_KEY}.")):
    """Settings for this zone's clients of brokers in other zones, and for other zones' clients of this broker."""

    enable: bool = Field(
        False,
        description="Whether clients reach brokers of other zones through their own zone's agents. See gateway.md.",
    )
    listen_host: str = Field("127.0.0.1", description="Where clients of this zone connect for brokers of other zones.")
    port_base: int = Field(
        19300, ge=1, le=MAX_PORT, description="The port for broker <id> is this plus <id>, as it advertises it."
    )
    zone_listeners: ZoneListenersSetting = Field(
        default_factory=dict,
        description="This broker's loopback listeners for clients of other zones: <zone>=<listener>, by commas. "
        "Clients reach no other. With it, clients of this zone reach the brokers of others here, each by one agent of "
        "the zone at a time.",
    )
    bootstrap_listener: ListenerSetting = Field(
        "",
        description="This broker's listener for clients of its own zone. With it, clients of all zones may use one "
        "bootstrap address, at the port below port.base. Empty: not.",
    )
    bootstrap_zones: NetworksSetting = Field(
        default_factory=dict,
        description="Zones of those clients by their networks: <network>=<zone>, by commas. zone=<zone> in a client "
        "id goes before; all others are of this zone.",
    )
    durable_listener: ListenerSetting = Field(
        "",
        description="This broker's loopback listener for clients of its own zone, who then connect to this agent. "
        "With it, answers for topics with remote.wal.durable.enable are held until records are stored. Empty: none "
        "is held.",
    )
    durable_port: int = Field(
        9092, ge=1, le=MAX_PORT, description="The port for that, at the listen host, as the broker advertises it."
    )
    acks_pipelined_enable: bool = Field(
        False,
        description="Whether acks=all goes to this broker as acks=1 and the answer is held until the high watermark "
        "has passed it. Needs Kafka 3.8 and durable.listener.",
    )
    plaintext_accepted: bool = Field(
        False,
        description="Accepts that clients reach the gateway from other hosts unencrypted.",
    )
    fetch_rack_enable: bool = Field(
        False,
        description="Whether consumers without client.rack are given this zone in Fetch requests, so that brokers "
        "send them to a replica in it.",
    )
    fetch_links_enable: bool = Field(
        False,
        description="Whether consumers get records by object storage, for topics with remote.wal.storage.enable. Set "
        "it on gateways and beside brokers.",
    )
    fetch_serve_enable: bool = Field(
        False,
        description="Whether the gateway answers consumers itself, from what it reads once for all of them. Set it on "
        "gateways and beside brokers, with fetch.links.enable. See gateway.md.",
    )
    max_connections: int = Field(
        500,
        ge=1,
        description="Connections of clients that are relayed at once; as many again from other zones to this broker. "
        "Each is 256 KiB of memory. At most half of them are of one address, or IPv6 network of 64 bits.",
    )
    ssl_certificate_file: Path | None = Field(
        None,
        description="PEM certificate for clients, which must name the zone's gateway. With it clients speak TLS.",
    )
    ssl_key_file: Path | None = Field(None, description="Its private key, PEM.")
    ssl_ca_file: Path | None = Field(
        None, description="With it, clients must show a certificate of this authority. Brokers do not see it."
    )
    peer_ssl_certificate_file: Path | None = Field(
        None,
        description="PEM certificate for other agents that names gateway-<broker id> and is good for clients' "
        "connections only. Default: remote.wal.agent.ssl.certificate.file.",
    )
    peer_ssl_key_file: Path | None = Field(None, description="Its private key, PEM.")

    produce_enable: bool = Field(
        False,
        description="Whether records that clients produce to brokers of other zones go by object storage. Both the "
        "gateway and the broker's agent must have it on.",
    )
    produce_policy: Literal["cost", "always"] = Field(
        "cost", description="`cost`: where that is cheaper by the price table; `always`."
    )

    def reached(self, others: Iterable[int]) -> list[int]:
        """Return the brokers that clients may reach through this agent; `others` are the other known brokers."""
        return sorted(others) if self.zone_listeners else []

    @property
    def is_front(self) -> bool:
        """Whether clients of all zones connect through this agent, in front of its broker alone."""
        return bool(self.durable_listener) and not self.zone_listeners

    @property
    def by_agents(self) -> set[str]:
        """The names of the broker's listeners whose clients come through agents."""
        return {*self.zone_listeners.values(), self.durable_listener} - {""}


def check_gateway(settings: GatewaySettings, peers: PeerSettings, broker: BrokerProperties) -> None:
    """Check the gateway's settings against each other and the broker's. Raises AgentSettingsError, naming the key."""
    if not settings.enable:
        return
    if not broker.rack:
        raise AgentSettingsError(f"broker.rack: {_KEY}.enable needs it, as the zone whose clients come here")
    listed = [one for one in peers.peers if one != broker.node_id]
    highest_port = settings.port_base + max(settings.reached(listed), default=0)
    if highest_port > MAX_PORT:
        raise AgentSettingsError(f"{_KEY}.port.base: the port of the highest broker id would be {highest_port}")
    _check_listeners(settings, broker)
    _check_durable(settings)
    if settings.fetch_serve_enable and not settings.fetch_links_enable:
        raise AgentSettingsError(f"{_KEY}.fetch.serve.enable: it needs {_KEY}.fetch.links.enable=true as well")
    is_encrypted = has_pair(settings.ssl_certificate_file, settings.ssl_key_file, f"{_KEY}.ssl.*")
    if settings.ssl_ca_file and not is_encrypted:
        raise AgentSettingsError(f"{_KEY}.ssl.*: certificate and key file belong together")
    has_pair(settings.peer_ssl_certificate_file, settings.peer_ssl_key_file, f"{_KEY}.peer.ssl.*")
    if not is_encrypted and not settings.plaintext_accepted and not is_loopback(settings.listen_host):
        raise AgentSettingsError(
            f"{_KEY}.listen.host: {settings.listen_host} is open to other hosts unencrypted; set {_KEY}.ssl.*, "
            f"or accept that by {_KEY}.plaintext.accepted=true"
        )


def left_to_broker(settings: GatewaySettings, broker: BrokerProperties) -> GatewaySettings:
    """Return the settings without the port for clients at which the broker itself listens.

    So an operator can remove the agent from in front of the broker by the broker's lines alone: an agent that took the
    port first would keep the broker from starting.
    """
    own = broker.listeners.get(settings.durable_listener) if settings.enable else None
    if own is None or own.port != settings.durable_port:
        return settings
    log.warning("clients_port_left_to_broker", listener=settings.durable_listener, port=own.port)
    if settings.is_front:
        return settings.model_copy(update={"enable": False})
    return settings.model_copy(update={"durable_listener": "", "acks_pipelined_enable": False})


def _check_listeners(settings: GatewaySettings, broker: BrokerProperties) -> None:
    named = {f"zone.listeners: {zone}=": name for zone, name in settings.zone_listeners.items()}
    if settings.bootstrap_listener:
        named["bootstrap.listener: "] = settings.bootstrap_listener
    if settings.durable_listener:
        named["durable.listener: "] = settings.durable_listener
    for key, name in named.items():
        if name == broker.inter_broker_listener_name:
            raise AgentSettingsError(
                f"{_KEY}.{key}{name} is the inter-broker listener: take the {_KEY}.* lines out, or name a listener for "
                "clients"
            )
        if name not in broker.listeners or name in broker.controller_listener_names:
            raise AgentSettingsError(f"{_KEY}.{key}{name} is none of the broker's listeners for clients")
    unknown = sorted(set(settings.bootstrap_zones.values()) - {broker.rack, *settings.zone_listeners})
    if settings.bootstrap_listener and unknown:
        raise AgentSettingsError(f"{_KEY}.bootstrap.zones: no listener here is for clients of {unknown[0]}")
    if settings.bootstrap_listener in settings.zone_listeners.values():
        raise AgentSettingsError(
            f"{_KEY}.bootstrap.listener: {settings.bootstrap_listener} advertises agents, and not this broker"
        )


def _check_durable(settings: GatewaySettings) -> None:
    """Check that no client can avoid the agent that holds answers."""
    if settings.acks_pipelined_enable and not settings.durable_listener:
        raise AgentSettingsError(
            f"{_KEY}.acks.pipelined.enable: clients of this broker's zone would not come by the agent; set "
            f"{_KEY}.durable.listener (`remote-wal gateway plan --pipelined` writes both)"
        )
    if settings.durable_listener and settings.bootstrap_listener:
        raise AgentSettingsError(
            f"{_KEY}.bootstrap.listener: who comes by it would be led past what {_KEY}.durable.listener is for"
        )
    if settings.durable_listener in settings.zone_listeners.values():
        raise AgentSettingsError(
            f"{_KEY}.durable.listener: {settings.durable_listener} is not for clients of this broker's zone"
        )
