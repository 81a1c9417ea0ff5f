"""Checks the zone gateway: the listeners that keep clients in their zone, their names, and what clients lose.

A gateway's listeners lead to agents: those for a zone's clients name other zones' brokers as the zone's gateways. An
agent must reach brokers directly, never through another agent, whose death would also be its own.
"""

from collections.abc import Mapping

from agent.found_peers import gateway_parts, serving_clients
from agent.settings.agent_settings import AgentSettings
from agent.settings.gateway_settings import GatewaySettings
from agent.settings.http_listener import is_loopback
from agent.settings.kafka_client import bootstrap_listener, client_listeners, listeners_past_agent
from doctor.facts import Facts, Unknown, known
from doctor.findings import Fault, Level, Verdict, some_of, worst
from gateway.planning.plan import listener_name
from kafka_log.broker_files.server_properties import BrokerProperties, Endpoint
from metadata_topic.settings.topic_settings import GatewayPart, why_not_durable

_KEY = "remote.wal.gateway"
_PLAN = "print the lines by remote-wal gateway plan"
_DURABLE_PLAN = f"{_PLAN} --durable"
_LISTENER = "remote.wal.agent.client.listener"
_SERVERS = "remote.wal.agent.bootstrap.servers"
_CONSEQUENCE = "while an agent there is dead, this one reads and writes nothing of what its broker leads"
_TWO_SIDED = {
    GatewayPart.PRODUCE: f"{_KEY}.produce.enable",
    GatewayPart.LINKS: f"{_KEY}.fetch.links.enable",
}
"""Features that need two agents."""
_OWN_AGENT = "agent beside this broker"
_RACK_AWARE = "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector on all brokers"


def follower_fetching(facts: Facts) -> Verdict:
    """Check whether consumers may read from the replica in their own zone, which Kafka itself offers (KIP-392)."""
    if not facts.broker.rack:
        return Verdict(Level.INFORMATION, "broker.rack is not set: no zone is known here", "broker.rack on all brokers")
    if _sends_by_rack(facts):
        return Verdict(Level.OK, "consumers with client.rack read from the replica in their zone")
    found = (
        "consumers cross zones to the leader: two thirds of what each group reads, in three zones, at the price of "
        "replication's bytes. Kafka itself has them read in their zone, for free"
    )
    return Verdict(Level.INFORMATION, found, f"{_RACK_AWARE}, and client.rack in consumers")


def _sends_by_rack(facts: Facts) -> bool:
    return facts.broker.raw.get("replica.selector.class", "").endswith("RackAwareReplicaSelector")


def gateway_listeners(facts: Facts) -> Verdict:
    """Check whether clients of each zone reach their own zone's gateways, and from there only this broker."""
    settings = facts.settings.gateway
    if not settings.enable:
        return Verdict(Level.OK, f"{_KEY}.enable is false")
    faults = [*([] if settings.is_front else _zone_faults(facts, settings)), *_own_zone_faults(facts, settings)]
    for zone, name in settings.zone_listeners.items():
        faults += _listener_faults(facts, f"gateway of {zone}", name)
    if settings.durable_listener:
        faults += _listener_faults(facts, _OWN_AGENT, settings.durable_listener, settings.durable_port)
    if faults:
        return worst(faults)
    if settings.is_front:
        return Verdict(Level.OK, "clients of all zones come by this agent, at the broker's own address")
    if isinstance(facts.zones, Unknown):
        return Verdict(Level.UNKNOWN, f"these listeners fit; whether all zones have one: {facts.zones.reason}")
    return Verdict(Level.OK, f"{len(settings.zone_listeners)} other zones, whose clients come by these")


def _zone_faults(facts: Facts, settings: GatewaySettings) -> list[Fault]:
    """Return faults about other zones that the cluster has."""
    if isinstance(facts.zones, Unknown):
        return []
    faults: list[Fault] = []
    own = facts.broker.rack
    away = {one: zone for one, zone in facts.zones.items() if zone != own and one != facts.broker.node_id}
    missing = sorted({zone for zone in away.values() if zone} - settings.zone_listeners.keys())
    if missing:
        found = f"no listener for clients of {', '.join(missing)}: they are not led to their own gateways"
        faults.append((Level.ERROR, found, f"{_PLAN}, and add them to {_KEY}.zone.listeners"))
    return faults


def _own_zone_faults(facts: Facts, settings: GatewaySettings) -> list[Fault]:
    """Return faults if bootstrapping here leads to a gateway instead of the broker."""
    others = settings.by_agents - {settings.durable_listener} | {facts.settings.client.client_listener}
    client = [name for name in client_listeners(facts.broker) if name in facts.broker.advertised_listeners]
    if not set(client) - others:
        return [(Level.ERROR, f"no listener for clients of this zone ({facts.broker.rack})", _PLAN)]
    return []


