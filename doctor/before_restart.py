"""Judges whether now is the time to restart the next broker or its agent. Pure: `restart_questions` gets the facts.

One broker or agent may go at a time, and only while all others are well: every replica in sync, every agent ready. A
broker needs its own agent to come back, too. An agent may be restarted whatever its own state: that may be the cure.
Anything that could not be asked is UNKNOWN and never well, because a silent broker may be the one that must not go away
now.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from agent.wiring.peering import is_forwarded
from doctor.facts import Unknown, known
from doctor.findings import Fault, Finding, Level, Verdict, judge, some_of, worst
from kafka_log.broker_files.server_properties import BrokerProperties

_WAIT = "wait until all replicas are in sync; see the logs of brokers that stay behind"


class AgentState(StrEnum):
    """What a registered agent's own /readyz responds."""

    READY = "ready"
    NOT_READY = "is not ready"
    SILENT = "does not answer"
    """It is dead, or it is frozen: its host takes the connection for it."""
    UNASKED = "did not say whether it is ready"
    """Something other than the agent may be the obstacle: a firewall, a certificate, a loopback address."""


@dataclass(frozen=True, slots=True)
class AgentReadiness:
    """Whether a registered agent was ready a moment ago, and what it said."""

    release: str
    state: AgentState
    reason: str = ""
    """Why it is not ready or could not be asked; if it is ready, what is degraded."""
    is_shadow: bool = False
    """Whether it relays nothing, so that nobody replicates through it."""

    @property
    def is_ready(self) -> bool:
        return self.state is AgentState.READY


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """The brokers and partitions that one broker's metadata shows."""

    brokers: Mapping[int, BrokerProperties | Unknown]
    """Each living broker's settings, as it reports them itself."""
    missing: frozenset[int]
    """Brokers that have replicas and are not in the cluster."""
    not_in_sync: tuple[str, ...]
    """Partitions with a replica that is not in sync, or without a leader."""
    single: tuple[str, ...]
    """Partitions with one replica."""
    hidden: tuple[str, ...]
    """Topics whose partitions could not be seen, with the reason."""


@dataclass(frozen=True, slots=True)
class RestartFacts:
    """All facts by which a restart is judged."""

    release: str
    """This program's own release."""
    port_base: int
    """A broker that replicates through agents advertises this port plus its id."""
    broker_id: int
    """The broker that is to be restarted, or whose agent is."""
    switches: bool
    """Whether the broker's file, after its restart, makes it replicate through an agent."""
    restarts_agent: bool
    """Whether the agent is to be restarted, not the broker."""
    cluster: RunningCluster | Unknown
    reassigned: int | Unknown
    """How many partitions the controller is reassigning. Only the controller knows, so its answer proves that the
    cluster has one; a broker that has lost it shows old metadata."""
    agents: Mapping[int, AgentReadiness] | Unknown


def judge_restart(facts: RestartFacts) -> list[Finding]:
    """Return one finding for each row of the table in docs/operations.md."""
    rows = {
        "controller": controller,
        "brokers": brokers,
        "replicas": replicas,
        "agents": agents,
        "agent-listeners": agent_listeners,
        "agent-releases": agent_releases,
    }
    return judge(facts, rows)


def controller(facts: RestartFacts) -> Verdict:
    """Check whether a controller responds."""
    moving = known(facts.reassigned)
    if moving:
        return Verdict(Level.INFORMATION, f"it answers; {moving} partitions are being reassigned")
    return Verdict(Level.OK, "it answers")


def brokers(facts: RestartFacts) -> Verdict:
    """Check whether all brokers that hold replicas are present and respond."""
    cluster = known(facts.cluster)
    faults: list[Fault] = [
        (
            Level.WARNING,
            f"broker {one} is not there, so no other one may go",
            f"start broker {one}: see its log, and change back what was changed last; docs/broker-died.md",
        )
        for one in sorted(cluster.missing)
    ]
    mute = {one: told for one, told in sorted(cluster.brokers.items()) if isinstance(told, Unknown)}
    if mute and not faults:
        return Verdict(Level.UNKNOWN, "; ".join(f"broker {one}: {told.reason}" for one, told in mute.items()))
    return worst(faults) if faults else Verdict(Level.OK, f"{len(cluster.brokers)} brokers answer")


def replicas(facts: RestartFacts) -> Verdict:
    """Check whether any broker may stop without making a partition unavailable."""
    cluster = known(facts.cluster)
    if cluster.not_in_sync:
        count = len(cluster.not_in_sync)
        found = f"{count} partitions are under-replicated or without a leader: {some_of(cluster.not_in_sync)}"
        if _own_agent_is_silent(facts):
            return Verdict(
                Level.INFORMATION, f"{found}; the agent that is to be restarted does not answer: that may be why"
            )
        return Verdict(Level.WARNING, found, _WAIT)
    if cluster.hidden:
        return Verdict(Level.UNKNOWN, f"whether these are in sync is not known: {some_of(cluster.hidden)}")
    if cluster.single:
        found = f"{len(cluster.single)} partitions have one replica, away while its broker restarts"
        return Verdict(Level.INFORMATION, f"all in sync; {found}: {some_of(cluster.single)}")
    return Verdict(Level.OK, "all in sync")


def _own_agent_is_silent(facts: RestartFacts) -> bool:
    """Whether the agent that is to be restarted is dead or frozen, so that its restart takes nothing from anybody."""
    if not facts.restarts_agent or isinstance(facts.agents, Unknown):
        return False
    own = facts.agents.get(facts.broker_id)
    return own is not None and own.state is AgentState.SILENT


