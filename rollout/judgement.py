"""Whether the cluster is as it should be for one more step, and where each broker stands."""

from collections.abc import Iterator
from dataclasses import dataclass

from agent.settings.http_listener import is_loopback
from doctor.facts import Unknown
from kafka_log.server_properties import BrokerProperties
from rollout.facts import AgentState, ClusterFacts
from rollout.listeners import AgentListener
from rollout.steps import State, Step, first_left

MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why no further step is safe."""

    what: str
    broker_id: int | None = None
    is_unknown: bool = False
    """It could not be found out whether it is."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one broker is."""

    where: str
    agent: str
    release: str
    told: str
    """By the agent: why it is not ready, or what is degraded."""


@dataclass(frozen=True, slots=True)
class Next:
    """What `next` says."""

    step: Step | None
    """None: nothing is left."""
    obstacles: tuple[Obstacle, ...]
    """Why the step has to wait."""


def next_step(facts: ClusterFacts, steps: list[Step], listener: AgentListener) -> Next:
    """The one step to take, and what stands in its way."""
    step = first_left(steps)
    found = list(obstacles(facts, listener))
    if step is not None and step.state is State.UNKNOWN and not found:
        agent = facts.agents.get(step.broker_id) if step.broker_id is not None else None
        why = agent.told if agent is not None else ""
        found.append(Obstacle(f"whether {step.id} is done is not known: {why}", step.broker_id, is_unknown=True))
    return Next(step, tuple(found))


def obstacles(facts: ClusterFacts, listener: AgentListener) -> Iterator[Obstacle]:
    """What has to be well, whatever the next step is."""
    for broker_id in sorted(facts.missing):
        yield Obstacle(
            "the broker is not there: see its log; if its files were changed last, change them back", broker_id
        )
    for broker_id, broker in sorted(facts.brokers.items()):
        if isinstance(broker, Unknown):
            yield Obstacle(f"the broker does not tell its settings: {broker.reason}", broker_id, is_unknown=True)
    yield from _agents_in_use(facts, listener)
    yield from _unreachable(facts, listener)
    if facts.not_in_sync:
        named = ", ".join(facts.not_in_sync[:MAX_NAMED]) + (", ..." if len(facts.not_in_sync) > MAX_NAMED else "")
        yield Obstacle(
            f"{len(facts.not_in_sync)} partitions are under-replicated or without a leader ({named}): a further "
            "restart could take them away; wait until all replicas are in sync"
        )


def _agents_in_use(facts: ClusterFacts, listener: AgentListener) -> Iterator[Obstacle]:
    """A broker whose agent is away fetches from nobody."""
    for broker_id in _users(facts, listener):
        agent = facts.agents.get(broker_id)
        if agent is None:
            yield Obstacle(f"the broker replicates by {listener.name}, and no agent is registered for it", broker_id)
        elif agent.state is AgentState.UNKNOWN:
            yield Obstacle(
                f"the broker replicates through an agent that cannot be asked: {agent.told}", broker_id, True
            )
        elif not agent.is_ready:
            told = f"{agent.state.value}: {agent.told}" if agent.told else agent.state.value
            yield Obstacle(f"the broker replicates through its agent, which is not well ({told}); start it", broker_id)


def _unreachable(facts: ClusterFacts, listener: AgentListener) -> Iterator[Obstacle]:
    if not _users(facts, listener):
        return
    for broker_id, broker in sorted(facts.brokers.items()):
        if not isinstance(broker, Unknown) and not listener.is_at(broker):
            host, port = listener.advertised(broker_id)
            yield Obstacle(
                f"other brokers reach this one by {listener.name}, which it does not advertise at {host}:{port}",
                broker_id,
            )


def standings(facts: ClusterFacts, listener: AgentListener) -> dict[int, Standing]:
    """Of all brokers that are known."""
    found = {}
    for broker_id in sorted({*facts.brokers, *facts.missing}):
        agent = facts.agents.get(broker_id)
        where = _where(facts.brokers.get(broker_id), listener, has_agent=agent is not None)
        told = (agent.state.value, agent.release, agent.told) if agent is not None else ("none", "", "")
        found[broker_id] = Standing(where, *told)
    return found


def _where(broker: BrokerProperties | Unknown | None, listener: AgentListener, *, has_agent: bool) -> str:
    if broker is None:
        return "not there"
    if isinstance(broker, Unknown):
        return "unknown"
    if broker.inter_broker_listener_name == listener.name:
        return "replicates through its agent"
    used = broker.inter_broker_listener_name
    advertised = broker.advertised_listeners.get(used)
    if has_agent and advertised is not None and is_loopback(advertised.host):
        return (
            f"replicates by {used} at {advertised.host}:{advertised.port}: name it by --listener, if it is the agents'"
        )
    return f"advertises {listener.name}" if listener.is_known_to(broker) else "stock"


def _users(facts: ClusterFacts, listener: AgentListener) -> list[int]:
    return [
        one
        for one, broker in sorted(facts.brokers.items())
        if not isinstance(broker, Unknown) and broker.inter_broker_listener_name == listener.name
    ]
