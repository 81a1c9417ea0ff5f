"""What `cluster status` tells, as plain values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """`pid` is None when the process does not run; `registered` means that clients are sent to it."""

    broker_id: int
    pid: int | None
    registered: bool
    client_listener: str
    replication_listener: str


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """The agent beside a broker; `ready` is what its /readyz says."""

    broker_id: int
    pid: int | None
    ready: bool
    peer_listener: str
    http_listener: str


@dataclass(frozen=True, slots=True)
class ReplicaSummary:
    """Counts over all topics, internal ones included."""

    topics: int
    partitions: int
    under_replicated: int
    """Partitions with a replica out of sync."""
    without_leader: int


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """`replicas` is None when no broker answers."""

    directory: str
    cluster_id: str
    bootstrap_servers: str
    brokers: tuple[BrokerStatus, ...]
    agents: tuple[AgentStatus, ...]
    replicas: ReplicaSummary | None

    @property
    def healthy(self) -> bool:
        """Whether every broker is registered, every agent ready, and every partition has its leader."""
        parts = [broker.registered for broker in self.brokers] + [agent.ready for agent in self.agents]
        return all(parts) and self.replicas is not None and self.replicas.without_leader == 0
