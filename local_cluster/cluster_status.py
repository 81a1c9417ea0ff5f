"""The status that `cluster status` shows."""

from dataclasses import dataclass

from local_cluster.cluster import LocalCluster, agent_is_ready
from local_cluster.cluster_admin import ReplicaSummary


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker's status; `pid` is None if the process does not run, `registered` means that clients are sent to it."""

    broker_id: int
    pid: int | None
    registered: bool
    client_listener: str
    replication_listener: str


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """The status of the agent beside a broker; `ready` is the answer of its /readyz."""

    broker_id: int
    pid: int | None
    ready: bool
    peer_listener: str
    http_listener: str


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The cluster's status; `replicas` is None if no broker answers."""

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


def status_of(cluster: LocalCluster) -> ClusterStatus:
    """Return what runs, where, and how many replicas are behind."""
    registered: frozenset[int] = frozenset()
    if any(cluster.broker(broker_id).is_alive() for broker_id in cluster.broker_ids):
        registered = cluster.admin.registered_brokers(5.0)
    layout = cluster.layout
    brokers = tuple(
        BrokerStatus(
            broker_id,
            cluster.broker(broker_id).pid,
            broker_id in registered,
            layout.client_address(broker_id),
            f"127.0.0.1:{layout.replica_port(broker_id)}",
        )
        for broker_id in cluster.broker_ids
    )
    agents = tuple(
        AgentStatus(
            broker_id,
            cluster.agent(broker_id).pid,
            agent_is_ready(layout, broker_id),
            layout.peer_address(broker_id),
            layout.agent_http_address(broker_id),
        )
        for broker_id in (cluster.broker_ids if cluster.layout.has_agents else ())
    )
    summary = cluster.admin.replica_summary() if registered else None
    return ClusterStatus(str(layout.directory), layout.cluster_id, layout.bootstrap_servers, brokers, agents, summary)