def _listener_faults(facts: Facts, leads_to: str, name: str, port: int | None = None) -> list[Fault]:
    """Return faults of a listener that clients reach only through an agent, at this port, or at that for this
    broker.
    """
    broker = facts.broker
    where, advertised = broker.listeners[name], broker.advertised_listeners.get(name)
    faults: list[Fault] = []
    if not is_loopback(where.host):
        found = (
            f"{name} listens at {where.host or 'all interfaces'}: clients reach it past the gateways' TLS and limits"
        )
        faults.append((Level.ERROR, found, f"listeners: {name}://127.0.0.1:{where.port}"))
    if broker.security_protocols[name].endswith("SSL"):
        found = f"{name} speaks {broker.security_protocols[name]}, but clients' TLS ends at the gateway"
        faults.append((Level.ERROR, found, f"listener.security.protocol.map: {name} without TLS"))
    port = facts.settings.gateway.port_base + broker.node_id if port is None else port
    if advertised is None or advertised == where:
        found = f"{name} advertises no {leads_to}"
        faults.append((Level.ERROR, found, f"advertised.listeners: {name}://<{leads_to}>:{port}"))
    elif advertised.port != port:
        found = f"{name} is advertised at port {advertised.port}; gateways listen for this broker at {port}"
        key = "durable.port" if name == facts.settings.gateway.durable_listener else "port.base"
        change = f"advertised.listeners: {name}://{advertised.host}:{port}, or the gateways' {_KEY}.{key}"
        faults.append((Level.ERROR, found, change))
    return faults


def gateway_sides(facts: Facts) -> Verdict:
    """Check whether gateway features that are on here are also on at the other agents that they need."""
    settings = facts.settings.gateway
    if not settings.enable:
        return Verdict(Level.OK, f"{_KEY}.enable is false")
    faults: list[Fault] = []
    if settings.fetch_rack_enable and not _sends_by_rack(facts):
        found = f"{_KEY}.fetch.rack.enable without effect: this broker sends no consumer to the replica of its rack"
        faults.append((Level.WARNING, found, _RACK_AWARE))
    own, own_id = set(gateway_parts(facts.broker, facts.settings)), facts.broker.node_id
    others = {one: agent for one, agent in facts.registered.items() if one != own_id}
    for part, key in _TWO_SIDED.items():
        on = sorted(one for one, agent in others.items() if part in agent.gateway)
        off = sorted(one for one, agent in others.items() if part not in agent.gateway)
        elsewhere, here = (off, "on") if part in own else (on, "off")
        if elsewhere:
            there = "off" if here == "on" else "on"
            brokers = ", ".join(map(str, elsewhere))
            found = f"{key} is {here} here and {there} beside broker {brokers}: what goes between passes as it is"
            faults.append((Level.WARNING, found, f"the same {key} on all agents"))
    return worst(faults) if faults else Verdict(Level.OK, "what is on here is on at the other agents")


def gateway_names(facts: Facts) -> Verdict:
    """Check whether the gateways' names resolve, each to all gateways of its zone."""
    settings, advertised = facts.settings.gateway, facts.broker.advertised_listeners
    if not settings.enable:
        return Verdict(Level.OK, f"{_KEY}.enable is false")
    faults: list[Fault] = []
    for zone, listener in settings.zone_listeners.items():
        host = advertised[listener].host if listener in advertised else ""
        addresses, agents = facts.names.get(host, Unknown("")), serving_clients(facts.registered, zone)
        if not isinstance(addresses, Unknown) and len(addresses) < len(agents):
            found = f"{host} has {len(addresses)} of the addresses of {len(agents)} agents in {zone}: each is the only "
            found += "way to the brokers that it is the proxy of"
            change = f"all of them, or a list of brokers in the {_KEY}.brokers of these agents, if it is a balancer's"
            faults.append((Level.ERROR, found, change))
    for host, addresses in sorted(facts.names.items()):
        if isinstance(addresses, Unknown):
            faults.append((Level.ERROR, f"{host} does not resolve here: {addresses.reason}", f"give {host} addresses"))
        elif len(addresses) == 1:
            found = f"{host} is one address alone: while that gateway is away, its clients reach no broker elsewhere"
            faults.append((Level.WARNING, found, "a name with the addresses of several agents of the zone"))
    return worst(faults) if faults else Verdict(Level.OK, f"{len(facts.names)} names lead to several gateways each")


