"""Puts together what holds answers, from the settings."""

from typing import TYPE_CHECKING

from agent.configuration import Configuration
from agent.settings.memory_shares import HELD_ANSWERS_BYTES, HELD_FRAMES_BYTES
from replication.leader.leader_context import LeaderContext
from replication.wire.memory_budget import MemoryBudget

if TYPE_CHECKING:
    from gateway.broker_pipe import HoldingContext


def durable_degraded(holding: "HoldingContext") -> list[str]:
    """Return what does not work for clients whose answers are held."""
    if holding.metrics.are_refused_late:
        return ["producers are told to try again: what they sent was not stored or replicated in time"]
    return []


def build_durable(configuration: Configuration, leader: LeaderContext) -> "HoldingContext | None":
    """Build what connections share; None if no answers are held. `leader` is that of replication."""
    if not configuration.settings.gateway.durable_listener:
        return None
    from gateway.broker_pipe import HoldingContext
    from gateway.durable.durable_logs import DurableLogs
    from gateway.durable.durable_metrics import DurableMetrics
    from gateway.durable.pipelined_acks import ReplicationLimits

    logs = DurableLogs()
    metrics = DurableMetrics(leader.metrics.registry, logs)
    replication = None
    if configuration.settings.gateway.acks_pipelined_enable:
        replication = ReplicationLimits(leader.follower_offsets, metrics.pipelined)
    passing = MemoryBudget(HELD_FRAMES_BYTES), MemoryBudget(HELD_FRAMES_BYTES)
    return HoldingContext(logs, metrics, *passing, MemoryBudget(HELD_ANSWERS_BYTES), replication)
