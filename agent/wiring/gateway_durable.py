"""Puts durable acknowledgement together from the settings: holding answers, and asking and answering about markers."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agent.configuration import Configuration
from agent.settings.memory_shares import HELD_ANSWERS_BYTES, HELD_FRAMES_BYTES
from agent.wiring.peering import peer_tls
from metadata_topic.topic.log_ends import LogEnds
from replication.leader.leader_context import LeaderContext
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_connection import Address
from replication.wire.peer_protocol import PeerCapabilities

if TYPE_CHECKING:
    from gateway.durable.answer_gate import HoldingContext
    from gateway.durable.log_asking import LogAsking
    from gateway.durable.log_door import LogDoor
    from gateway.durable.marker_waits import MarkerWaits

_LOOKS_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class DurableHolding:
    """The parts of durable acknowledgement."""

    holding: "HoldingContext"
    door: "LogDoor"
    asking: "LogAsking"
    waits: "MarkerWaits"
    threads: ThreadPoolExecutor

    @property
    def degraded(self) -> list[str]:
        """What does not work for clients."""
        told = []
        if self.holding.metrics.are_refused_late:
            told.append("producers are told to try again: what they sent was not stored or replicated in time")
        if self.waits.silent:
            brokers = ", ".join(map(str, sorted(self.waits.silent)))
            told.append(f"transactions' markers at brokers {brokers} are not waited for: agents there hold nothing")
        return told

    async def stop(self) -> None:
        """Stop it. Clients' connections are closed before."""
        await self.waits.close()
        await self.asking.close()
        self.threads.shutdown(wait=False, cancel_futures=True)


def build_durable(
    configuration: Configuration, leader: LeaderContext, peers: Mapping[int, Address]
) -> DurableHolding | None:
    """Build it; None if no answers are held. `leader` is that of replication, `peers` are the known agents."""
    if not configuration.settings.gateway.durable_listener:
        return None
    from gateway.durable.answer_gate import HoldingContext
    from gateway.durable.durable_logs import DurableLogs
    from gateway.durable.durable_metrics import DurableMetrics
    from gateway.durable.log_asking import AskingContext, LogAsking
    from gateway.durable.log_door import LogDoor
    from gateway.durable.marker_waits import MarkerWaits
    from gateway.durable.pipelined_acks import ReplicationLimits

    broker_id, tls = configuration.broker.node_id, peer_tls(configuration.settings.tls)
    logs = DurableLogs()
    metrics = DurableMetrics(leader.metrics.registry, logs)
    hello = replace(leader.hello, capabilities=PeerCapabilities.STORED_LOGS)
    asking = LogAsking(AskingContext(hello, peers, tls.client_context if tls else lambda: None))
    threads = ThreadPoolExecutor(_LOOKS_AT_ONCE, "log-ends")
    ends = LogEnds(configuration.client, f"remote-wal-agent-{broker_id}-log-ends")
    waits = MarkerWaits(broker_id, logs, ends, asking, threads, metrics.markers_unasked)
    passing = MemoryBudget(HELD_FRAMES_BYTES), MemoryBudget(HELD_FRAMES_BYTES)
    door = LogDoor(logs, leader.limits.idle_timeout_s)
    replication = None
    if configuration.settings.gateway.acks_pipelined_enable:
        replication = ReplicationLimits(leader.follower_offsets, metrics.pipelined)
    answers_budget = MemoryBudget(HELD_ANSWERS_BYTES)
    holding = HoldingContext(logs, waits, metrics, *passing, answers_budget, replication=replication)
    return DurableHolding(holding, door, asking, waits, threads)