def agents(facts: RestartFacts) -> Verdict:
    """Check whether each agent that is registered, or that a broker replicates through, is ready.

    Before the first broker replicates through an agent, no agent is needed. An agent in shadow mode relays nothing: it
    counts as absent where one is needed, and may be dead elsewhere.
    """
    registered = known(facts.agents)
    if registered and not facts.switches and _all_are_stock(facts):
        others = [
            f"broker {one} ({agent.state.value})" for one, agent in sorted(registered.items()) if not agent.is_ready
        ]
        found = f"no broker replicates through an agent, so none of {len(registered)} is needed"
        if others:
            return Verdict(Level.INFORMATION, f"{found}; not ready, or not asked: {', '.join(others)}")
        return Verdict(Level.OK, found)
    own = facts.broker_id if facts.restarts_agent else None
    relaying = {one: agent for one, agent in sorted(registered.items()) if one != own and not agent.is_shadow}
    faults: list[Fault] = [
        (
            Level.WARNING,
            f"no agent relays for broker {one}: {'it is in shadow' if one in registered else 'none is registered'}",
            "restart it without remote.wal.agent.mode=shadow" if one in registered else "start it",
        )
        for one in _needing_agents(facts)
        if one not in relaying and one != own
    ]
    for broker_id, agent in relaying.items():
        if agent.state in (AgentState.NOT_READY, AgentState.SILENT):
            faults.append(
                (Level.WARNING, f"the agent of broker {broker_id} {_told(agent)}", "restart it, or see its log")
            )
    if faults:
        return worst(faults)
    unasked = {one: agent for one, agent in relaying.items() if agent.state is AgentState.UNASKED}
    if unasked:
        reasons = (f"the agent of broker {one} {agent.state.value}: {agent.reason}" for one, agent in unasked.items())
        return Verdict(Level.UNKNOWN, "; ".join(reasons), "ask its /readyz on its own host, and see its log")
    told = [f"{len(relaying)} agents are ready"]
    told += [f"broker {one}: {agent.reason}" for one, agent in relaying.items() if agent.reason]
    restarted = registered.get(own) if own is not None else None
    if restarted is not None and (restarted.is_shadow or not restarted.is_ready):
        told.append(f"the one that is to be restarted {_told(restarted)}")
    return Verdict(Level.INFORMATION if len(told) > 1 else Level.OK, "; ".join(told))


def _told(agent: AgentReadiness) -> str:
    state = "is in shadow" if agent.is_shadow else agent.state.value
    return f"{state} ({agent.reason})" if agent.reason else state


def agent_listeners(facts: RestartFacts) -> Verdict:
    """Check whether brokers that replicate through agents find every broker by the listener they use."""
    using, known_brokers = users(facts), _answering(facts)
    faults: list[Fault] = []
    for name in sorted({known_brokers[one].inter_broker_listener_name for one in using}):
        for one, broker in sorted(known_brokers.items()):
            port = facts.port_base + one
            advertised, listening = broker.advertised_listeners.get(name), broker.listeners.get(name)
            is_led_to = listening is not None and (listening.port == port or is_forwarded(broker, port))
            if advertised is None or advertised.port != port or not is_led_to:
                told = (
                    f"other brokers reach broker {one} by {name}, which it does not have and advertise at port {port}"
                )
                faults.append((Level.WARNING, told, f"listeners, advertised.listeners: {name} at port {port}"))
    if faults:
        return worst(faults)
    mute = sorted(set(known(facts.cluster).brokers) - set(known_brokers))
    if mute:
        return Verdict(Level.UNKNOWN, f"brokers {', '.join(map(str, mute))} do not tell their settings")
    return Verdict(Level.OK, f"{len(using)} of {len(known_brokers)} brokers replicate through agents")


def agent_releases(facts: RestartFacts) -> Verdict:
    """Report agents of another release than this program."""
    others = {
        one: agent.release for one, agent in sorted(known(facts.agents).items()) if agent.release != facts.release
    }
    if others:
        told = ", ".join(f"{release} at broker {one}" for one, release in others.items())
        return Verdict(Level.INFORMATION, f"this is {facts.release}; to be upgraded, one by one: {told}")
    return Verdict(Level.OK, f"all are {facts.release}")


def users(facts: RestartFacts) -> list[int]:
    """Return the brokers that replicate through agents."""
    return [one for one, broker in sorted(_answering(facts).items()) if uses_agent(broker, one, facts.port_base)]


def _needing_agents(facts: RestartFacts) -> list[int]:
    """Return brokers whose agents must relay.

    A broker that replicates through its agent reaches every other broker through the agent there.
    """
    everyone = known(facts.cluster).brokers.keys() | {facts.broker_id}
    return sorted(everyone) if facts.switches else users(facts)


def uses_agent(broker: BrokerProperties, broker_id: int, port_base: int) -> bool:
    """Whether the broker replicates through an agent, by the port that it advertises to other brokers."""
    advertised = broker.advertised_listeners.get(broker.inter_broker_listener_name)
    return advertised is not None and advertised.port == port_base + broker_id


def _all_are_stock(facts: RestartFacts) -> bool:
    """Whether every broker has told its settings, and none replicates through an agent."""
    return _answering(facts).keys() == known(facts.cluster).brokers.keys() and not users(facts)


def _answering(facts: RestartFacts) -> dict[int, BrokerProperties]:
    return {one: told for one, told in known(facts.cluster).brokers.items() if not isinstance(told, Unknown)}
