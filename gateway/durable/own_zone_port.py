"""The port for clients of the broker's own zone when it leads durable topics: their answers are held here.

The broker's listener for them is bound to loopback and advertises this port, so every client of the broker is led by an
agent: those of other zones by their gateways, and these by the broker's own.
"""

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gateway.broker_pipe import BrokerPipe, HoldingContext
from gateway.client_handler import ClientLimits
from gateway.client_port import ClientPort
from gateway.metrics import OWN_SIDE, GatewayMetrics
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES, RESPONSE_FACTOR, FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_channel import PlainFrames
from replication.wire.peer_connection import Address, connect_framed
from replication.wire.peer_listener import News

log = structlog.get_logger(__name__)


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


class OwnZonePort(ClientPort):
    """Gives each client of the broker's own zone its own connection to the broker, and holds answers between them."""

    def __init__(self, context: OwnZoneContext) -> None:
        super().__init__(context.client_tls, context.limits, context.metrics)
        self._context = context
        self._unreached = News()

    async def _serve(self, _number: int, accepted: socket.socket, address: str) -> None:
        context = self._context
        client = FramedConnection(DEFAULT_MAX_FRAME_BYTES, budget=context.holding.requests_budget.share_of(address))
        broker = FramedConnection(RESPONSE_FACTOR * DEFAULT_MAX_FRAME_BYTES, budget=context.holding.answers_budget)
        try:
            await self._clients.shake_hands(accepted, client)
            await connect_framed(context.broker, broker, timeout_s=context.limits.connect_timeout_s)
            self._unreached.is_over()
            labels = (OWN_SIDE, context.zone, str(context.broker_id))
            with context.metrics.connections.labels(*labels).track_inprogress():
                await BrokerPipe(PlainFrames(client), client, broker, holding=context.holding).run()
        except MalformedFrameError as error:
            self._clients.refuse("answer_unknown")
            log.warning("produce_answer_unknown", error=str(error), consequence="the client's connection is closed")
        except OSError as error:
            self._clients.refuse("broker_unreachable")
            told = str(error) or type(error).__name__
            if self._unreached.is_new(told):
                log.warning("own_zone_port_does_not_reach_broker", error=told)
        finally:
            client.close()
            broker.close()
