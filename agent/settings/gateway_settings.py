"""The settings of the zone gateway for clients. See `agent.settings.setting_types`."""

import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from agent.settings.http_listener import is_loopback
from agent.settings.process_settings import PeerSettings
from agent.settings.setting_types import (
    MAX_PORT,
    AgentSettingsError,
    ListenerSetting,
    Seconds,
    Section,
    has_pair,
    keyed,
)
from kafka_log.server_properties import BrokerProperties

_KEY = "remote.wal.gateway"
ALL: Final = "*"


def parse_broker_ids(value: object) -> object:
    """Parse `2,3`, or `*`."""
    if not isinstance(value, str) or value.strip() == ALL:
        return ALL if isinstance(value, str) else value
    ids = [item.strip() for item in value.split(",") if item.strip()]
    for item in ids:
        if not item.isdecimal():
            raise ValueError(f"{item!r} is no broker id")
    if len(set(ids)) < len(ids):
        raise ValueError("a broker is named twice")
    return dict.fromkeys(map(int, ids))


def parse_zone_listeners(value: object) -> object:
    """Parse `az2=CLIENT_AZ2,az3=CLIENT_AZ3`."""
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


BrokerIdsSetting = Annotated[dict[int, None] | Literal["*"], BeforeValidator(parse_broker_ids)]


def parse_networks(value: object) -> object:
    """Parse `10.1.0.0/16=az1,10.2.0.0/16=az2`."""
    if not isinstance(value, str):
        return value
    networks: dict[Network, str] = {}
    for item in filter(None, (part.strip() for part in value.split(","))):
        network, equals, zone = (part.strip() for part in item.rpartition("="))
        if not equals or not zone:
            raise ValueError(f"{item!r} is not <network>=<zone>")
        networks[ipaddress.ip_network(network)] = zone
    return networks


Network = ipaddress.IPv4Network | ipaddress.IPv6Network
NetworksSetting = Annotated[dict[Network, str], BeforeValidator(parse_networks)]
ZoneListenersSetting = Annotated[dict[str, str], BeforeValidator(parse_zone_listeners)]


