"""Tells gateways of other zones what became visible to consumers of this broker.

A gateway's agent asks by consumers' Fetch requests, one at a time, which wait at the broker; records come as links
where these pay, as for any consumer. The agent itself logs in at its broker, so clients' rights are not in question
here: the gateway has the broker judge those on each client's own connection. Only what is led here, of topics with
remote.wal.storage.enable, is told.
"""

from collections.abc import Awaitable, Callable

from gateway.client_side import ClientSide
from gateway.consume.consumer_answers import CONTROL_KINDS, ConsumerAnswers, ConsumerContext
from gateway.serve.fetch_frames import decode_request, encode_sessionless
from replication.leader.zones import Zones
from replication.wire.framed_connection import (
    DEFAULT_MAX_FRAME_BYTES,
    RESPONSE_FACTOR,
    FramedConnection,
    run_until_one_ends,
    until_idle,
)
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_protocol import Hello, MessageKind, PeerCapabilities


class TailHandler:
    """Serves connections that the peer listener got from gateways that ask what is visible."""

    def __init__(
        self,
        consumers: ConsumerContext,
        zones: Zones,
        dial: Callable[[FramedConnection], Awaitable[None]],
        idle_timeout_s: float,
    ) -> None:
        """`dial` connects to the local broker, and logs in; it raises PeerRefusedError, OSError."""
        self._consumers = consumers
        self._zones = zones
        self._dial = dial
        self._idle_timeout_s = idle_timeout_s

    async def serve(self, peer: FramedConnection, hello: Hello, capabilities: PeerCapabilities) -> None:
        """Serve one connection, after the hellos, until it ends.

        Raises MalformedFrameError, PeerRefusedError, OSError.
        """
        leader = self._consumers.leader
        broker = FramedConnection(RESPONSE_FACTOR * DEFAULT_MAX_FRAME_BYTES, budget=leader.budget)
        channel = leader.channel(peer, hello.broker_id)
        side = ClientSide(self._zones.of(hello.broker_id) or "", hello, capabilities)
        answers = ConsumerAnswers(self._consumers, side, peer, channel)

        async def relay_requests() -> None:
            while (message := await channel.receive()) is not None:
                kind, body = message
                if kind in CONTROL_KINDS:
                    answers.control(kind, body)
                    continue
                if kind is not MessageKind.KAFKA:
                    raise MalformedFrameError(0, f"{kind.name} from an agent that asks what is visible")
                request = decode_request(body)
                led = [one for one in request.partitions if leader.led.find(*one.log) is not None]
                question = encode_sessionless(request, led, request.max_wait_ms)
                answers.asked(question)
                broker.write_frame(question)
                await broker.drain()

        async def relay_answers() -> None:
            while (frame := await broker.read_frame()) is not None:
                await answers.answer(frame)
                await channel.drain()

        try:
            await self._dial(broker)
            idle = until_idle((peer, broker), self._idle_timeout_s)
            await run_until_one_ends(relay_requests(), relay_answers(), idle)
        finally:
            answers.close()
            broker.close()
