"""A cluster that does what steps say, and knows at each moment who reaches whom."""

from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from doctor.facts import Unknown
from kafka_log.server_properties import BrokerProperties, parse_broker_properties
from rollout.facts import AgentFacts, AgentState, ClusterFacts
from rollout.listeners import AgentListener
from rollout.steps import Action, Step

LISTENER = AgentListener()
OLD, NEW = "1.0", "2.0"
STOCK = {
    "listeners": "CLIENT://0.0.0.0:9092,CONTROLLER://0.0.0.0:9093",
    "advertised.listeners": "CLIENT://kafka-{id}:9092",
    "listener.security.protocol.map": "CLIENT:SASL_SSL,CONTROLLER:SASL_SSL",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "CLIENT",
    "process.roles": "broker,controller",
}


@dataclass
class ModelCluster:
    """Files are what runs, as each step restarts what it changes."""

    files: dict[int, dict[str, str]]
    agents: dict[int, AgentFacts] = field(default_factory=dict)
    topics: tuple[str, ...] = ()
    away: set[int] = field(default_factory=set)
    mute: set[int] = field(default_factory=set)
    """Brokers that do not tell their settings."""
    not_in_sync: tuple[str, ...] = ()

    @classmethod
    def stock(cls, brokers: int = 3, lines: dict[str, str] = STOCK) -> "ModelCluster":
        return cls(
            {
                one: {"node.id": str(one), **{key: value.replace("{id}", str(one)) for key, value in lines.items()}}
                for one in range(1, brokers + 1)
            }
        )

    @property
    def brokers(self) -> dict[int, BrokerProperties]:
        return {one: parse_broker_properties(lines, Path(f"broker {one}")) for one, lines in self.files.items()}

    @property
    def facts(self) -> ClusterFacts:
        told: dict[int, BrokerProperties | Unknown] = {
            one: Unknown("it says nothing") if one in self.mute else broker
            for one, broker in self.brokers.items()
            if one not in self.away
        }
        hosts = {one: f"kafka-{one}" for one in told}
        return ClusterFacts(told, hosts, frozenset(self.away), self.not_in_sync, (), dict(self.agents), self.topics)

    def take(self, step: Step) -> None:
        match step.action:
            case Action.DISABLE_TOPICS:
                self.topics = ()
                return
            case Action.START_AGENT:
                self.set_agent(step.broker_id, AgentState.READY)
            case Action.UPGRADE_AGENT:
                self.set_agent(step.broker_id, AgentState.READY, NEW)
            case Action.STOP_AGENT:
                self.set_agent(step.broker_id, AgentState.SILENT)
        assert step.broker_id is not None
        lines = {**self.files[step.broker_id], **step.lines}
        dropped = {key for key in lines for pattern in step.drop if fnmatch(key, pattern)}
        self.files[step.broker_id] = {key: value for key, value in lines.items() if key not in dropped}

    def set_agent(self, broker_id: int | None, state: AgentState, release: str = OLD, told: str = "") -> None:
        assert broker_id is not None
        self.agents[broker_id] = AgentFacts(release, state, told)

    def unreached(self) -> list[tuple[int, int]]:
        """Who cannot fetch from whom. Between two brokers stand both their agents, where the follower dials its own."""
        return [
            (follower, leader)
            for follower, broker in self.brokers.items()
            for leader in self.files
            if leader != follower and not self._reaches(broker, leader)
        ]

    def _reaches(self, follower: BrokerProperties, leader: int) -> bool:
        name = follower.inter_broker_listener_name
        other = self.brokers[leader]
        if name != LISTENER.name:
            return name in other.listeners and name in other.advertised_listeners
        return LISTENER.is_at(other) and all(
            one in self.agents and self.agents[one].is_ready for one in (follower.node_id, leader)
        )