class GatewaySettings(Section, alias_generator=keyed(f"{_KEY}.")):
    """Settings for clients of this zone with brokers of others, and for clients of other zones with this broker."""

    enable: bool = Field(
        False, description="Whether clients reach brokers of other zones by the agents of their own. See gateway.md."
    )
    listen_host: str = Field("127.0.0.1", description="Where clients of this zone connect for brokers of other zones.")
    port_base: int = Field(
        19300, ge=1, le=MAX_PORT, description="The port for broker <id> is this plus <id>, as it advertises it."
    )
    brokers: BrokerIdsSetting = Field(
        default_factory=dict,
        description="The brokers of other zones that clients reach here: their ids, by commas; or `*`: all others that "
        "are listed in remote.wal.agent.peers, or come and register.",
    )
    zone_listeners: ZoneListenersSetting = Field(
        default_factory=dict,
        description="This broker's own listeners on loopback for clients of other zones: <zone>=<listener>, by commas. "
        "No other is let in to.",
    )
    admin_listener: ListenerSetting = Field(
        "",
        description="This broker's own listener on loopback for Kafka's admin tools, which connect here at the port "
        "for this broker itself and may set remote.wal.* of topics; empty: none.",
    )
    bootstrap_listener: ListenerSetting = Field(
        "",
        description="This broker's own listener for clients of its own zone. With it, clients of all zones may be told "
        "one address, which are the agents', and are led to the brokers' listeners for their zone; empty: not.",
    )
    bootstrap_port: int = Field(19299, ge=1, le=MAX_PORT, description="At this port, beside the listen host.")
    bootstrap_zones: NetworksSetting = Field(
        default_factory=dict,
        description="Zones of clients there by their networks: <network>=<zone>, by commas. A client id with "
        "zone=<zone> goes before; who says and is in none is of this zone.",
    )
    durable_listener: ListenerSetting = Field(
        "",
        description="This broker's own listener on loopback for clients of its own zone, who connect to this agent "
        "then. With it, Produce answers for topics with remote.wal.durable.enable are held until the records are "
        "stored; until topics' settings are known, those for all topics are. Empty: none is held.",
    )
    durable_port: int = Field(
        9092, ge=1, le=MAX_PORT, description="At this port, beside the listen host, as the broker advertises it."
    )
    acks_pipelined_enable: bool = Field(
        False,
        description="Whether Produce requests with acks=all of clients that come by an agent go to this broker as "
        "acks=1, and their answers are held until the leader's high watermark has passed them in the same leader "
        "epoch: what acks=all promises, without the broker standing still on the connection meanwhile. Takes brokers "
        "from Kafka 3.8 on and durable.listener.",
    )
    plaintext_accepted: bool = Field(
        False,
        description="Accepts that clients reach the gateway from other hosts unencrypted, as they reach the brokers.",
    )
    fetch_rack_enable: bool = Field(
        False,
        description="Whether consumers without client.rack are given this zone as theirs in Fetch requests, so that "
        "brokers with a rack-aware replica.selector.class send them to a replica in it.",
    )
    fetch_links_enable: bool = Field(
        False,
        description="Whether consumers here are sent records of brokers of other zones by object storage, of topics "
        "with remote.wal.storage.enable; at the agent beside a broker, whether it has other zones' gateways do so.",
    )
    max_connections: int = Field(
        500,
        ge=1,
        description="Connections of clients that are relayed at once, of which a client takes one for each broker that "
        "it talks to; as many again of other zones' to this broker. Each is 256 KiB of the agent's memory.",
    )
    max_connections_per_ip: int | None = Field(
        None, ge=1, description="Of those, how many from one client's address; by default as many as in all."
    )
    idle_s: Seconds = Field(
        900_000,
        ge=0,
        description="A client's connection on which nothing has passed for so long is closed, within twice the time; "
        "0: never. Keep it above the brokers' connections.max.idle.ms, which closes them else.",
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
        description="PEM certificate that the gateway shows to other agents, which names gateway-<broker id>: it is "
        "good for clients' connections alone. Default: remote.wal.agent.ssl.certificate.file.",
    )
    peer_ssl_key_file: Path | None = Field(None, description="Its private key, PEM.")

    def reached(self, others: Iterable[int]) -> list[int]:
        """Return the brokers that clients reach here; `others` are the other known brokers."""
        return sorted(set(others) if self.brokers == ALL else self.brokers)

    @property
    def by_agents(self) -> set[str]:
        """The broker's listeners whose clients come through agents."""
        return {*self.zone_listeners.values(), self.admin_listener, self.durable_listener} - {""}


class GatewayProduceSettings(Section, alias_generator=keyed(f"{_KEY}.produce.")):
    """Settings for Produce requests through object storage; both the gateway and the broker's agent must have it on."""

    enable: bool = Field(
        False,
        description="Whether records that clients produce to brokers of other zones go by object storage.",
    )
    adopt_enable: bool = Field(
        False,
        description="Whether what a gateway has stored of a topic with remote WAL stays in its object as the log's and "
        "is not uploaded a second time, where the broker keeps it as it came. Both the gateway and the broker's agent "
        "must have it on. Have all agents know it before: older ones cannot read what is stored so. Not with "
        "remote.wal.bucket.copies above 1, as a gateway's object is in one bucket.",
    )
    policy: Literal["cost", "always"] = Field(
        "cost", description="`cost`: where that is cheaper than the border, by the price table; `always`."
    )
    interval_s: Seconds = Field(
        25,
        ge=1,
        description="Requests of so long share an object; under load, of twice as long.",
    )
    upload_bytes: int = Field(
        4 * 1024 * 1024, ge=64 * 1024, description="An object is uploaded sooner when it has so many bytes."
    )
    thread_pool_size: int = Field(8, ge=1, description="Uploads, reads and deletions at once.")
    put_wait_max_s: Seconds = Field(
        500, ge=1, description="A request whose upload takes longer, with what it waits for it, goes inline."
    )
    read_wait_max_s: Seconds = Field(
        500, ge=1, description="One whose records are not read here within so long is asked for inline."
    )


