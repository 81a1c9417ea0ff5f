"""What a running cluster has of a plan already: a plan that is made anew keeps to it.

A listener's Metadata names brokers as that listener's clients reach them, which may be a zone's gateways. So where
brokers stand is read from their own listeners.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gateway.plan import admin_listener_name, agents_listener_name, listener_name
from gateway.planned_ports import LOOPBACK, BrokerSite, PlanError, PlanRules
from kafka_log.server_properties import BrokerProperties


@dataclass(frozen=True, slots=True)
class RunningPlan:
    """Of a cluster that runs."""

    brokers: list[BrokerSite]
    rules: PlanRules
    """Those that are asked for, at the admin tools' ports that there are."""
    loopback_bases: Mapping[str, int] = field(default_factory=dict)
    """Of the zones that have listeners."""


def running_plan(
    told: Mapping[int, BrokerSite], properties: Mapping[int, BrokerProperties], rules: PlanRules
) -> RunningPlan:
    """`told` is what the listener that was asked says of each broker, `properties` what the brokers themselves do.

    Raises PlanError.
    """
    prefix = rules.listener_prefix
    sites = [_site(told[one], properties[one], prefix) for one in sorted(told)]
    zones = dict.fromkeys(site.zone for site in sites)
    bases = {zone: _base(listener_name(zone, prefix), properties) for zone in zones}
    known = {zone: base for zone, base in bases.items() if base is not None}
    admin = _base(admin_listener_name(prefix), properties)
    return RunningPlan(sites, rules if admin is None else replace(rules, admin_port_base=admin), known)


def _site(told: BrokerSite, broker: BrokerProperties, prefix: str) -> BrokerSite:
    own, agents = listener_name(told.zone, prefix), agents_listener_name(prefix)
    where = broker.advertised_listeners.get(own)
    for_agents = broker.advertised_listeners.get(agents)
    if for_agents is not None:
        bound = broker.listeners[agents].host
        told = replace(told, agents_host=for_agents.host, agents_port=for_agents.port, agents_bind_host=bound)
    if where is None:
        if for_agents is not None or _has_other_zones(told.zone, broker, prefix):
            raise PlanError(
                f"broker {told.broker_id} has listeners of a plan, and none is {own}: its zone has changed, or the "
                "prefix is another one. Tell zones and brokers by --sites"
            )
        return told
    bound = broker.listeners[own].host
    return replace(told, host=where.host, port=where.port, bind_host="" if bound == LOOPBACK else bound)


def _has_other_zones(zone: str, broker: BrokerProperties, prefix: str) -> bool:
    """Whether a listener looks as one for a zone's clients."""
    return any(
        name.startswith(f"{prefix.upper()}_") and broker.listeners[name].host == LOOPBACK
        for name in broker.advertised_listeners
        if name in broker.listeners and name != listener_name(zone, prefix)
    )


def _base(name: str, properties: Mapping[int, BrokerProperties]) -> int | None:
    """Of this listener's loopback ports; None: no broker has it there."""
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
