"""Checks the listeners, the other agents and the bypass around dead ones, and this host's limits."""

import ipaddress

from agent.descriptors import SEGMENT_FILES
from agent.http.http_asking import is_away
from agent.settings.agent_settings import AgentSettings
from agent.settings.http_listener import is_loopback
from agent.settings.plain_peers import listener_with_login
from agent.tls.certificates import SOON_DAYS
from agent.wiring.peering import is_forwarded
from doctor.facts import Facts, Unknown, known
from doctor.findings import Fault, Level, Verdict, some_of, worst
from kafka_log.broker_files.server_properties import BrokerProperties

_FILES_BESIDE = 256
"""Sockets, libraries and the like, besides segment files."""
_FILES_PER_PEER = 32
_BYPASS = "remote.wal.agent.bypass"


def listener_fault(broker: BrokerProperties, settings: AgentSettings) -> Fault | None:
    """Return what the file shows about followers that would not connect through agents; None: nothing."""
    name = broker.inter_broker_listener_name
    advertised, listening = broker.advertised_listeners[name], broker.listeners.get(name)
    port, host = settings.peers.replica_port_base + broker.node_id, settings.peers.replica_listen_host
    found = f"{name} is advertised as {advertised.host}:{advertised.port}"
    change = _listener_change(broker, f"{host}:{port}")
    if advertised.port != port or (_is_address(advertised.host) and advertised.host != host) or not advertised.host:
        reason = f"; agents listen for broker {broker.node_id} at {host}:{port}, so followers pass them by"
        return Level.ERROR, found + reason, change
    if listening is None or (listening.port != port and not is_forwarded(broker, port)):
        return Level.ERROR, f"{found}, and the broker does not listen at port {port}", change
    return None


def _listener_change(broker: BrokerProperties, address: str) -> str:
    name = broker.inter_broker_listener_name
    if broker.advertised_listeners.keys() - {*broker.controller_listener_names} == {name}:  # clients use it, too
        return (
            f"leave {name} to clients; beside it a listener WAL://{address} in listeners and advertised.listeners, and "
            "inter.broker.listener.name=WAL (docs/getting-started.md, 7)"
        )
    return f"advertised.listeners: {name}://{address}, and listeners alike"


def plaintext_fault(broker: BrokerProperties, settings: AgentSettings) -> Fault | None:
    """Return what strangers could do because clients must log in but agents speak plaintext; None: nothing."""
    name = listener_with_login(broker, settings)
    if name is None or is_loopback(settings.peers.peer_listener.host):
        return None
    found = (
        f"{name} asks clients for a login, and agents speak plaintext: whoever reaches "
        "remote.wal.agent.peer.listener may pose as a broker's agent, so agents do not read objects for each other"
    )
    return Level.WARNING, found, "remote.wal.agent.ssl.* on all agents"


def plaintext_peers(facts: Facts) -> Verdict:
    """Check whether agents authenticate each other, where brokers require a login."""
    fault = plaintext_fault(facts.broker, facts.settings)
    return Verdict(*fault) if fault is not None else Verdict(Level.OK, "no login is passed by")


def broker(facts: Facts) -> Verdict:
    """Check whether this host's broker runs. Where its names lead and whether it accepts TLS shows only then."""
    if facts.broker_silence is None:
        return Verdict(Level.OK, "it answers")
    found = f"the broker of this host does not answer at its listeners: {facts.broker_silence}"
    change = "start it; its log says why it ended (docs/broker-died.md). If its process is there, it is frozen"
    return Verdict(Level.ERROR, found, change)


