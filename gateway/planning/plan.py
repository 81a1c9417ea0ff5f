"""Plans the listeners that each broker needs so that clients stay in their zone, and its agent's settings.

Kafka answers Metadata, FindCoordinator and DescribeCluster with the endpoints of the listener that was asked. So each
broker has a client listener for each zone. The one of its own zone advertises the broker itself. Those of other zones
are bound to loopback, where its agent dials them, and advertise the gateway of that zone, at a port for this broker.

Agents, and commands for operators, have a listener that advertises the broker itself in every zone: what they need of a
broker must not depend on another agent. If answers to producers are held, an agent is also the gateway for clients of
its broker's own zone, at the address that they know.

The gateway's port for a broker is a base plus the broker's id (`gateway.planning.planned_ports` has the others).
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gateway.planning.planned_ports import (
    LOOPBACK,
    BrokerSite,
    PlanError,
    PlanRules,
    Socket,
    check_sockets,
    loopback_bases,
)
from gateway.zone_proxies import ranked

_AGENTS = "agents"
_OTHER_SERVERS = 2
_WITHOUT_TLS = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "PLAINTEXT",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_PLAINTEXT",
}
"""The protocol of a loopback listener, by the protocol of clients: TLS ends at the gateway."""


def without_tls(protocol: str) -> str:
    """Return the protocol of a loopback listener for clients of this protocol: TLS ends at the agent."""
    return _WITHOUT_TLS[protocol]


def listener_name(zone: str, prefix: str = "CLIENT") -> str:
    """Return the name of the client listener for this zone, such as CLIENT_AZ1."""
    return f"{prefix}_{re.sub(r'[^0-9A-Za-z]', '_', zone).upper()}"


def agents_listener_name(rules: PlanRules) -> str:
    return rules.agents_listener.upper() or listener_name(_AGENTS, rules.listener_prefix)


def plan(
    brokers: Sequence[BrokerSite],
    gateways: Mapping[str, str],
    rules: PlanRules | None = None,
    known_bases: Mapping[str, int] | None = None,
) -> dict[int, dict[str, str]]:
    """Return by broker id the keys to set in server.properties; `gateways` are the names of the zones' gateways.

    Zones in `known_bases` keep their loopback ports. The first three keys must be joined to what the broker has: its
    listeners for brokers and controllers (`running_plan` does). Raises PlanError.
    """
    rules = rules or PlanRules()
    _check_zones(brokers, gateways, rules)
    _check(brokers, gateways, rules)
    bases = loopback_bases(list(gateways), brokers, rules, known_bases or {})
    for broker in brokers:
        _check_ports(broker, brokers, bases, rules)
    return {broker.broker_id: _keys(broker, brokers, bases, gateways, rules) for broker in brokers}


def proxies(brokers: Sequence[BrokerSite]) -> dict[str, dict[int, list[int]]]:
    """Return by zone, for each broker of another zone, the brokers whose agents are its proxies, the first choice
    first."""
    agents = {zone: [one.broker_id for one in brokers if one.zone == zone] for zone in {one.zone for one in brokers}}
    return {
        zone: {one.broker_id: ranked(one.broker_id, agents[zone]) for one in brokers if one.zone != zone}
        for zone in sorted(agents)
    }


def _check_zones(brokers: Sequence[BrokerSite], gateways: Mapping[str, str], rules: PlanRules) -> None:
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


def _check(brokers: Sequence[BrokerSite], zones: Mapping[str, str], rules: PlanRules) -> None:
    if rules.pipelined and not rules.durable:
        raise PlanError("acks=all is pipelined where clients of a broker's own zone come by its agent: add durable")
    if rules.durable and rules.bootstrap:
        raise PlanError("one address for all zones leads past where answers are held: leave one of the two out")
    for protocol in (rules.security_protocol, rules.protocol_of_agents):
        if protocol not in _WITHOUT_TLS:
            raise PlanError(f"{protocol!r} is not one of {', '.join(_WITHOUT_TLS)}")
    names = Counter(listener_name(zone, rules.listener_prefix) for zone in zones)
    names.update([agents_listener_name(rules)])
    name, count = names.most_common(1)[0]
    if count > 1:
        raise PlanError(f"the listener {name} would be there {count} times: choose another prefix or other zones")
    ids = [broker.broker_id for broker in brokers]
    if len(set(ids)) < len(ids):
        raise PlanError("a broker is named twice")
    if max(ids) - min(ids) >= rules.loopback_port_step:
        raise PlanError(f"broker ids are {rules.loopback_port_step} or more apart: raise the step of loopback ports")


def _check_ports(broker: BrokerSite, brokers: Sequence[BrokerSite], bases: Mapping[str, int], rules: PlanRules) -> None:
    """Check the ports of the broker and its agent on one host. Kafka needs a different port for each listener."""
    check_sockets(broker.broker_id, [*_of_broker(broker, bases, rules), *_of_agent(broker, brokers, rules)])


def _of_broker(broker: BrokerSite, bases: Mapping[str, int], rules: PlanRules) -> Iterator[Socket]:
    if not rules.durable:
        yield Socket(broker.bind_host, broker.port, True)
    yield Socket(broker.agents_socket_host, rules.agents_port_of(broker), True)
    for zone, base in bases.items():
        if rules.durable or zone != broker.zone:
            yield Socket(LOOPBACK, base + broker.broker_id, True)
    yield Socket(LOOPBACK, rules.replica_port_base + broker.broker_id, True)


def _of_agent(broker: BrokerSite, brokers: Sequence[BrokerSite], rules: PlanRules) -> Iterator[Socket]:
    host = broker.gateway_bind_host
    others = [one.broker_id for one in brokers if one.broker_id != broker.broker_id]
    for other in others:
        yield Socket(rules.replica_listen_host, rules.replica_port_base + other)
        if len({one.zone for one in brokers}) > 1:
            yield Socket(host, rules.gateway_port_base + other)
    if rules.bootstrap:
        yield Socket(host, rules.gateway_port_base - 1)
    if rules.durable:
        yield Socket(host, broker.port)


def _bootstrap_servers(broker: BrokerSite, brokers: Sequence[BrokerSite], rules: PlanRules) -> str:
    """Return the own broker first, and some others, by which a command finds the cluster while the own one is down."""
    others = sorted((one for one in brokers if one is not broker), key=lambda one: one.broker_id)
    reached = [broker, *others[:_OTHER_SERVERS]]
    return ",".join(f"{one.agents_host or one.host}:{rules.agents_port_of(one)}" for one in reached)


def _keys(
    broker: BrokerSite,
    brokers: Sequence[BrokerSite],
    bases: Mapping[str, int],
    gateways: Mapping[str, str],
    rules: PlanRules,
) -> dict[str, str]:
    names = {zone: listener_name(zone, rules.listener_prefix) for zone in bases}
    keys = {
        **_listeners(broker, bases, gateways, rules),
        "broker.rack": broker.zone,
        "remote.wal.agent.client.listener": agents_listener_name(rules),
        "remote.wal.agent.bootstrap.servers": _bootstrap_servers(broker, brokers, rules),
        "remote.wal.gateway.enable": "true",
        "remote.wal.gateway.listen.host": broker.gateway_bind_host,
        "remote.wal.gateway.port.base": str(rules.gateway_port_base),
        "remote.wal.gateway.zone.listeners": ",".join(
            f"{zone}={name}" for zone, name in names.items() if zone != broker.zone
        ),
    }
    if rules.bootstrap:
        keys["remote.wal.gateway.bootstrap.listener"] = names[broker.zone]
    if rules.durable:
        keys["remote.wal.gateway.durable.listener"] = names[broker.zone]
        keys["remote.wal.gateway.durable.port"] = str(broker.port)
    if rules.pipelined:
        keys["remote.wal.gateway.acks.pipelined.enable"] = "true"
    if not rules.security_protocol.endswith("SSL"):
        keys["remote.wal.gateway.plaintext.accepted"] = "true"
    return keys


def _listeners(
    broker: BrokerSite, bases: Mapping[str, int], gateways: Mapping[str, str], rules: PlanRules
) -> dict[str, str]:
    """Return Kafka's three keys for a broker's listeners."""
    id_, plain = broker.broker_id, without_tls(rules.security_protocol)
    # The agents' listener comes first: an agent of a release that does not know its key takes the first client
    # listener.
    agents, agents_host = agents_listener_name(rules), broker.agents_host or broker.host
    listeners = [f"{agents}://{broker.agents_socket_host}:{rules.agents_port_of(broker)}"]
    advertised = [f"{agents}://{agents_host}:{rules.agents_port_of(broker)}"]
    protocols = [f"{agents}:{rules.protocol_of_agents}"]
    own_first = sorted(bases, key=lambda zone: zone != broker.zone)
    for zone in own_first:
        name, is_own = listener_name(zone, rules.listener_prefix), zone == broker.zone
        leads_here = is_own and not rules.durable
        bound = f"{broker.bind_host}:{broker.port}" if leads_here else f"{LOOPBACK}:{bases[zone] + id_}"
        known = f"{broker.host}:{broker.port}" if is_own else f"{gateways[zone]}:{rules.gateway_port_base + id_}"
        listeners.append(f"{name}://{bound}")
        advertised.append(f"{name}://{known}")
        protocols.append(f"{name}:{rules.security_protocol if leads_here else plain}")
    return {
        "listeners": ",".join(listeners),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": ",".join(protocols),
    }
