"""Puts together what lets the gateway answer consumers itself: tails of brokers, the handler to this one,
the permission to serve."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace

from agent.configuration import Configuration
from agent.settings.bypass import client_login
from agent.settings.memory_shares import SERVED_BYTES
from gateway.consume.consumer_answers import ConsumerContext
from gateway.gateway_pipe import LinkReading
from gateway.metrics import ClientCount, GatewayMetrics
from gateway.serve.serve_metrics import ServeMetrics
from gateway.serve.serve_permission import ClusterAnswer, ClusterClearance
from gateway.serve.served_client import ServingParts
from gateway.serve.tail_handler import TailHandler
from gateway.serve.tails import TailContext, Tails
from kafka_cluster.answers import ClientQuota
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from kafka_log.topic_partition import TopicId
from replication.leader.leader_context import LeaderContext
from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_connection import Address, connect_framed
from replication.wire.peer_protocol import PeerCapabilities

CALLBACK_KEY = "client.quota.callback.class"
"""A broker with its own quotas, of which the cluster cannot be asked."""
_AUTHORISED_S = 60.0
"""How long the broker's answer to a consumer's Fetch says that it may read (guessed)."""
_ASK_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class GatewayServing:
    """The parts of serving. Use it in the event loop."""

    parts: ServingParts
    tails: Tails
    serve_permission: ClusterClearance
    handler: TailHandler

    def run(self) -> asyncio.Task[None]:
        """Begin to ask the cluster."""
        return asyncio.get_running_loop().create_task(self.serve_permission.run())


def build_serving(
    configuration: Configuration,
    leader: LeaderContext,
    consumers: ConsumerContext,
    links: LinkReading,
    peers: Mapping[int, Address],
    metrics: GatewayMetrics,
) -> GatewayServing:
    """Build it. `leader` is that of replication. Raises AgentSettingsError when a login is missing."""
    zone = metrics.traffic.zone
    hello = links.context.hello
    of_both = PeerCapabilities.ARCHIVE_LINKS | PeerCapabilities.LINK_DIGESTS | PeerCapabilities.PACKED
    visible = PeerCapabilities.VISIBLE | hello.capabilities & of_both
    reading = replace(links.context, hello=replace(hello, capabilities=visible))

    def crossed(broker_id: int) -> tuple[Callable[[int], object], Callable[[int], object]]:
        count = ClientCount(metrics, zone, broker_id)
        return count.given_crossed, count.sent_crossed

    tails = Tails(TailContext(reading, peers, links.defects, crossed, SERVED_BYTES))
    serve_permission = ClusterClearance(_asker(configuration), leader.clock)
    told = ServeMetrics(leader.metrics.registry)
    told.set_held(tails.held_bytes)
    parts = ServingParts(tails, serve_permission, told, _AUTHORISED_S)
    handler = TailHandler(consumers, leader.zones, _dialler(configuration, leader), leader.limits.idle_timeout_s)
    return GatewayServing(parts, tails, serve_permission, handler)


def _dialler(configuration: Configuration, leader: LeaderContext) -> Callable[[FramedConnection], Awaitable[None]]:
    """Return what connects to the local broker's inter-broker listener as the agent itself."""
    broker = configuration.broker
    logs_in = broker.security_protocols[broker.inter_broker_listener_name].startswith("SASL")
    login = client_login(configuration.client, "remote.wal.gateway.fetch.serve.enable") if logs_in else None

    async def dial(connection: FramedConnection) -> None:
        await connect_framed(leader.broker, connection, leader.broker_tls(), server_name=leader.broker_name)
        if login is not None:
            await login.log_in(connection)

    return dial


def _asker(configuration: Configuration) -> Callable[[Collection[TopicId]], ClusterAnswer]:
    broker = configuration.broker
    cluster = KafkaCluster(configuration.client, f"remote-wal-agent-{broker.node_id}-quotas", _ASK_TIMEOUT_S)
    any_client = [ClientQuota({}, frozenset({"consumer_byte_rate"}))] if CALLBACK_KEY in broker.raw else []

    def ask(topics: Collection[TopicId]) -> ClusterAnswer:
        quotas = [*any_client, *cluster.client_quotas()]
        described = cluster.topics_by_id(list(topics))
        names = {one.name: one.topic_id for one in described if not one.error_code and one.name}
        kept_whole = [
            names[name]
            for name, values in cluster.topic_configurations(names).each()
            if not isinstance(values, KafkaClusterError) and "compact" not in values.get("cleanup.policy", "compact")
        ]
        return ClusterAnswer(quotas, kept_whole)

    return ask
