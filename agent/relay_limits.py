"""The limits of links and of catch-up reads, from the settings."""

from agent.settings import AgentSettings
from kafka_log.server_properties import BrokerProperties
from plugin.prices import StorePrices
from replication.follower.catch_up_reads import CatchUpReadLimits
from replication.leader.leader_context import LeaderLimits


def catch_up_read_limits(settings: AgentSettings) -> CatchUpReadLimits:
    """A quarter of the cache at most, and half of the time that a response has."""
    return CatchUpReadLimits(
        settings.remote_wal_catch_up_thread_pool_size,
        settings.remote_wal_catch_up_fetch_max_bytes_per_second,
        settings.remote_wal_hydration_cache_bytes // 4,
        settings.remote_wal_hydration_timeout_ms / 1000 / 2,
    )


def leader_limits(
    broker: BrokerProperties, settings: AgentSettings, break_even_bytes: int, store: StorePrices
) -> LeaderLimits:
    """Gaps are read along where that is cheaper than another request; stale is what followers gave up waiting for."""
    return LeaderLimits(
        settings.remote_wal_link_wait_max_ms / 1000,
        break_even_bytes,
        gather_max_ms=settings.remote_wal_link_gather_max_ms,
        range_gap_bytes=round(store.get_per_1000 / 1000 / max(store.retrieval_gb, 1e-9) * 1e9),
        stale_after_s=int(broker.raw.get("replica.socket.timeout.ms", "30000")) / 1000,
        allow_plain_connections=settings.remote_wal_agent_plain_connections_enable,
    )
