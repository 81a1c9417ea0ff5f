"""Which listeners each broker needs so that clients stay in their zone, and what its agent is told of them.

Kafka answers Metadata, FindCoordinator and DescribeCluster with the endpoints of the listener that was asked. So each
broker has a client listener for each zone. That of its own zone advertises the broker itself. Those of the other zones
are bound to loopback, where its agent dials them, and advertise the gateway of that zone, at a port for this broker.

Ports follow from broker ids, so that a broker that is added changes no listener of the others: the gateway's port for a
broker is a base plus the broker's id, and so is the loopback port, from another base for each zone. A listener for
admin tools is as one of a further zone, of which each agent is the gateway for its own broker. Where answers to
producers are to be held, an agent is that for clients of its broker's own zone as well, at the address that they know.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

LOOPBACK = "127.0.0.1"
MAX_PORT = 65535
_ALL_ADDRESSES = {"", "0.0.0.0", "::"}  # noqa: S104 - compared with
_ADMIN = "admin"
_WITHOUT_TLS = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "PLAINTEXT",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_PLAINTEXT",
}
"""What a loopback listener speaks where clients speak this: TLS ends at the gateway."""


class PlanError(Exception):
    """No plan can be made of these zones and brokers; the message says which and why."""


@dataclass(frozen=True, slots=True)
class BrokerSite:
    """Where a broker stands, and how clients of its own zone reach it."""

    broker_id: int
    zone: str
    host: str
    port: int = 9092
    bind_host: str = ""
    """Where its listener for its own zone is bound; empty: all interfaces."""
    gateway_bind_host: str = "0.0.0.0"  # noqa: S104 - clients of the whole zone connect there
    """Where its agent listens for clients."""
    admin_host: str = ""
    """As admin tools reach its agent; empty: as clients reach the broker."""


@dataclass(frozen=True, slots=True)
class PlanRules:
    """How ports and names are made."""

    security_protocol: str = "PLAINTEXT"
    """What clients speak, with brokers and gateways alike."""
    gateway_port_base: int = 19300
    """A gateway's port for a broker is this plus the broker's id."""
    loopback_port_base: int = 19400
    """A broker's loopback port for the first zone is this plus its id."""
    loopback_port_step: int = 100
    """By so much the base of the next zone is higher."""
    listener_prefix: str = "CLIENT"
    admin: bool = False
    """Whether there is a listener for admin tools that come by the broker's own agent."""
    durable: bool = False
    """Whether clients of the own zone, too, come by the broker's agent, which may then hold answers to producers."""
    bootstrap_port: int | None = None
    """Where agents lead clients of all zones to the listeners for their zone; None: nowhere."""


def listener_name(zone: str, prefix: str = "CLIENT") -> str:
    """Of the client listener for this zone, such as CLIENT_AZ1."""
    return f"{prefix}_{re.sub(r'[^0-9A-Za-z]', '_', zone).upper()}"


def plan(
    brokers: Sequence[BrokerSite], gateways: Mapping[str, str], rules: PlanRules | None = None
) -> dict[int, dict[str, str]]:
    """The keys of server.properties by broker id; `gateways` are the names of the zones' gateways.

    The first three keys are to be joined to what the broker has: its listeners for brokers and controllers.
    Raises PlanError.
    """
    rules = rules or PlanRules()
    zones = _zones(brokers, gateways, rules)
    _check(brokers, zones, rules)
    return {broker.broker_id: _keys(broker, brokers, zones, gateways, rules) for broker in brokers}


def _zones(brokers: Sequence[BrokerSite], gateways: Mapping[str, str], rules: PlanRules) -> list[str]:
    """In the order in which the gateways were named, as the ports follow from it."""
    if not brokers:
        raise PlanError("there is no broker")
    for broker in brokers:
        if broker.zone not in gateways:
            told = f"zone {broker.zone!r}" if broker.zone else "no zone (broker.rack)"
            raise PlanError(f"broker {broker.broker_id} has {told}, of which no gateway is named")
    for zone in gateways:
        if not any(broker.zone == zone for broker in brokers):
            raise PlanError(f"zone {zone} has no broker, so no agent that could be its gateway")
    if len(gateways) == 1 and not rules.durable:
        raise PlanError("there is one zone alone: its clients reach every broker without a gateway")
    return list(gateways)


def _check(brokers: Sequence[BrokerSite], zones: Sequence[str], rules: PlanRules) -> None:
    if rules.durable and rules.bootstrap_port is not None:
        raise PlanError("one address for all zones leads past where answers are held: leave one of the two out")
    if rules.security_protocol not in _WITHOUT_TLS:
        raise PlanError(f"{rules.security_protocol!r} is not one of {', '.join(_WITHOUT_TLS)}")
    names = Counter(listener_name(zone, rules.listener_prefix) for zone in zones)
    names.update([listener_name(_ADMIN, rules.listener_prefix)] if rules.admin else [])
    name, count = names.most_common(1)[0]
    if count > 1:
        raise PlanError(f"the listener {name} would be there {count} times: choose another prefix or other zones")
    ids = [broker.broker_id for broker in brokers]
    if len(set(ids)) < len(ids):
        raise PlanError("a broker is named twice")
    if max(ids) - min(ids) >= rules.loopback_port_step:
        raise PlanError(f"broker ids are {rules.loopback_port_step} or more apart: raise the step of loopback ports")
    for broker in brokers:
        _check_ports(broker, brokers, zones, rules)


