"""Finds the parts of a plan that a running cluster already has, so that a new plan keeps them.

A listener's Metadata names brokers as that listener's clients reach them, possibly through a zone's gateways. So
brokers' hosts are read from their own listeners.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.planning.front import listener_lines
from gateway.planning.plan import listener_name
from gateway.planning.planned_ports import LOOPBACK, BrokerSite, PlanError, PlanRules
from kafka_log.broker_files.server_properties import BrokerProperties


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
            "has changed, or the prefix is another one. Give it a listener of that name, or the prefix of before"
        )
    return replace(site, host=for_agents.host, port=rules.zone_port, bind_host=broker.listeners[agents].host)


def _has_zones(broker: BrokerProperties) -> bool:
    """Whether a listener looks like one for another zone's clients."""
    names = broker.advertised_listeners.keys() - {broker.inter_broker_listener_name}
    return any(_leads_to_an_agent(broker, name) for name in names)


def _leads_to_an_agent(broker: BrokerProperties, name: str) -> bool:
    """Whether a listener is bound to loopback, and advertised elsewhere."""
    return broker.listeners[name].host == LOOPBACK != broker.advertised_listeners[name].host


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
