"""Configuration of a broker of the local cluster: server.properties and its JVM's hosts file.

The agent of a broker reads the same server.properties; Kafka ignores the keys that it does not know.

Brokers run on Kafka's defaults, except for what three of them on one machine need: addresses, directories, small heaps.
A test or a benchmark sets everything else itself.
"""

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import javaproperties

from local_cluster.layout import REPLICA_DOMAIN, ClusterLayout
from local_cluster.object_store.store_spec import LocalDirectoryStore, StoreSpec
from local_cluster.security.listeners import (
    InterBroker,
    agents_bypass,
    agents_tls,
    bypass_listener,
    write_certificates,
)
from local_cluster.zones import ZoneGateways, ZoneHosts, with_front, with_gateways

BACKEND_PREFIX = "rsm.wal.config."

_OPEN = ("remote.wal.agent.plaintext.enable", "remote.wal.agent.http.plaintext.accepted")
"""Keys that must be set before agents listen on other than loopback addresses without TLS."""
KAFKAS_REPLICAS = 3
"""The replicas of Kafka's own topics, by default."""
KAFKAS_IN_SYNC = 2
"""The replicas that must acknowledge, by Kafka's defaults for its own topics."""


@dataclass(frozen=True, slots=True)
class AgentsMode:
    """Settings for agents: every broker has one beside it."""

    store: StoreSpec = field(default_factory=LocalDirectoryStore)
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Keys of the agents, which override those of the layout."""
    bypass: bool = False
    """Whether the brokers have a second listener under TLS, through which agents bypass another agent that is dead."""
    tls: bool = False
    """Whether agents use TLS between each other."""
    program: str = "cli.start"
    """The module that is run as the agent; a benchmark's module wraps this one and observes it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the agents' processes, besides the store's."""
    gateways: ZoneGateways | None = None
    """The gateways through which clients reach brokers of other zones; they also give the brokers their zones."""
    front: bool = False
    """Whether each agent is in front of its broker for all clients, at the broker's address (without `gateways`)."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The configuration of a local cluster; its directory's data survive a change."""

    agents: AgentsMode | None = None
    """None: a stock cluster, for comparison."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Kafka's keys, for all brokers."""
    broker_overrides: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Kafka's keys by broker, which override `overrides`."""
    heap_mb: int = 512
    full_compiler: bool = False
    """Whether the brokers' JVMs use the full compiler, as on a machine of their own. A broker that lives for a minute
    or two, among others on few cores, is quicker without it: the full compiler would take most of its processor time.
    """
    hosts: ZoneHosts | None = None
    """A network namespace for each broker and its agent; None: all of them run on this host."""
    inter_broker: InterBroker | None = None
    """None: brokers and controllers use plaintext among each other, without a login."""
    tiered_storage: bool = False
    """Switch KIP-405 on, with LocalTieredStorage in a directory of the cluster and short intervals. A topic must ask
    for it."""

    @property
    def relays(self) -> bool:
        """Whether brokers replicate through agents: there are some, and not in shadow."""
        return self.agents is not None and self.agents.overrides.get("remote.wal.agent.mode") != "shadow"


def replica_host(broker_id: int) -> str:
    """Return the host name that the broker advertises to other brokers."""
    return f"replica-{broker_id}.{REPLICA_DOMAIN}"


def server_properties(layout: ClusterLayout, broker_id: int, settings: ClusterSettings) -> dict[str, str]:
    properties = {
        **_listener_properties(layout, broker_id, agents=settings.relays),
        "broker.rack": f"az{broker_id}",
        "log.dirs": str(layout.log_directory(broker_id)),
        # By default 128 MB of heap, which a small JVM does not have to spare.
        "log.cleaner.dedupe.buffer.size": "16777216",
    }
    if settings.inter_broker is not None:
        properties |= settings.inter_broker.properties(layout, broker_id)
    if layout.broker_count < KAFKAS_REPLICAS:
        properties |= _replicas_of_internal_topics(layout.broker_count)
    if settings.tiered_storage:
        properties |= _tiered_storage_properties(layout)
    if settings.agents is not None:
        properties |= _agent_properties(layout, broker_id, settings.agents)
        if settings.agents.bypass:
            added = bypass_listener(layout, broker_id)
            joined = {key: f"{properties[key]},{value}" if key in properties else value for key, value in added.items()}
            properties = {**agents_bypass(layout, broker_id), **properties, **joined}
        if settings.agents.gateways is not None:
            properties = with_gateways(properties, layout, broker_id, settings.agents.gateways)
        if settings.agents.front:
            properties = with_front(properties, layout, broker_id)
    return {**properties, **settings.overrides, **settings.broker_overrides.get(broker_id, {})}


def hosts_file(
    layout: ClusterLayout, broker_id: int, *, agents: bool, machine_names: Iterable[str] | None = None
) -> str:
    """Return the hosts file of the broker's JVM, which resolves no other names: the machine's own name is in it."""
    names = [socket.gethostname()] if machine_names is None else machine_names
    lines = ["127.0.0.1 localhost", *(f"127.0.0.1 {name}" for name in names if name and name != "localhost")]
    for other in layout.broker_ids:
        # A broker dials itself too, to verify and to end transactions that it coordinates.
        itself = _replication_host(layout, other, agents=agents)
        dialled = layout.agent_replica_host(broker_id) if agents and other != broker_id else itself
        lines.append(f"{dialled} {replica_host(other)}")
    return "\n".join(lines) + "\n"