def _check_ports(broker: BrokerSite, brokers: Sequence[BrokerSite], zones: Sequence[str], rules: PlanRules) -> None:
    """One host has the broker's listeners and its agent's. Kafka wants another port for each of its own."""
    away = [zone for zone in zones if rules.durable or zone != broker.zone]
    loopback = [_loopback_port(broker, zones.index(zone), rules) for zone in away]
    clients = [rules.gateway_port_base + other.broker_id for other in _others(broker, brokers)]
    if rules.admin:
        loopback.append(_loopback_port(broker, len(zones), rules))
        clients.append(rules.gateway_port_base + broker.broker_id)
    if rules.bootstrap_port is not None:
        clients.append(rules.bootstrap_port)
    twice = {broker.port, *clients} & set(loopback)
    twice |= {one for one, count in Counter(clients).items() if count > 1}
    if rules.durable or {broker.bind_host, broker.gateway_bind_host} & _ALL_ADDRESSES:
        twice |= {broker.port} & set(clients)
    if twice:
        told = f"port {min(twice)} would be used twice on the host of broker {broker.broker_id}"
        raise PlanError(f"{told}: choose other bases")
    highest = max(broker.port, *loopback, *clients)
    if highest > MAX_PORT:
        raise PlanError(f"port {highest} on the host of broker {broker.broker_id} is above {MAX_PORT}")


def _others(broker: BrokerSite, brokers: Sequence[BrokerSite]) -> Iterator[BrokerSite]:
    """Those that clients of this broker's zone reach by its agent."""
    return (other for other in brokers if other.zone != broker.zone)


def _loopback_port(broker: BrokerSite, zone_index: int, rules: PlanRules) -> int:
    return rules.loopback_port_base + zone_index * rules.loopback_port_step + broker.broker_id


def _keys(
    broker: BrokerSite,
    brokers: Sequence[BrokerSite],
    zones: Sequence[str],
    gateways: Mapping[str, str],
    rules: PlanRules,
) -> dict[str, str]:
    names = {zone: listener_name(zone, rules.listener_prefix) for zone in zones}
    away = [zone for zone in zones if zone != broker.zone]
    # The own zone's comes first: it is by the first client listener that an agent reaches Kafka.
    listeners = [f"{names[broker.zone]}://{broker.bind_host}:{broker.port}"]
    advertised = [f"{names[broker.zone]}://{broker.host}:{broker.port}"]
    protocols = [f"{names[broker.zone]}:{rules.security_protocol}"]
    if rules.durable:
        own_port = _loopback_port(broker, zones.index(broker.zone), rules)
        listeners = [f"{names[broker.zone]}://{LOOPBACK}:{own_port}"]
        protocols = [f"{names[broker.zone]}:{_WITHOUT_TLS[rules.security_protocol]}"]
    for zone in away:
        listeners.append(f"{names[zone]}://{LOOPBACK}:{_loopback_port(broker, zones.index(zone), rules)}")
        advertised.append(f"{names[zone]}://{gateways[zone]}:{rules.gateway_port_base + broker.broker_id}")
        protocols.append(f"{names[zone]}:{_WITHOUT_TLS[rules.security_protocol]}")
    if rules.admin:
        admin = listener_name(_ADMIN, rules.listener_prefix)
        host = broker.admin_host or broker.host
        listeners.append(f"{admin}://{LOOPBACK}:{_loopback_port(broker, len(zones), rules)}")
        advertised.append(f"{admin}://{host}:{rules.gateway_port_base + broker.broker_id}")
        protocols.append(f"{admin}:{_WITHOUT_TLS[rules.security_protocol]}")
    keys = {
        "listeners": ",".join(listeners),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": ",".join(protocols),
        "broker.rack": broker.zone,
        "remote.wal.gateway.enable": "true",
        "remote.wal.gateway.listen.host": broker.gateway_bind_host,
        "remote.wal.gateway.port.base": str(rules.gateway_port_base),
        "remote.wal.gateway.brokers": ",".join(str(one.broker_id) for one in _others(broker, brokers)),
        "remote.wal.gateway.zone.listeners": ",".join(f"{zone}={names[zone]}" for zone in away),
    }
    if rules.bootstrap_port is not None:
        keys["remote.wal.gateway.bootstrap.listener"] = names[broker.zone]
        keys["remote.wal.gateway.bootstrap.port"] = str(rules.bootstrap_port)
    if rules.durable:
        keys["remote.wal.gateway.durable.listener"] = names[broker.zone]
        keys["remote.wal.gateway.durable.port"] = str(broker.port)
    if rules.admin:
        keys["remote.wal.gateway.admin.listener"] = listener_name(_ADMIN, rules.listener_prefix)
    if not rules.security_protocol.endswith("SSL"):
        keys["remote.wal.gateway.plaintext.accepted"] = "true"
    return keys