def check_gateway(settings: GatewaySettings, peers: PeerSettings, broker: BrokerProperties, file: Path) -> None:
    """Check the settings. Raises AgentSettingsError, naming the key."""
    if not settings.enable:
        return
    if not broker.rack:
        raise AgentSettingsError(f"{file}: broker.rack: {_KEY}.enable needs it, as the zone whose clients come here")
    listed = [one for one in peers.peers if one != broker.node_id]
    unknown = [one for one in settings.reached(listed) if one not in listed]
    if unknown:
        raise AgentSettingsError(
            f"{file}: {_KEY}.brokers: broker {unknown[0]} is not another one of remote.wal.agent.peers, by which its "
            "agent is reached"
        )
    own_port = [broker.node_id] if settings.admin_listener else []
    highest_port = settings.port_base + max([*settings.reached(listed), *own_port], default=0)
    if highest_port > MAX_PORT:
        raise AgentSettingsError(f"{file}: {_KEY}.port.base: the port of the highest broker id would be {highest_port}")
    _check_listeners(settings, broker, file)
    _check_durable(settings, file)
    is_encrypted = has_pair(settings.ssl_certificate_file, settings.ssl_key_file, f"{file}: {_KEY}.ssl.*")
    if settings.ssl_ca_file and not is_encrypted:
        raise AgentSettingsError(f"{file}: {_KEY}.ssl.*: certificate and key file belong together")
    has_pair(settings.peer_ssl_certificate_file, settings.peer_ssl_key_file, f"{file}: {_KEY}.peer.ssl.*")
    if not is_encrypted and not settings.plaintext_accepted and not is_loopback(settings.listen_host):
        raise AgentSettingsError(
            f"{file}: {_KEY}.listen.host: {settings.listen_host} is open to other hosts unencrypted; set {_KEY}.ssl.*, "
            f"or accept that by {_KEY}.plaintext.accepted=true"
        )


def _check_listeners(settings: GatewaySettings, broker: BrokerProperties, file: Path) -> None:
    """Check that the named listeners are the broker's."""
    named = {f"zone.listeners: {zone}=": name for zone, name in settings.zone_listeners.items()}
    if settings.admin_listener:
        named["admin.listener: "] = settings.admin_listener
    if settings.bootstrap_listener:
        named["bootstrap.listener: "] = settings.bootstrap_listener
    if settings.durable_listener:
        named["durable.listener: "] = settings.durable_listener
    for key, name in named.items():
        if name not in broker.listeners or name in _not_for_clients(broker):
            raise AgentSettingsError(f"{file}: {_KEY}.{key}{name} is none of the broker's listeners for clients")
    unknown = sorted(set(settings.bootstrap_zones.values()) - {broker.rack, *settings.zone_listeners})
    if settings.bootstrap_listener and unknown:
        raise AgentSettingsError(f"{file}: {_KEY}.bootstrap.zones: no listener here is for clients of {unknown[0]}")
    if settings.bootstrap_listener in {*settings.zone_listeners.values(), settings.admin_listener} - {""}:
        raise AgentSettingsError(
            f"{file}: {_KEY}.bootstrap.listener: {settings.bootstrap_listener} advertises agents, and not this broker"
        )
    if settings.admin_listener in settings.zone_listeners.values():
        raise AgentSettingsError(
            f"{file}: {_KEY}.admin.listener: {settings.admin_listener} is for a zone's clients, and advertises their "
            "gateway; admin tools need one of their own"
        )


def _check_durable(settings: GatewaySettings, file: Path) -> None:
    """Check that no client can avoid the agent that holds answers."""
    if settings.acks_pipelined_enable and not settings.durable_listener:
        raise AgentSettingsError(
            f"{file}: {_KEY}.acks.pipelined.enable: clients of this broker's zone would not come by the agent; set "
            f"{_KEY}.durable.listener (`remote-wal gateway plan --pipelined` writes both)"
        )
    if settings.durable_listener and settings.bootstrap_listener:
        raise AgentSettingsError(
            f"{file}: {_KEY}.bootstrap.listener: who comes by it would be led past what {_KEY}.durable.listener is for"
        )
    if settings.durable_listener in {*settings.zone_listeners.values(), settings.admin_listener} - {""}:
        raise AgentSettingsError(
            f"{file}: {_KEY}.durable.listener: {settings.durable_listener} is not for clients of this broker's zone"
        )


def _not_for_clients(broker: BrokerProperties) -> set[str]:
    return {broker.inter_broker_listener_name, *broker.controller_listener_names}