def listeners(facts: Facts) -> Verdict:
    """Check whether replica fetchers of other hosts connect to their own agent, not to this broker directly."""
    broker, settings = facts.broker, facts.settings
    if (fault := listener_fault(broker, settings)) is not None:
        return Verdict(*fault)
    name = broker.inter_broker_listener_name
    advertised, listening = broker.advertised_listeners[name], broker.listeners[name]
    port, host = settings.peers.replica_port_base + broker.node_id, settings.peers.replica_listen_host
    found = f"{name} is advertised as {advertised.host}:{advertised.port}"
    change = _listener_change(broker, f"{host}:{port}")
    # The broker dials itself by its own name, where no agent stands in for it.
    itself = {advertised.host: (listening.host,)} if len(facts.replica_hosts) > 1 else {}
    astray = [one for one, seen in facts.replica_hosts.items() if seen not in ((host,), itself.get(one))]
    if astray and facts.broker_silence is not None and not _is_address(advertised.host):
        found += f"; by which hosts file the broker resolves {some_of(astray)} shows only while it runs"
        return Verdict(Level.UNKNOWN, found)
    if astray and not _is_address(advertised.host):
        found += f"; here {some_of(tuple(astray))} must lead to {host}, and on every host to its own agent"
        return Verdict(Level.WARNING, found, f"/etc/hosts: {host} {' '.join(astray)}")
    if listening.host not in (advertised.host, host) and not is_loopback(listening.host):
        found += f", and listens at {listening.host or 'all interfaces'}: others may reach it past the agents"
        if is_forwarded(broker, port):  # whoever keeps the listener at another port decides on its host, too
            return Verdict(Level.INFORMATION, found, f"let only other brokers and the operator reach {listening.port}")
        return Verdict(Level.WARNING, found, change)
    return Verdict(Level.OK, found)


def broker_tls(facts: Facts) -> Verdict:
    """Check whether agent and broker of this host accept each other's certificate."""
    name, found = facts.broker.inter_broker_listener_name, facts.broker_tls
    if found is None:
        return Verdict(Level.OK, f"{name} speaks {facts.broker.security_protocols[name]}")
    stores = "ssl.keystore.* and ssl.truststore.* of this listener, or remote.wal.agent.broker.ssl.*"
    if isinstance(found, Unknown):
        return Verdict(Level.ERROR, found.reason, f"correct {stores}; the agent's user must be able to read them")
    if found.unnamed:
        reason = (
            f"the agent's certificate does not name {some_of(found.unnamed)}, for which it stands: the broker closes"
        )
        return Verdict(Level.ERROR, reason, f"a certificate with all that brokers advertise in {stores}")
    if found.refusal is not None and facts.broker_silence is not None:
        return Verdict(Level.UNKNOWN, found.refusal)
    if found.refusal is not None:
        return Verdict(Level.ERROR, f"{name}: {found.refusal}", f"start the broker, or correct {stores}")
    return Verdict(Level.OK, f"{name} takes this agent's certificate, and shows one that is trusted")


def agent_peers(facts: Facts) -> Verdict:
    """Check whether every other broker's agent is listed or registered, and answers."""
    key = "remote.wal.agent.peers"
    silent = {broker_id: reason for broker_id, reason in facts.peers.items() if reason is not None}
    if isinstance(facts.cluster, Unknown):
        missing: list[int] = []
    else:
        missing = sorted(facts.cluster.broker_ids - facts.peers.keys() - {facts.broker.node_id})
    problems = [f"broker {broker_id}: {reason}" for broker_id, reason in sorted(silent.items())]
    if missing:
        brokers = ", ".join(map(str, missing))
        problems.append(f"neither in {key} nor registered: brokers {brokers}, from which this one cannot replicate")
    if problems:
        change = f"start their agents, or add them to {key}" if missing else f"start these agents, or correct {key}"
        return Verdict(Level.ERROR, "; ".join(problems), change)
    if isinstance(facts.cluster, Unknown):
        return Verdict(Level.UNKNOWN, f"those known answer; whether all are there: {facts.cluster.reason}")
    return Verdict(Level.OK, f"{len(facts.peers)} agents answer")


def agents_registered(facts: Facts) -> Verdict:
    """Check whether the registered agents respond over HTTP, and are those of their brokers."""
    agents = known(facts.agents)
    silent = {one: answer.reason for one, answer in sorted(agents.items()) if isinstance(answer, Unknown)}
    faults: list[Fault] = []
    if is_away(silent.get(facts.broker.node_id, "")) and not facts.settings.is_shadow:
        reason = silent.pop(facts.broker.node_id)
        found = f"this host's agent does not answer, and while it is away its broker gets nothing from others: {reason}"
        change = "start it again; if it is frozen, end it first (kill -9): docs/runbooks.md, RemoteWalAgentDown"
        faults.append((Level.ERROR, found, change))
    if silent:
        change = "start those that do not run, end (kill -9) and start those that are frozen; "
        change += "remote.wal.agent.http.listener must be reached from here"
        faults.append((Level.WARNING, "; ".join(f"broker {one}: {reason}" for one, reason in silent.items()), change))
    if faults:
        return worst(faults)
    clusters = {answer.cluster_id for answer in agents.values() if not isinstance(answer, Unknown)}
    if len(clusters) > 1:
        return Verdict(Level.ERROR, f"of several clusters: {', '.join(sorted(clusters))}", "separate them")
    return Verdict(Level.OK, f"{len(agents)} agents answer")