def gateway_security(facts: Facts) -> Verdict:
    """Report what brokers no longer know about clients that come through a gateway."""
    settings, raw = facts.settings.gateway, facts.broker.raw
    if not settings.enable:
        return Verdict(Level.OK, f"{_KEY}.enable is false")
    faults: list[Fault] = []
    if any(raw.get(key, "none").strip().lower() != "none" for key in _client_auth_keys(facts)):
        found = "ssl.client.auth: who comes by a gateway is not known by its certificate, as TLS ends there"
        change = f"SASL for clients; {_KEY}.ssl.ca.file has certificates asked for, but brokers do not see them"
        faults.append((Level.WARNING, found, change))
    own = sorted(name for name in _own_listeners(facts) if facts.broker.security_protocols[name].endswith("SSL"))
    if own and settings.ssl_certificate_file is None:
        found = f"{own[0]} speaks TLS with clients of this zone, and the gateways here do not"
        change = f"{_KEY}.ssl.certificate.file and its key, which name the zone's gateway"
        faults.append((Level.ERROR, found, change))
    if settings.ssl_certificate_file is not None and facts.settings.tls.certificate_file is None:
        found = (
            "clients' TLS ends at the gateway, and agents speak plaintext: what clients send crosses zones in the clear"
        )
        faults.append((Level.ERROR, found, "remote.wal.agent.ssl.* on all agents"))
    if "GSSAPI" in ",".join(raw.get(key, "") for key in _mechanism_keys(facts)):
        found = (
            "GSSAPI: clients ask for a ticket to the host that they are told, which is the gateway and not the broker"
        )
        faults.append((Level.WARNING, found, "SCRAM, PLAIN or OAUTHBEARER for clients of other zones"))
    if "max.connections.per.ip" in raw:
        found = "max.connections.per.ip counts all clients of other zones together, as they come from 127.0.0.1"
        change = (
            f"max.connections.per.ip.overrides=127.0.0.1:{settings.max_connections}; gateways give one address half of "
            f"{_KEY}.max.connections at most"
        )
        faults.append((Level.WARNING, found, change))
    if raw.get("authorizer.class.name"):
        found = "ACLs by host see 127.0.0.1 for clients that come by a gateway"
        faults.append((Level.INFORMATION, found, "ACLs by principal"))
    return worst(faults) if faults else Verdict(Level.OK, "nothing by which brokers tell clients apart is lost")


def _own_listeners(facts: Facts) -> set[str]:
    """Return listeners that advertise the broker itself to clients of this zone."""
    broker = facts.broker
    return set(broker.advertised_listeners) - {
        broker.inter_broker_listener_name,
        *broker.controller_listener_names,
        *facts.settings.gateway.by_agents,
    }


def _client_auth_keys(facts: Facts) -> list[str]:
    """Return the keys that require certificates on listeners for clients of this zone."""
    return [
        "ssl.client.auth",
        *(f"listener.name.{name.lower()}.ssl.client.auth" for name in sorted(_own_listeners(facts))),
    ]


def _mechanism_keys(facts: Facts) -> list[str]:
    """Return the keys of the mechanisms by which clients of other zones may log in."""
    names = sorted(facts.settings.gateway.by_agents)
    return ["sasl.enabled.mechanisms", *(f"listener.name.{name.lower()}.sasl.enabled.mechanisms" for name in names)]


def durable_topics(facts: Facts) -> Verdict:
    """Check that producers to durable topics (remote.wal.durable.enable) can only connect through agents."""
    durable = sorted(name for name, topic in known(facts.topics).items() if topic.is_durable)
    if not durable:
        return Verdict(Level.OK, "no topic is durable")
    settings, told = facts.settings.gateway, some_of(durable)
    if not settings.enable or not settings.durable_listener:
        found = f"{told} is durable, and this agent holds no answers: producers are answered before records are stored"
        return Verdict(Level.ERROR, found, f"{_KEY}.durable.listener; {_DURABLE_PLAN}")
    broker, for_agents = facts.broker, facts.settings.client.client_listener
    if past := listeners_past_agent(broker, facts.settings):
        found = f"{told} is durable, and {', '.join(past)} leads past the agent: producers there are answered too soon"
        return Verdict(Level.ERROR, found, f"{_DURABLE_PLAN}, and have no other listener for clients that produce")
    elsewhere = {one: agent for one, agent in facts.registered.items() if one != broker.node_id}
    if (reason := why_not_durable(elsewhere)) is not None:
        return Verdict(Level.ERROR, f"{told} is durable, and {reason}", f"{_DURABLE_PLAN} on all brokers")
    found = f"{told}: nothing is held of producers with acks=0"
    change = "acks=1 or acks=all"
    if for_agents in broker.advertised_listeners:
        found += f"; {for_agents} leads past the agent, too, as agents need it"
        change += f"; let nobody but agents and operators reach {for_agents}, by firewall or by ACLs"
    return Verdict(Level.INFORMATION, found, change)


def gateway_agents(facts: Facts) -> Verdict:
    """Check whether each bootstrap server that settings name leads to the brokers themselves, by the file and by its
    response."""
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
    """Return the faults of the gateway that server.properties alone shows."""
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