def write_configuration(layout: ClusterLayout, settings: ClusterSettings) -> dict[int, list[str]]:
    """Write every broker's server.properties and hosts file again. Brokers read them at their next start.

    Keys that were changed by hand in server.properties since it was last written keep their values; returns these keys
    by broker.
    """
    kept: dict[int, list[str]] = {}
    for broker_id in layout.broker_ids:
        layout.broker_directory(broker_id).mkdir(parents=True, exist_ok=True)
        changed = _changed_by_hand(layout, broker_id)
        if changed:
            kept[broker_id] = sorted(changed)
        ours = server_properties(layout, broker_id, settings)
        theirs = {key: value for key, value in {**ours, **changed}.items() if value is not None}
        layout.generated_properties(broker_id).write_text(javaproperties.dumps(ours, timestamp=False))
        layout.server_properties(broker_id).write_text(javaproperties.dumps(theirs, timestamp=False))
        layout.hosts_file(broker_id).write_text(hosts_file(layout, broker_id, agents=settings.relays))
        if settings.agents is not None:
            layout.agent_directory(broker_id).mkdir(parents=True, exist_ok=True)
        if settings.inter_broker is not None and settings.inter_broker.has_tls:
            settings.inter_broker.write_certificate(layout, broker_id)
    if settings.agents is not None and (settings.agents.bypass or settings.agents.tls):
        write_certificates(layout)
    return kept


def _changed_by_hand(layout: ClusterLayout, broker_id: int) -> dict[str, str | None]:
    """Return the keys that somebody set since the file was written here; None: a key that was removed."""
    try:
        written = javaproperties.loads(layout.generated_properties(broker_id).read_bytes())
        found = layout.configured(broker_id)
    except FileNotFoundError:
        return {}
    return {key: found.get(key) for key in written.keys() | found.keys() if written.get(key) != found.get(key)}


def _replicas_of_internal_topics(brokers: int) -> dict[str, str]:
    """Return settings for few brokers: Kafka's own topics have three replicas by default, and need as many brokers."""
    replicas, in_sync = str(brokers), str(min(KAFKAS_IN_SYNC, brokers))
    return {
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "share.coordinator.state.topic.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.min.isr": in_sync,
    }


def _replication_host(layout: ClusterLayout, broker_id: int, *, agents: bool) -> str:
    """Return the address where other brokers' fetches arrive: from its own agent, or from the other hosts."""
    return "127.0.0.1" if agents else layout.host(broker_id)


def _listener_properties(layout: ClusterLayout, broker_id: int, *, agents: bool) -> dict[str, str]:
    client = f"CLIENT://{layout.client_address(broker_id)}"
    controller = f"CONTROLLER://{layout.controller_address(broker_id)}"
    replica_port = layout.replica_port(broker_id)
    voters = ",".join(f"{one}@{layout.controller_address(one)}" for one in layout.broker_ids)
    replication = f"REPLICATION://{_replication_host(layout, broker_id, agents=agents)}:{replica_port}"
    return {
        "process.roles": "broker,controller",
        "node.id": str(broker_id),
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "REPLICATION",
        "listeners": f"{client},{replication},{controller}",
        "advertised.listeners": f"{client},REPLICATION://{replica_host(broker_id)}:{replica_port}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,REPLICATION:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }


def _tiered_storage_properties(layout: ClusterLayout) -> dict[str, str]:
    """Return settings for KIP-405 with Kafka's own metadata manager, which uses the prefix `rlmm.config.`."""
    replicas = str(min(KAFKAS_REPLICAS, layout.broker_count))
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        # One directory for all brokers, as a bucket would be.
        "rsm.config.dir": str(layout.tiered_storage_directory),
        "remote.log.metadata.manager.listener.name": "CLIENT",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
        "rlmm.config.remote.log.metadata.topic.replication.factor": replicas,
        "rlmm.config.remote.log.metadata.initialization.retry.interval.ms": "300",
        "remote.log.manager.task.interval.ms": "500",
        "log.retention.check.interval.ms": "500",
        "log.initial.task.delay.ms": "500",
    }


def _agent_properties(layout: ClusterLayout, broker_id: int, agents: AgentsMode) -> dict[str, str]:
    own_first = [broker_id, *(other for other in layout.broker_ids if other != broker_id)]
    peers = ",".join(f"{other}@{layout.peer_address(other)}" for other in layout.broker_ids)
    properties = {
        "remote.log.wal.storage.system.enable": "true",
        "remote.log.wal.storage.manager.class.name": agents.store.class_name,
        "remote.wal.agent.peer.listener": layout.peer_address(broker_id),
        "remote.wal.agent.peers": peers,
        "remote.wal.agent.replica.listen.host": layout.agent_replica_host(broker_id),
        "remote.wal.agent.replica.port.base": str(layout.replica_port_base),
        "remote.wal.agent.http.listener": layout.agent_http_address(broker_id),
        "remote.wal.agent.bootstrap.servers": ",".join(map(layout.client_address, own_first)),
        "remote.wal.agent.state.directory": str(layout.agent_directory(broker_id)),
        # No process restarts an ended agent here, and a test that pauses an agent expects it to continue.
        "remote.wal.agent.watchdog.timeout.ms": "300000",
    }
    if agents.tls:
        properties |= agents_tls(layout, broker_id)
    if layout.network:  # of this machine's namespaces alone
        properties |= dict.fromkeys(_OPEN, "true")
    backend = agents.store.settings(layout.object_store_directory)
    properties |= {BACKEND_PREFIX + key: value for key, value in backend.items()}
    return {**properties, **agents.overrides}