def missing_records(facts: Facts) -> Verdict:
    """Check, by the agents, whether object storage lacks records that no log has any more."""
    agents = known(facts.agents)
    answers = [answer for answer in agents.values() if not isinstance(answer, Unknown)]
    gaps = [gap for answer in answers for gap in answer.gaps]
    if gaps:
        return Verdict(
            Level.WARNING,
            f"gone before they could be stored, so a recovered log lacks them: {some_of(gaps)}",
            "see why uploads took longer than the topics' retention: remote_wal_oldest_unstored_seconds, upload_gap",
        )
    if len(answers) < len(agents) or not answers:
        return Verdict(Level.UNKNOWN, f"{len(agents) - len(answers)} of {len(agents)} agents are silent")
    return Verdict(Level.OK, "no agent has declared a gap that still matters")


def held_records(facts: Facts) -> Verdict:
    """Check, by the agents, whether logs lost records that object storage still holds until an operator decides."""
    agents = known(facts.agents)
    answers = [answer for answer in agents.values() if not isinstance(answer, Unknown)]
    if held := [one for answer in answers for one in answer.held]:
        found = f"lost by a log without an election, and held in object storage: {some_of(held)}"
        change = (
            "append them to the log by `held restore`, or give them up; if an unclean election has brought them back, "
        )
        return Verdict(
            Level.ERROR, found, f"{change}the log has them, but `recover` leaves them out: keep the replicas"
        )
    if len(answers) < len(agents) or not answers:
        return Verdict(Level.UNKNOWN, f"{len(agents) - len(answers)} of {len(agents)} agents are silent")
    return Verdict(Level.OK, "no log lost records that object storage holds")


def inotify_watches(facts: Facts) -> Verdict:
    """Check whether the kernel's limit allows the agent to watch every partition."""
    key = "fs.inotify.max_user_watches"
    watches, partitions = known(facts.host.max_user_watches), known(facts.host.partitions)
    found = f"{key} is {watches}, the broker has {partitions} partitions"
    if watches >= partitions:
        return Verdict(Level.OK, found)
    found += "; appends to those without a watch are seen within a minute only"
    return Verdict(Level.WARNING, found, f"sysctl -w {key}={2 * partitions}")


def leader_history(facts: Facts) -> Verdict:
    """Check whether the agent may read which broker led which partition."""
    directory, unread = facts.broker.metadata_log_dir, facts.host.leader_history
    if unread is not None:
        found = f"{unread.reason}: what a new leader's log lacks is held, even if an election removed it"
        return Verdict(Level.WARNING, found, f"let the agent's user read {directory} (metadata.log.dir)")
    return Verdict(Level.OK, f"the controllers' log in {directory} can be read")


def open_files(facts: Facts) -> Verdict:
    """Check whether the agent may open as many files as its settings want."""
    limit = known(facts.host.open_files)
    wanted = SEGMENT_FILES
    needed = wanted + _FILES_BESIDE + _FILES_PER_PEER * len(facts.peers)
    found = f"{facts.host.open_files_of} may open {limit} files, some {needed} are needed"
    if limit >= needed:
        return Verdict(Level.OK, found)
    change = f"LimitNOFILE={max(65536, 2 * needed)} in the agent's unit"
    return Verdict(Level.ERROR if limit <= wanted else Level.WARNING, found, change)


