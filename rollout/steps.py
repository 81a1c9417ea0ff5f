"""What is to be done, in order, and what of it is done: each step leaves a cluster that replicates.

In: brokers must advertise the agents' listener everywhere before one of them uses it, and agents must relay everywhere
before one broker depends on its own. Out is the reverse. A broker that uses the listener reaches all others by agents;
one that does not goes on as before, so a cluster half way in, or half way out, is a whole one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from doctor.facts import Unknown
from kafka_log.server_properties import BrokerProperties
from rollout.facts import AgentFacts, AgentState, ClusterFacts
from rollout.listeners import INTER_BROKER, OLD_INTER_BROKER, AgentListener, back_to

AGENTS_KEYS = ("remote.wal.*", "remote.log.wal.*", "rsm.wal.*")


class Target(StrEnum):
    """Where the cluster is led."""

    ENABLED = "enabled"
    UPGRADED = "upgraded"
    REMOVED = "removed"


class Action(StrEnum):
    """What a step does to a process, once files are as it says."""

    RESTART_BROKER = "restart-broker"
    START_AGENT = "start-agent"
    UPGRADE_AGENT = "upgrade-agent"
    STOP_AGENT = "stop-agent"
    DISABLE_TOPICS = "disable-topics"


class State(StrEnum):
    """How far a step is."""

    DONE = "done"
    LEFT = "left"
    UNKNOWN = "unknown"


class RolloutError(Exception):
    """What is asked for cannot be planned."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What an operator wants."""

    target: Target
    release: str
    """The agents', once upgraded."""
    listener: AgentListener = field(default_factory=AgentListener)
    stock_listener: str | None = None
    """By which brokers reach each other when the agents are gone; None: the only one that can be."""
    peer_port: int = 19090
    """Where agents listen for each other, in what is proposed."""


@dataclass(frozen=True, slots=True)
class Step:
    """One change on one host."""

    name: str
    broker_id: int | None
    """None: it is the cluster's."""
    action: Action
    state: State
    do: tuple[str, ...]
    """For people, in order."""
    undo: str
    """What to do when it fails."""
    lines: Mapping[str, str] = field(default_factory=dict)
    """What stands in the broker's server.properties from this step on."""
    drop: tuple[str, ...] = ()
    """Keys that stand there no more; `*` for all that begin so."""

    @property
    def id(self) -> str:
        return self.name if self.broker_id is None else f"{self.name}:{self.broker_id}"


def plan(facts: ClusterFacts, wish: Wish) -> list[Step]:
    """All steps in order, those that are done among them. Raises RolloutError.

    A broker that is away, as while it restarts, keeps its steps: whether they are done is not known.
    """
    away = dict.fromkeys(facts.missing, Unknown("it is not there"))
    return list(_PLANS[wish.target](replace(facts, brokers={**away, **facts.brokers}), wish))


def _enable(facts: ClusterFacts, wish: Wish) -> Iterator[Step]:
    yield from (_advertise(one, broker, wish.listener) for one, broker in sorted(facts.brokers.items()))
    yield from (_start_agent(one, facts, wish) for one in sorted(facts.brokers))
    for broker_id, broker in sorted(facts.brokers.items()):
        yield _use(
            "switch",
            broker_id,
            broker,
            wish.listener.name,
            (
                "The broker now replicates through its agent: start that at each boot, before the broker.",
                "From now on the agent may read the broker's own file, which says the same as its copy.",
            ),
        )


def _advertise(broker_id: int, broker: BrokerProperties | Unknown, listener: AgentListener) -> Step:
    return Step(
        "advertise",
        broker_id,
        Action.RESTART_BROKER,
        _state(broker, listener.is_at),
        (
            f"Add the listener {listener.name} to the broker's server.properties; nobody uses it yet.",
            *(() if isinstance(broker, Unknown) else _needs(broker, listener)),
        ),
        "Put the old lines back and restart the broker.",
        _lines(broker, listener.lines_in),
    )


def _needs(broker: BrokerProperties, listener: AgentListener) -> Iterator[str]:
    """What the listener wants beside its lines."""
    protocol = listener.protocol_of(broker)
    if protocol != "PLAINTEXT":
        old, new = broker.inter_broker_listener_name.lower(), listener.name.lower()
        yield (
            f"It speaks {protocol}: what the broker has under listener.name.{old}.* it needs under "
            f"listener.name.{new}.* too, and certificates that name what is advertised."
        )
    elif broker.raw.get("authorizer.class.name"):
        yield "Brokers are User:ANONYMOUS there: give that ClusterAction before any of them uses it."


def _start_agent(broker_id: int, facts: ClusterFacts, wish: Wish) -> Step:
    peers = ",".join(f"{one}@{facts.hosts.get(one, '<host>')}:{wish.peer_port}" for one in sorted(facts.brokers))
    name = wish.listener.name
    return Step(
        "agent",
        broker_id,
        Action.START_AGENT,
        _agent_state(facts.agents.get(broker_id)),
        (
            "Start the agent; it relays for nobody yet.",
            "Before that, put its keys into server.properties, the same ones on all hosts but for this host's "
            "addresses and certificates: the store's, and for instance "
            f"remote.wal.agent.peers={peers}. The broker passes over them.",
            f"Give it a copy of that file with {INTER_BROKER}={name} in the copy alone, once `remote-wal doctor "
            "--broker-config COPY` finds no error.",
        ),
        "Stop the agent. Nothing depends on it.",
        {"remote.log.wal.storage.system.enable": "true", "remote.wal.agent.replica.port.base": _base(wish)},
    )


