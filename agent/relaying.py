"""Relaying, put together from the settings: both proxies, and what they need to relay inline.

It stands on nothing that may fail beside it: the write path and object storage come late, and may go again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry

from agent.bypass import bypass
from agent.identity import AgentIdentity
from agent.memory_shares import frame_bytes
from agent.peering import broker_listener, own_hello, peer_addresses, peer_tls, replica_listeners
from agent.relay_limits import catch_up_read_limits, leader_limits
from agent.service_manager import ListeningSockets
from agent.settings import AgentSettings
from kafka_log.server_properties import BrokerProperties
from metadata_topic.topic.client_config import KafkaClientConfig
from plugin.guarded_storage import GuardedStorageManager
from plugin.prices import Prices
from plugin.request_ceiling import RequestCeiling
from replication.follower.catch_up_reads import CatchUpReads
from replication.follower.follower_proxy import FollowerContext, FollowerLimits, FollowerProxy
from replication.follower.hydration import HydrationCache, HydrationLimits
from replication.follower.tier_reader import ArchiveReads
from replication.leader.catch_up import CatchUp
from replication.leader.guarded_write_path import GuardedWritePath
from replication.leader.leader_context import LeaderContext
from replication.leader.leader_proxy import LeaderProxy
from replication.leader.read_ahead import CatchUpLimits
from replication.wire.memory_budget import MemoryBudget
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_protocol import Hello
from rlm.write_path.metrics import StageTimes


@dataclass(frozen=True, slots=True)
class Relaying:
    """What was made. Use it in the event loop."""

    broker: BrokerProperties
    settings: AgentSettings
    leader: LeaderProxy
    follower: FollowerProxy
    hydration: HydrationCache
    catch_up_reads: CatchUpReads
    storage: GuardedStorageManager
    write_path: GuardedWritePath
    stage_times: StageTimes
    metrics: ReplicationMetrics

    async def start(self, handed: ListeningSockets) -> None:
        """Listen for the local broker and for other agents, at sockets that were handed over where there are such.

        Raises OSError naming the address.
        """
        tls = peer_tls(self.settings)
        peer_listener = handed.take("peer", self.settings.peers.peer_listener)
        await self.leader.start(peer_listener, tls.server_context() if tls else None)
        replicas = replica_listeners(self.broker, self.settings).items()
        await self.follower.start({one: handed.take(f"replica-{one}", address) for one, address in replicas})

    async def stop(self) -> None:
        """Close all listeners and connections."""
        await self.leader.stop()
        await self.follower.stop()
        self.hydration.close()
        self.catch_up_reads.close()
        self.storage.close()


def make_relaying(
    broker: BrokerProperties,
    settings: AgentSettings,
    identity: AgentIdentity,
    client: KafkaClientConfig,
    prices: Prices,
    registry: CollectorRegistry,
    archive: Callable[[], ArchiveReads | None],
) -> Relaying:
    """`archive` gives the archive's store, as soon as it is there."""
    storage, write_path = GuardedStorageManager(*_ceilings(settings)), GuardedWritePath()
    stage_times, metrics = StageTimes(registry), ReplicationMetrics(registry)
    hello = own_hello(identity, settings)
    limits = HydrationLimits(settings.hydration.thread_pool_size, settings.hydration.cache_bytes)
    hydration = HydrationCache(storage, limits, stage_times, metrics, archive=archive)
    catch_up_reads = CatchUpReads(hydration, catch_up_read_limits(settings), metrics)
    leader = LeaderProxy(_leader_context(broker, settings, hello, prices, write_path, stage_times, metrics))
    tls = peer_tls(settings)
    follower_context = FollowerContext(
        hello,
        FollowerLimits(settings.hydration.timeout_s),
        hydration,
        stage_times,
        metrics,
        catch_up_reads,
        tls.client_context if tls else lambda: None,
        budget=_frame_budget("from_leaders", frame_bytes(settings).from_leaders, metrics),
    )
    follower = FollowerProxy(follower_context, peer_addresses(broker, settings), bypass(broker, settings, client))
    return Relaying(
        broker, settings, leader, follower, hydration, catch_up_reads, storage, write_path, stage_times, metrics
    )


def _ceilings(settings: AgentSettings) -> tuple[RequestCeiling, RequestCeiling]:
    return (
        RequestCeiling(
            "PUT", settings.alarms.store_puts_per_minute, "remote.wal.store.puts.per.minute", time.monotonic
        ),
        RequestCeiling(
            "GET", settings.alarms.store_gets_per_minute, "remote.wal.store.gets.per.minute", time.monotonic
        ),
    )


def _frame_budget(way: str, max_bytes: int, metrics: ReplicationMetrics) -> MemoryBudget:
    budget = MemoryBudget(max_bytes, lambda: metrics.fault("frames_over_budget"))
    metrics.frame_bytes.labels(way).set_function(lambda: budget.used)
    return budget


def _leader_context(
    broker: BrokerProperties,
    settings: AgentSettings,
    hello: Hello,
    prices: Prices,
    write_path: GuardedWritePath,
    stage_times: StageTimes,
    metrics: ReplicationMetrics,
) -> LeaderContext:
    store = prices.of_storage_manager(settings.storage.manager_class_name)
    break_even_bytes = prices.break_even_bytes(settings.link.remote_followers, store)
    limits = leader_limits(broker, settings, break_even_bytes, store)
    context = LeaderContext(hello, limits, broker_listener(broker), write_path, stage_times, metrics)
    ahead = CatchUpLimits(settings.catch_up.read_ahead_bytes)
    return replace(
        context,
        budget=_frame_budget("to_followers", frame_bytes(settings).to_followers, metrics),
        request_budget=_frame_budget("requests", frame_bytes(settings).requests, metrics),
        followers=frozenset(peer_addresses(broker, settings)),
        catch_up=CatchUp(context.index, write_path, ahead, metrics),
    )
