"""Plans the listeners that each broker needs so that clients stay in their zone, and its agent's settings.

Kafka answers Metadata, FindCoordinator and DescribeCluster with the endpoints of the listener that was asked. So each
broker has a client listener for each zone. The one of its own zone advertises the broker itself. Those of other zones
are bound to loopback, where its agent dials them, and advertise the gateway of that zone, at a port for this broker.

Agents, and commands for operators, have a listener that advertises the broker itself in every zone: what they need of a
broker must not depend on another agent. If answers to producers are held, an agent is also the gateway for clients of
its broker's own zone, at the address that they know.

The gateway's port for a broker is a base plus the broker's id (`gateway.planning.planned_ports` has the others).

`running_plan` finds the parts of a plan that a running cluster already has, so that a new plan keeps them. A listener's
Metadata names brokers as that listener's clients reach them, possibly through a zone's gateways. So brokers' hosts are
read from their own listeners.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.planning.front import listener_lines
from gateway.planning.planned_ports import (
    LOOPBACK,
    WITHOUT_TLS,
    BrokerSite,
    PlanError,
    PlanRules,
    Socket,
    check_sockets,
    loopback_bases,
    without_tls,
)
from gateway.zone_proxies import ranked
from kafka_log.broker_files.server_properties import BrokerProperties

_AGENTS = "agents"
_OTHER_SERVERS = 2


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
        if protocol not in WITHOUT_TLS:
            raise PlanError(f"{protocol!r} is not one of {', '.join(WITHOUT_TLS)}")
    names = Counter(listener_name(zone, rules.listener_prefix) for zone in zones)
    names.update([agents_listener_name(rules)])
    name, count = names.most_common(1)[0]
    if count > 1:
        raise PlanError(f"the listener {name} would be there {count} times: choose another prefix or other zones")
    ids = [broker.broker_id for broker in brokers]
    if len(set(ids)) < len(ids):
        raise PlanError("a broker is named twice")
    host, count = Counter(broker.host for broker in brokers).most_common(1)[0]
    if count > 1:
        raise PlanError(
            f"{count} brokers share the host {host}, where the ports of one gateway alone have room: give each a host, "
            "or put agents in front of them (--front)"
        )
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


@dataclass(frozen=True, slots=True)
class RunningPlan:
    """The parts of a plan that the running cluster already has."""

    brokers: list[BrokerSite]
    rules: PlanRules
    """The requested rules, with the existing listener for agents."""
    loopback_bases: Mapping[str, int]
    """Bases of the zones that have listeners."""
    properties: Mapping[int, BrokerProperties]
    """What brokers say."""

    def whole(self, made: Mapping[int, Mapping[str, str]]) -> dict[int, dict[str, str]]:
        """Return the plan by broker id, joined with the brokers' other listeners, so that brokers start with these
        lines."""
        return {broker_id: _joined(keys, self.properties[broker_id]) for broker_id, keys in made.items()}


def running_plan(
    told: Mapping[int, BrokerSite], properties: Mapping[int, BrokerProperties], rules: PlanRules
) -> RunningPlan:
    """Return the parts of a plan that a cluster already has.

    `told` is what the cluster reports of each broker at the listener that was asked; `properties` are the brokers'
    configurations.

    Clients' present listener keeps its name, and agents use it: a broker that is not restarted yet would not know a new
    name. Raises PlanError.
    """
    prefix = rules.listener_prefix
    zones = dict.fromkeys(site.zone for site in told.values())
    planned = {listener_name(zone, prefix) for zone in zones}
    agents = rules.agents_listener.upper() or _agents_listener(told, properties, planned)
    if agents:
        protocols = {broker.security_protocols[agents] for broker in properties.values() if agents in broker.listeners}
        spoken = rules.agents_security_protocol or min(protocols, default="")
        rules = replace(rules, agents_listener=agents, agents_security_protocol=spoken)
    sites = [_site(told[one], properties[one], agents, rules) for one in sorted(told)]
    bases = {zone: _base(listener_name(zone, prefix), properties) for zone in zones}
    known = {zone: base for zone, base in bases.items() if base is not None}
    return RunningPlan(sites, rules, known, properties)


def _joined(keys: Mapping[str, str], broker: BrokerProperties) -> dict[str, str]:
    planned = {one.partition(":")[0] for one in keys["listener.security.protocol.map"].split(",")}
    names = [name for name in (*broker.listeners, *broker.controller_listener_names) if name not in planned]
    kept = listener_lines(
        {name: broker.listeners[name] for name in names if name in broker.listeners},
        {name: broker.advertised_listeners[name] for name in names if name in broker.advertised_listeners},
        {name: broker.security_protocols.get(name, "PLAINTEXT") for name in names},
    )
    return {key: ",".join(filter(None, (value, kept.get(key)))) for key, value in keys.items()}


def _agents_listener(
    told: Mapping[int, BrokerSite], properties: Mapping[int, BrokerProperties], planned: set[str]
) -> str:
    """Return the client listener that all brokers have besides a plan's: the one that was asked, or the only one.

    Empty: there is none.
    """
    found: set[str] = set()
    asked: set[str] = set()
    for broker_id, broker in properties.items():
        reserved = {broker.inter_broker_listener_name, *broker.controller_listener_names}
        own = {
            name: where
            for name, where in broker.advertised_listeners.items()
            if name not in planned | reserved and not _leads_to_an_agent(broker, name)
        }
        found |= own.keys()
        site = told[broker_id]
        asked |= {name for name, where in own.items() if (where.host, where.port) == (site.host, site.port)}
    chosen = asked or found
    if len(chosen) > 1:
        raise PlanError(f"one of {', '.join(sorted(chosen))} is to be for agents: say which by --agents-listener")
    return next(iter(chosen), "")


def _site(told: BrokerSite, broker: BrokerProperties, agents: str, rules: PlanRules) -> BrokerSite:
    own = listener_name(told.zone, rules.listener_prefix)
    where, for_agents = broker.advertised_listeners.get(own), broker.advertised_listeners.get(agents)
    site = told
    if for_agents is not None:
        bound = broker.listeners[agents].host
        site = replace(site, agents_host=for_agents.host, agents_port=for_agents.port, agents_bind_host=bound)
    if where is not None:
        bound = broker.listeners[own].host
        return replace(site, host=where.host, port=where.port, bind_host="" if bound == LOOPBACK else bound)
    if for_agents is None or _has_zones(broker):
        raise PlanError(
            f"broker {told.broker_id} has no listener {own}, and yet others of a plan, or none for clients: its zone "
            "has changed, the prefix is another one, or its agent is in front of it (`gateway plan --front`). Give it "
            "a listener of that name, the prefix of before, or its line `listeners` of before the front"
        )
    return replace(site, host=for_agents.host, port=rules.zone_port, bind_host=broker.listeners[agents].host)


def _has_zones(broker: BrokerProperties) -> bool:
    """Whether a listener looks like one for another zone's clients."""
    names = broker.advertised_listeners.keys() - {broker.inter_broker_listener_name}
    return any(_leads_to_an_agent(broker, name) for name in names)


def _leads_to_an_agent(broker: BrokerProperties, name: str) -> bool:
    """Whether a listener is bound to loopback, and advertised elsewhere, be it at another port of one machine."""
    return broker.listeners[name].host == LOOPBACK and broker.listeners[name] != broker.advertised_listeners[name]


def _base(name: str, properties: Mapping[int, BrokerProperties]) -> int | None:
    """Return the base of this listener's loopback ports; None if no broker has it there."""
    bases = {
        broker_id: broker.listeners[name].port - broker_id
        for broker_id, broker in properties.items()
        if name in broker.listeners and broker.listeners[name].host == LOOPBACK
    }
    if len(set(bases.values())) > 1:
        one, other = (
            next(key for key, base in bases.items() if base == wanted) for wanted in sorted(set(bases.values()))[:2]
        )
        raise PlanError(f"{name} is not at one base plus the broker's id: see brokers {one} and {other}")
    return next(iter(bases.values()), None)