def _upgrade(facts: ClusterFacts, wish: Wish) -> Iterator[Step]:
    if not facts.agents:
        raise RolloutError("no agent is registered: --to enabled comes before")
    for broker_id in sorted(facts.brokers):
        agent = facts.agents.get(broker_id)
        state = _agent_state(agent)
        if agent is not None and agent.release != wish.release:
            state = State.LEFT
        yield Step(
            "upgrade",
            broker_id,
            Action.UPGRADE_AGENT,
            state,
            (
                f"Install release {wish.release} on this host, and restart the agent at once: it must be back within "
                "replica.lag.time.max.ms.",
            ),
            f"Install {agent.release if agent is not None else 'the old release'} again and restart the agent.",
        )


def _remove(facts: ClusterFacts, wish: Wish) -> Iterator[Step]:
    brokers, listener, stock = sorted(facts.brokers.items()), wish.listener, _stock_listener(facts, wish)
    yield Step(
        "topics",
        None,
        Action.DISABLE_TOPICS,
        State.LEFT if facts.topics else State.DONE,
        (f"remote-wal topics disable {' '.join(facts.topics)}",) if facts.topics else (),
        "remote-wal topics enable, with the settings that they had. All goes inline meanwhile.",
    )
    for broker_id, broker in brokers:
        yield _use("switch-back", broker_id, broker, stock, ("The agent goes on running: others use it still.",))
    for broker_id, _ in brokers:
        yield Step(
            "stop-agent",
            broker_id,
            Action.STOP_AGENT,
            _stopped(facts.agents.get(broker_id)),
            (
                "Stop the agent for good, and its socket unit where there is one. Nobody deletes its objects from then "
                "on: wait until they have expired, which `remote-wal describe --objects` tells, or empty the prefix in "
                "the bucket afterwards.",
            ),
            "Start it again.",
        )
    for broker_id, broker in brokers:
        yield Step(
            "withdraw",
            broker_id,
            Action.RESTART_BROKER,
            _state(broker, lambda one: not listener.is_known_to(one)),
            (
                f"Take the listener {listener.name}, those of bypass and gateway where there are, and the agent's keys "
                "out of the broker's server.properties.",
            ),
            "Put the lines back and restart the broker.",
            _lines(broker, listener.lines_out),
            AGENTS_KEYS,
        )


def _use(
    name: str, broker_id: int, broker: BrokerProperties | Unknown, listener: str, remarks: tuple[str, ...]
) -> Step:
    drop = not isinstance(broker, Unknown) and OLD_INTER_BROKER in broker.raw
    return Step(
        name,
        broker_id,
        Action.RESTART_BROKER,
        _state(broker, lambda one: one.inter_broker_listener_name == listener),
        (f"Let the broker reach the others by their listener {listener}.", *remarks),
        f"Put {INTER_BROKER} back as it was and restart the broker.",
        {INTER_BROKER: listener},
        (OLD_INTER_BROKER,) if drop else (),
    )


def _stock_listener(facts: ClusterFacts, wish: Wish) -> str:
    known = {one: broker for one, broker in facts.brokers.items() if not isinstance(broker, Unknown)}
    candidates = back_to(known, wish.listener)
    if wish.stock_listener is not None:
        if known and wish.stock_listener not in candidates:
            told = ", ".join(sorted(candidates)) or "none"
            raise RolloutError(f"--back-to {wish.stock_listener}: not advertised by all brokers; {told} would do")
        return wish.stock_listener
    if len(candidates) == 1:
        return candidates.pop()
    told = ", ".join(sorted(candidates)) or "no listener is advertised by all of them"
    raise RolloutError(f"by which listener are brokers to reach each other then? Give --back-to ({told})")


def _base(wish: Wish) -> str:
    return str(wish.listener.port_base)


def _state(broker: BrokerProperties | Unknown, is_done: Callable[[BrokerProperties], bool]) -> State:
    if isinstance(broker, Unknown):
        return State.UNKNOWN
    return State.DONE if is_done(broker) else State.LEFT


def _lines(
    broker: BrokerProperties | Unknown, lines: Callable[[BrokerProperties], dict[str, str]]
) -> Mapping[str, str]:
    return {} if isinstance(broker, Unknown) else lines(broker)


def _agent_state(agent: AgentFacts | None) -> State:
    if agent is not None and agent.state is AgentState.UNKNOWN:
        return State.UNKNOWN
    return State.DONE if agent is not None and agent.is_ready else State.LEFT


def _stopped(agent: AgentFacts | None) -> State:
    if agent is None or agent.state is AgentState.SILENT:
        return State.DONE
    return State.UNKNOWN if agent.state is AgentState.UNKNOWN else State.LEFT


_PLANS: Mapping[Target, Callable[[ClusterFacts, Wish], Iterator[Step]]] = {
    Target.ENABLED: _enable,
    Target.UPGRADED: _upgrade,
    Target.REMOVED: _remove,
}


def first_left(steps: Sequence[Step]) -> Step | None:
    """The step that is to be taken, or found out about; None: all are done."""
    return next((step for step in steps if step.state is not State.DONE), None)
