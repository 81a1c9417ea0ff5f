"""Plans an agent in front of each broker: clients keep the addresses that they know, in one zone or in many.

The broker's listener for clients moves to loopback and goes on advertising what it advertises; the agent listens there
in its place and holds the answers to acks=all. Agents and commands get a listener that leads to brokers themselves, in
a round of restarts before: what they need of a broker must not depend on another agent.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gateway.planning.planned_ports import LOOPBACK, PlanError, Socket, check_sockets, without_tls
from kafka_log.broker_files.server_properties import BrokerProperties, Endpoint

_OTHER_SERVERS = 2


@dataclass(frozen=True, slots=True)
class FrontRules:
    """The rules for listeners and ports of agents in front of brokers."""

    listener: str = ""
    """Clients' listener; empty: the one that was asked."""
    agents_listener: str = "AGENTS"
    """The listener for agents: an existing one, or a new one of this name."""
    agents_port: int = 19097
    """A broker's port for agents, if the listener is new; of brokers that share a host, this plus its id."""
    loopback_port_base: int = 19400
    """A broker's loopback port for clients is this plus its id."""


@dataclass(frozen=True, slots=True)
class FrontPlan:
    """Lines for one broker's server.properties, in two steps. Both are empty if clients already connect through its
    agent."""

    first: Mapping[str, str] = field(default_factory=dict)
    """What all brokers need before any has the others: the listener for agents. Empty: it is there."""
    then: Mapping[str, str] = field(default_factory=dict)
    """What leads clients to the agent. Kafka's own lines of before take it back."""


def front_plans(
    asked: Mapping[int, Endpoint], properties: Mapping[int, BrokerProperties], rules: FrontRules
) -> dict[int, FrontPlan]:
    """Return the plan of each broker; `asked` is what the brokers' present listener reports of them. Raises
    PlanError."""
    name = rules.listener.upper() or _asked_listener(asked, properties)
    agents = rules.agents_listener.upper()
    for broker in properties.values():
        _check(broker, name, agents)
    rules = replace(rules, listener=name, agents_listener=agents)
    hosts = {broker_id: broker.advertised_listeners[name].host for broker_id, broker in properties.items()}
    sharing = Counter(hosts.values())
    known = {
        broker_id: broker.advertised_listeners.get(agents)
        or Endpoint(hosts[broker_id], rules.agents_port + (broker_id if sharing[hosts[broker_id]] > 1 else 0))
        for broker_id, broker in properties.items()
    }
    return {
        broker_id: FrontPlan() if is_behind_agent(broker, name) else front_plan(broker, known, rules)
        for broker_id, broker in properties.items()
    }


def is_behind_agent(broker: BrokerProperties, name: str) -> bool:
    """Return whether this listener of a broker is bound to loopback at another port than it advertises."""
    return broker.listeners[name].host == LOOPBACK and broker.listeners[name].port != (
        broker.advertised_listeners[name].port
    )


def _asked_listener(asked: Mapping[int, Endpoint], properties: Mapping[int, BrokerProperties]) -> str:
    found = {
        name
        for broker_id, broker in properties.items()
        for name, where in broker.advertised_listeners.items()
        if where == asked.get(broker_id)
    }
    if len(found) != 1:
        told = ", ".join(sorted(found)) or "none of the brokers' listeners"
        raise PlanError(f"the address that was asked is {told}: say by --listener which one clients use")
    return found.pop()


def _check(broker: BrokerProperties, name: str, agents: str) -> None:
    broker_id = broker.node_id
    if name not in broker.listeners or name not in broker.advertised_listeners:
        raise PlanError(f"broker {broker_id} has no listener {name}: it has {', '.join(broker.advertised_listeners)}")
    if name in {broker.inter_broker_listener_name, *broker.controller_listener_names}:
        raise PlanError(
            f"{name} is also the listener among brokers or controllers of broker {broker_id}: give clients one of "
            "their own first, as an agent replicates by the one among brokers"
        )
    if name == agents:
        raise PlanError(f"{name} is for agents: clients need another listener")
    if broker.raw.get("listeners", "").count(f"{name}://") > 1:
        raise PlanError(f"broker {broker_id} has two addresses for {name}, which this plan does not know how to move")


def front_plan(broker: BrokerProperties, known: Mapping[int, Endpoint], rules: FrontRules) -> FrontPlan:
    """Return one broker's plan; `known` is what brokers advertise to agents, and `rules` name both listeners.

    Raises PlanError.
    """
    name, agents = rules.listener, rules.agents_listener
    listeners, advertised = dict(broker.listeners), dict(broker.advertised_listeners)
    own = listeners[name]
    protocols = {one: broker.security_protocols[one] for one in listeners} | {
        one: broker.security_protocols.get(one, "PLAINTEXT") for one in broker.controller_listener_names
    }
    first: dict[str, str] = {}
    if agents not in listeners:
        advertised[agents] = known[broker.node_id]
        listeners[agents] = Endpoint(own.host, advertised[agents].port)
        protocols[agents] = protocols[name]
        first = listener_lines(listeners, advertised, protocols)
    listeners[name] = Endpoint(LOOPBACK, rules.loopback_port_base + broker.node_id)
    _check_ports(broker.node_id, own, listeners)
    spoken = protocols[name]
    then = {"listeners": _listeners(listeners)}
    if without_tls(spoken) != spoken:
        then["listener.security.protocol.map"] = _map({**protocols, name: without_tls(spoken)})
    others = sorted(known.keys() - {broker.node_id})[:_OTHER_SERVERS]
    then |= {
        "remote.wal.agent.client.listener": agents,
        "remote.wal.agent.bootstrap.servers": ",".join(
            f"{known[one].host}:{known[one].port}" for one in (broker.node_id, *others)
        ),
        "remote.wal.gateway.enable": "true",
        "remote.wal.gateway.listen.host": own.host or "0.0.0.0",  # noqa: S104 - where clients connect now
        "remote.wal.gateway.durable.listener": name,
        "remote.wal.gateway.durable.port": str(own.port),
        "remote.wal.gateway.acks.pipelined.enable": "true",
    }
    if without_tls(spoken) == spoken:
        then["remote.wal.gateway.plaintext.accepted"] = "true"
    return FrontPlan(first, then)


def _check_ports(broker_id: int, clients: Endpoint, listeners: Mapping[str, Endpoint]) -> None:
    sockets = [Socket(where.host, where.port, is_brokers=True) for where in listeners.values()]
    check_sockets(broker_id, [*sockets, Socket(clients.host, clients.port)])


def listener_lines(
    listeners: Mapping[str, Endpoint], advertised: Mapping[str, Endpoint], protocols: Mapping[str, str]
) -> dict[str, str]:
    """Return Kafka's three keys for these listeners: listeners, advertised.listeners and the protocol map."""
    return {
        "listeners": _listeners(listeners),
        "advertised.listeners": _listeners(advertised),
        "listener.security.protocol.map": _map(protocols),
    }


def _listeners(listeners: Mapping[str, Endpoint]) -> str:
    return ",".join(
        f"{name}://{f'[{where.host}]' if ':' in where.host else where.host}:{where.port}"
        for name, where in listeners.items()
    )


def _map(protocols: Mapping[str, str]) -> str:
    return ",".join(f"{name}:{protocol}" for name, protocol in protocols.items())
