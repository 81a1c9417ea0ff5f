"""Tells gateways of other zones what became visible to consumers of this broker.

A gateway's agent asks by consumers' Fetch requests, one at a time, which wait at the broker; records come as links
where these pay, as for any consumer. The agent itself logs in at its broker, so clients' rights are not in question
here: the gateway has the broker judge those on each client's own connection. Only what is led here, of topics with
remote.wal.storage.enable, is told.
"""

from collections.abc import Awaitable, Callable

from gateway.broker_pipe import BrokerPipe, ConsumerContext
from gateway.client_protocol import ClientSide
from gateway.serve.fetch_frames import decode_request, encode_sessionless
from kafka_log.crc32c import Buffer
from replication.wire.framed_connection import (
    DEFAULT_MAX_FRAME_BYTES,
    RESPONSE_FACTOR,
    FramedConnection,
    until_idle,
)
from replication.wire.peer_protocol import Hello, PeerCapabilities


class TailHandler:
    """Reports to gateways of other zones which records of this broker are visible to consumers."""

    def __init__(self, consumers: ConsumerContext, dial: Callable[[FramedConnection], Awaitable[None]]) -> None:
        """`dial` connects to the local broker, and logs in; it raises PeerRefusedError, OSError."""
        self._consumers, self._dial = consumers, dial

    async def serve(self, peer: FramedConnection, hello: Hello, capabilities: PeerCapabilities) -> None:
        """Serve one connection, after the hellos, until it ends.

        Raises MalformedFrameError, PeerRefusedError, OSError.
        """
        leader = self._consumers.leader
        broker = FramedConnection(RESPONSE_FACTOR * DEFAULT_MAX_FRAME_BYTES, budget=leader.budget)
        channel = leader.channel(peer, hello.broker_id)
        side = ClientSide(leader.zones.of(hello.broker_id) or "", hello, capabilities)

        def narrow(frame: Buffer) -> Buffer:
            """Return the request without partitions that are not led here."""
            request = decode_request(frame)
            led = [one for one in request.partitions if leader.led.find(*one.log) is not None]
            return encode_sessionless(request, led, request.max_wait_ms)

        try:
            await self._dial(broker)
            pipe = BrokerPipe(channel, broker, links=(self._consumers, side), edit=narrow)
            await pipe.run(until_idle((peer, broker), leader.limits.idle_timeout_s))
        finally:
            broker.close()
