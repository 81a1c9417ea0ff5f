"""The port for clients of the broker's own zone when it leads durable topics: their answers are held here.

The broker's listener for them is bound to loopback and advertises this port, so every client of the broker is led by an
agent: those of other zones by their gateways, and these by the broker's own.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass

from gateway.client_door import ClientLimits
from gateway.client_port import FramedPort
from gateway.durable.answer_gate import HoldingContext
from gateway.durable.held_relay import relay_held
from gateway.metrics import OWN_SIDE, GatewayMetrics
from replication.wire.framed_connection import FramedConnection
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_connection import Address


@dataclass(frozen=True, slots=True)
class OwnZoneContext:
    """Shared state of all its connections."""

    broker_id: int
    zone: str
    broker: Address
    """The broker's listener for them."""
    holding: HoldingContext
    client_tls: Callable[[], ssl.SSLContext | None]
    limits: ClientLimits
    metrics: GatewayMetrics

    @property
    def requests_budget(self) -> MemoryBudget:
        return self.holding.requests_budget

    @property
    def answers_budget(self) -> MemoryBudget:
        return self.holding.answers_budget


class OwnZonePort(FramedPort):
    """Listens for clients of the broker's own zone from `start` until `stop`."""

    answer_unknown = "produce_answer_unknown"
    broker_unreachable = "own_zone_port_does_not_reach_broker"

    def __init__(self, context: OwnZoneContext) -> None:
        super().__init__(context)
        self._context = context

    async def _relay(self, client: FramedConnection, broker: FramedConnection) -> None:
        context = self._context
        labels = (OWN_SIDE, context.zone, str(context.broker_id))
        with context.metrics.connections.labels(*labels).track_inprogress():
            await relay_held(context.holding, client, broker, lambda: None)
