"""Checks of the listeners, the other agents, and this host's limits."""

import ipaddress

from doctor.facts import Facts, Unknown
from doctor.findings import Finding, Level

_FILES_BESIDE = 256
"""Sockets, libraries and the like, beside segment files."""
_FILES_PER_PEER = 32
_NAMED = 5


def listeners(facts: Facts) -> Finding:
    """Whether replica fetchers of other hosts dial their own agent, and not this broker past it."""
    check, broker, settings = "listeners", facts.broker, facts.settings
    name = broker.inter_broker_listener_name
    advertised, listening = broker.advertised_listeners[name], broker.listeners.get(name)
    port, host = (
        settings.peers.replica_port_base + broker.node_id,
        settings.peers.replica_listen_host,
    )
    found = f"{name} is advertised as {advertised.host}:{advertised.port}"
    change = f"advertised.listeners: {name}://{host}:{port}, and listeners alike"
    if advertised.port != port or (_is_address(advertised.host) and advertised.host != host) or not advertised.host:
        reason = f"; agents listen for broker {broker.node_id} at {host}:{port}, so followers pass them by"
        return Finding(check, Level.ERROR, found + reason, change)
    if listening is None or listening.port != port:
        return Finding(check, Level.ERROR, f"{found}, and the broker does not listen at port {port}", change)
    if not _is_address(advertised.host):
        found += f", a name: it must lead to {host} on every other host, and to this broker here"
        return Finding(check, Level.WARNING, found, change)
    if listening.host not in (advertised.host, "localhost"):
        found += f", and listens at {listening.host or 'all interfaces'}: others may reach it past the agents"
        return Finding(check, Level.WARNING, found, change)
    return Finding(check, Level.OK, found)


def agent_peers(facts: Facts) -> Finding:
    """Whether every other broker's agent is in the list, and answers."""
    check, key = "agent-peers", "remote.wal.agent.peers"
    silent = {broker_id: reason for broker_id, reason in facts.peers.items() if reason is not None}
    if isinstance(facts.cluster, Unknown):
        missing: list[int] = []
    else:
        missing = sorted(facts.cluster.broker_ids - facts.peers.keys() - {facts.broker.node_id})
    problems = [f"broker {broker_id}: {reason}" for broker_id, reason in sorted(silent.items())]
    if missing:
        problems.append(f"not in {key}: brokers {', '.join(map(str, missing))}, from which this one cannot replicate")
    if problems:
        change = f"add them to {key}" if missing else f"start these agents, or correct {key}"
        return Finding(check, Level.ERROR, "; ".join(problems), change)
    if isinstance(facts.cluster, Unknown):
        return Finding(check, Level.UNKNOWN, f"those in {key} answer; whether all are there: {facts.cluster.reason}")
    return Finding(check, Level.OK, f"{len(facts.peers)} agents answer")


def agents_registered(facts: Facts) -> Finding:
    """Whether the registered agents are reached over HTTP, and are those that they should be."""
    check = "agents-registered"
    if isinstance(facts.agents, Unknown):
        return Finding(check, Level.UNKNOWN, facts.agents.reason)
    problems = []
    for broker_id, answer in sorted(facts.agents.items()):
        if isinstance(answer, Unknown):
            problems.append(f"broker {broker_id}: {answer.reason}")
        elif answer.broker_id != broker_id:
            problems.append(f"broker {broker_id}: the agent of broker {answer.broker_id} answers there")
    if problems:
        change = "start these agents; remote.wal.agent.http.listener must be reached from here"
        return Finding(check, Level.WARNING, "; ".join(problems), change)
    clusters = {answer.cluster_id for answer in facts.agents.values() if not isinstance(answer, Unknown)}
    if len(clusters) > 1:
        return Finding(check, Level.ERROR, f"of several clusters: {', '.join(sorted(clusters))}", "separate them")
    return Finding(check, Level.OK, f"{len(facts.agents)} agents answer")


def missing_records(facts: Facts) -> Finding:
    """Whether object storage lacks records that cannot be had any more, as the agents tell."""
    check = "missing-records"
    if isinstance(facts.agents, Unknown):
        return Finding(check, Level.UNKNOWN, facts.agents.reason)
    answers = [answer for answer in facts.agents.values() if not isinstance(answer, Unknown)]
    gaps = [gap for answer in answers for gap in answer.gaps]
    if gaps:
        more = f" and {len(gaps) - _NAMED} more" if len(gaps) > _NAMED else ""
        return Finding(
            check,
            Level.WARNING,
            f"gone before they could be stored, so a recovered log lacks them: {', '.join(gaps[:_NAMED])}{more}",
            "see why uploads took longer than the topics' retention: remote_wal_oldest_unstored_seconds, upload_gap",
        )
    if len(answers) < len(facts.agents) or not answers:
        return Finding(
            check, Level.UNKNOWN, f"{len(facts.agents) - len(answers)} of {len(facts.agents)} agents are silent"
        )
    return Finding(check, Level.OK, "no agent has declared a gap that still matters")


def inotify_watches(facts: Facts) -> Finding:
    """Whether every partition can be watched."""
    check, key = "inotify-watches", "fs.inotify.max_user_watches"
    watches, partitions = facts.host.max_user_watches, facts.host.partitions
    if isinstance(watches, Unknown):
        return Finding(check, Level.UNKNOWN, watches.reason)
    if isinstance(partitions, Unknown):
        return Finding(check, Level.UNKNOWN, partitions.reason)
    found = f"{key} is {watches}, the broker has {partitions} partitions"
    if watches >= partitions:
        return Finding(check, Level.OK, found)
    found += "; appends to those without a watch are seen at remote.wal.log.manager.task.interval.ms only"
    return Finding(check, Level.WARNING, found, f"sysctl -w {key}={2 * partitions}")


def open_files(facts: Facts) -> Finding:
    """Whether the agent may open what it wants to."""
    check, limit = "open-files", facts.host.open_files
    if isinstance(limit, Unknown):
        return Finding(check, Level.UNKNOWN, limit.reason)
    wanted = facts.settings.quotas.open_files
    needed = wanted + _FILES_BESIDE + _FILES_PER_PEER * len(facts.peers)
    found = f"{facts.host.open_files_of} may open {limit} files, some {needed} are needed"
    if limit >= needed:
        return Finding(check, Level.OK, found)
    change = f"LimitNOFILE={max(65536, 2 * needed)} in the agent's unit, or lower remote.wal.log.manager.open.files"
    return Finding(check, Level.ERROR if limit <= wanted else Level.WARNING, found, change)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
