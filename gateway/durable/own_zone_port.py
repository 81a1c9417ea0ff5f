"""Where clients of the broker's own zone connect when it leads durable topics: their answers are held here.

The broker's listener for them is bound to loopback and advertises this port, so every client of the broker is led by an
agent: those of other zones by their gateways, and these by the broker's own.
"""

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gateway.client_door import ClientLimits
from gateway.client_listeners import ClientListeners
from gateway.durable.answer_gate import HoldingContext
from gateway.durable.held_relay import relay_held
from gateway.metrics import OWN_SIDE, GatewayMetrics
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES, RESPONSE_FACTOR, FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_connection import Address, Listener, connect_framed

log = structlog.get_logger(__name__)

_PORT = 0


@dataclass(frozen=True, slots=True)
class OwnZoneContext:
    """What all of its connections share."""

    broker_id: int
    zone: str
    broker: Address
    """The broker's listener for them."""
    holding: HoldingContext
    client_tls: Callable[[], ssl.SSLContext | None]
    limits: ClientLimits
    metrics: GatewayMetrics


class OwnZonePort:
    """Listens from `start` until `stop`."""

    def __init__(self, context: OwnZoneContext) -> None:
        self._context = context
        self._clients = ClientListeners(self._serve, context.client_tls, context.limits, context.metrics)

    async def start(self, listener: Listener) -> None:
        """Raises OSError naming the address or file, ssl.SSLError."""
        await self._clients.start({_PORT: listener})

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self._clients.addresses[_PORT]

    async def _serve(self, _number: int, accepted: socket.socket, _address: str) -> None:
        context, holding = self._context, self._context.holding
        client = FramedConnection(DEFAULT_MAX_FRAME_BYTES, budget=holding.requests_budget)
        broker = FramedConnection(RESPONSE_FACTOR * DEFAULT_MAX_FRAME_BYTES, budget=holding.answers_budget)
        try:
            await self._clients.shake_hands(accepted, client)
            await connect_framed(context.broker, broker, timeout_s=context.limits.connect_timeout_s)
            labels = (OWN_SIDE, context.zone, str(context.broker_id))
            with context.metrics.connections.labels(*labels).track_inprogress():
                await relay_held(holding, client, broker, lambda: None)
        except MalformedFrameError as error:
            self._clients.refuse("answer_unknown")
            log.warning("produce_answer_unknown", error=str(error), consequence="the client's connection is closed")
        except OSError as error:
            self._clients.refuse("broker_unreachable")
            log.warning("own_zone_port_does_not_reach_broker", error=str(error) or type(error).__name__)
        finally:
            client.close()
            broker.close()

    async def stop(self) -> None:
        """Take no more clients, and end those that there are."""
        await self._clients.stop()
