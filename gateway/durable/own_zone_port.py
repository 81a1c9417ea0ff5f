"""The port for clients of the broker's own zone when it leads durable topics: their answers are held here.

The broker's listener for them is bound to loopback and advertises this port, so every client of the broker is led by an
agent: those of other zones by their gateways, and these by the broker's own.
"""

import socket
import ssl
from collections.abc import Callable

import structlog

from gateway.broker_pipe import BrokerPipe, HoldingContext
from gateway.client_handler import ClientLimits
from gateway.client_port import ClientPort
from gateway.metrics import OWN_SIDE, GatewayMetrics
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES, RESPONSE_FACTOR, FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_channel import PlainFrames
from replication.wire.peer_connection import Address, connect_framed
from replication.wire.peer_listener import News, holder_at

log = structlog.get_logger(__name__)


class OwnZonePort(ClientPort):
    """Gives each client of the broker's own zone a connection to the broker, and holds responses on it."""

    def __init__(
        self,
        broker_id: int,
        zone: str,
        broker: Address,
        holding: HoldingContext,
        client_tls: Callable[[], ssl.SSLContext | None],
        limits: ClientLimits,
        metrics: GatewayMetrics,
    ) -> None:
        """`broker` is the broker's listener for clients of its own zone."""
        super().__init__(client_tls, limits, metrics)
        self._broker = broker
        self._holding = holding
        self._connections = metrics.connections.labels(OWN_SIDE, zone, str(broker_id))
        self._unreached = News()

    async def _serve(self, _number: int, accepted: socket.socket, address: str) -> None:
        holding = self._holding
        client = FramedConnection(DEFAULT_MAX_FRAME_BYTES, budget=holding.requests_budget.share_of(holder_at(address)))
        broker = FramedConnection(RESPONSE_FACTOR * DEFAULT_MAX_FRAME_BYTES, budget=holding.responses_budget)
        try:
            await self._clients.shake_hands(accepted, client)
            await connect_framed(self._broker, broker, timeout_s=self._timeout_s)
            self._unreached.is_over()
            with self._connections.track_inprogress():
                await BrokerPipe(PlainFrames(client), broker, holding=holding).run()
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
