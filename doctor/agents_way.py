"""Checks that an agent reaches brokers directly, never through another agent, whose death would also be its own.

A zone gateway's listeners lead to agents: those for a zone's clients name other zones' brokers as the zone's gateways.
"""

from collections.abc import Mapping

from agent.settings.agent_settings import AgentSettings
from agent.settings.kafka_client import bootstrap_listener, client_listeners
from doctor.facts import Facts, Unknown
from doctor.findings import Fault, Level, Verdict, worst
from gateway.planning.plan import listener_name
from kafka_log.broker_files.server_properties import BrokerProperties, Endpoint

_LISTENER = "remote.wal.agent.client.listener"
_SERVERS = "remote.wal.agent.bootstrap.servers"
_CONSEQUENCE = "while an agent there is dead, this one reads and writes nothing of what its broker leads"


def gateway_agents(facts: Facts) -> Verdict:
    """Check whether each named server leads to brokers themselves, by the file and by its answer."""
    settings = facts.settings.gateway
    if not settings.enable:
        return Verdict(Level.OK, "remote.wal.gateway.enable is false")
    faults = faults_of_file(facts.broker, facts.settings)
    for server, brokers in facts.ways.items():
        led = [] if isinstance(brokers, Unknown) else _led_to_agents(brokers, facts.settings)
        if led:
            found = f"{server} names agents in the place of brokers {', '.join(map(str, led))}: {_CONSEQUENCE}"
            faults.append((Level.WARNING, found, f"{_SERVERS}: brokers' listeners for agents ({_LISTENER})"))
    if faults:
        return worst(faults)
    unknown = [told.reason for told in facts.ways.values() if isinstance(told, Unknown)]
    if len(unknown) == len(facts.ways):
        reason = unknown[0] if unknown else "there is no server to ask"
        return Verdict(Level.UNKNOWN, f"nothing in the file leads to agents; what the servers say: {reason}")
    return Verdict(Level.OK, f"{len(facts.ways) - len(unknown)} servers name brokers themselves")


def _led_to_agents(brokers: Mapping[int, Endpoint], settings: AgentSettings) -> list[int]:
    gateway = settings.gateway
    held = {gateway.durable_port} if gateway.durable_listener else set()
    return sorted(one for one, where in brokers.items() if where.port in {gateway.port_base + one, *held})


def faults_of_file(broker: BrokerProperties, settings: AgentSettings) -> list[Fault]:
    """Return what the file alone shows."""
    if not settings.gateway.enable:
        return []
    own, servers = _own_zones_listener(broker, settings), settings.client.bootstrap_servers
    if servers is None:
        name = bootstrap_listener(broker, settings.client)
        if name not in {own, *settings.gateway.by_agents}:
            return []
        found = f"the agent reaches Kafka by {name}, and brokers of other zones by other agents: {_CONSEQUENCE}"
        return [(Level.WARNING, found, f"a listener for agents ({_LISTENER}): print it by remote-wal gateway plan")]
    advertised = broker.advertised_listeners
    known = advertised.get(settings.client.client_listener)
    ports = {advertised[name].port for name in settings.gateway.by_agents | {own} if name in advertised}
    ports -= {known.port} if known is not None else set()
    wrong = [one for one in (part.strip() for part in servers.split(",")) if one.rpartition(":")[2] in map(str, ports)]
    if not wrong:
        return []
    told = "at this port brokers answer clients of their own zone, each as its zone sees the others"
    found = f"{_SERVERS}: {', '.join(wrong)}: {told}"
    return [(Level.WARNING, f"{found}: {_CONSEQUENCE}", f"brokers' listeners for agents ({_LISTENER})")]


def _own_zones_listener(broker: BrokerProperties, settings: AgentSettings) -> str:
    """Return the listener for clients of this broker's zone, if its name is known; else empty."""
    gateway = settings.gateway
    if gateway.durable_listener or gateway.bootstrap_listener:
        return gateway.durable_listener or gateway.bootstrap_listener
    for zone, name in gateway.zone_listeners.items():
        suffix = listener_name(zone, "")
        if name.endswith(suffix):
            own = listener_name(broker.rack or "", name.removesuffix(suffix))
            return own if own in client_listeners(broker) else ""
    return ""