def certificates(facts: Facts) -> Verdict:
    """Check whether the agent's certificates, and those that it trusts, are valid for long enough."""
    days = {key: left for key, left in facts.certificates.items() if not isinstance(left, Unknown)}
    unread = [f"{key}: {left.reason}" for key, left in facts.certificates.items() if isinstance(left, Unknown)]
    ends = [f"{key} {'has expired' if left < 0 else f'ends in {left:.1f} days'}" for key, left in days.items()]
    if unread:
        return Verdict(Level.ERROR, "; ".join(unread), "bring files that the agent's user can read")
    if not days:
        return Verdict(Level.OK, "no certificates are named")
    if min(days.values()) < SOON_DAYS:
        level = Level.ERROR if min(days.values()) < 0 else Level.WARNING
        return Verdict(level, "; ".join(ends), "bring new ones; a running agent takes them by itself")
    return Verdict(Level.OK, "; ".join(ends))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def bypass_listener(facts: Facts) -> Verdict:
    """Check that other brokers can bypass this host's agent, and that no other client can."""
    broker, settings = facts.broker, facts.settings
    if not settings.bypass.brokers:
        found = f"{_BYPASS} is empty: nobody replicates from a broker whose agent is dead"
        return Verdict(Level.INFORMATION, found, f"a second listener of each broker, and {_BYPASS}")
    own = settings.bypass.brokers.get(broker.node_id)
    if own is None:
        found = f"broker {broker.node_id} is not in {_BYPASS}: no other host's list, if alike, leads past this agent"
        return Verdict(Level.WARNING, found, f"add {broker.node_id}@<host>:<port> to {_BYPASS} on all hosts")
    names = [name for name, where in broker.listeners.items() if where.port == own.port]
    if not names:
        found = f"{_BYPASS} has {own} for this broker, which listens at no such port"
        return Verdict(Level.ERROR, found, f"listeners: add BYPASS://{own}, or correct {_BYPASS}")
    faults = _bypass_faults(facts, names[0])
    if faults:
        level, found, change = max(faults, key=lambda fault: list(Level).index(fault[0]))
        return Verdict(level, found, change)
    return Verdict(Level.OK, f"{names[0]} at {own}")


def _bypass_faults(facts: Facts, name: str) -> list[Fault]:
    """Return what is wrong with the listener of this name, and what to change."""
    broker, settings = facts.broker, facts.settings
    prefix, wanted = f"listener.name.{name.lower()}.", settings.bypass.security_protocol
    speaks = broker.security_protocols[name]
    auth = broker.raw.get(f"{prefix}ssl.client.auth", broker.raw.get("ssl.client.auth", "none"))
    faults = []
    if speaks != wanted:
        found = f"{name} speaks {speaks}, {_BYPASS}.security.protocol is {wanted}"
        faults.append((Level.ERROR, found, f"listener.security.protocol.map: {name}:{wanted}"))
    elif wanted == "SSL" and auth.lower() != "required":
        found = f"{name} wants no client certificate (ssl.client.auth={auth}), so everybody is the same User:ANONYMOUS"
        faults.append((Level.ERROR, found, f"{prefix}ssl.client.auth=required"))
    if is_loopback(broker.listeners[name].host) and not is_loopback(settings.bypass.brokers[broker.node_id].host):
        found = f"{name} listens at {broker.listeners[name].host} only: other hosts' agents do not reach it"
        faults.append((Level.ERROR, found, f"listeners: {name}://{settings.bypass.brokers[broker.node_id]}"))
    if wanted.endswith("PLAINTEXT"):
        found = f"{name} is unencrypted" + (
            "" if wanted.startswith("SASL") else ", and everybody there is User:ANONYMOUS"
        )
        faults.append((Level.WARNING, found, f"make it SSL, {_BYPASS}.security.protocol too"))
    if name in broker.advertised_listeners:
        found = f"{name} is advertised: clients that come by it would be sent to it again"
        faults.append((Level.WARNING, found, f"take {name} out of advertised.listeners"))
    return faults


def bypass_peers(facts: Facts) -> Verdict:
    """Check whether this agent can bypass other brokers' dead agents."""
    silent = [f"broker {broker_id}: {reason}" for broker_id, reason in sorted(facts.bypass.items()) if reason]
    if silent:
        change = f"correct {_BYPASS}, the listener, its certificates, or the firewall"
        return Verdict(Level.WARNING, "; ".join(silent), change)
    return Verdict(Level.OK, f"{len(facts.bypass)} brokers answer past their agents")
