"""The limits of links and of catch-up reads, from the settings."""

from agent.setting_types import milliseconds
from agent.settings import AgentSettings
from kafka_log.server_properties import BrokerProperties
from plugin.prices import StorePrices
from replication.follower.read_quota import CatchUpReadLimits
from replication.leader.leader_context import LeaderLimits


def catch_up_read_limits(settings: AgentSettings) -> CatchUpReadLimits:
    """A quarter of the cache at most, and half of the time that a response has."""
    return CatchUpReadLimits(
        settings.catch_up.thread_pool_size,
        settings.catch_up.fetch_max_bytes_per_second,
        settings.hydration.cache_bytes // 4,
        settings.hydration.timeout_s / 2,
    )


def leader_limits(
    broker: BrokerProperties, settings: AgentSettings, break_even_bytes: int, store: StorePrices
) -> LeaderLimits:
    """Gaps are read along where that is cheaper than another request; stale is what followers gave up waiting for."""
    return LeaderLimits(
        settings.link.wait_max_s,
        break_even_bytes,
        gather_max_ms=milliseconds(settings.link.gather_max_s),
        range_gap_bytes=round(store.get_per_1000 / 1000 / max(store.retrieval_gb, 1e-9) * 1e9),
        stale_after_s=int(broker.raw.get("replica.socket.timeout.ms", "30000")) / 1000,
        allow_plain_connections=settings.access.plain_connections_enable,
    )
