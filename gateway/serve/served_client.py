"""Carries out what `FetchServing` decides for one client's connection: a stage of `GatewayPipe`.

A broker answers one request of a connection at a time, and so does this: a Fetch is decided once all before it are
answered, and nothing behind it is read until it is answered or relayed.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gateway.metrics import ServeMetrics
from gateway.serve.fetch_frames import api_key_of
from gateway.serve.serving import FetchServing, Relay, Serve, ServeContext, ServeOutcome, ServePermission, Wait
from gateway.serve.tails import Tails
from kafka_log.crc32c import Buffer
from replication.wire.fetch_frame import FETCH_API_KEY
from replication.wire.framed_connection import FramedConnection


@dataclass(frozen=True, slots=True)
class ServingParts:
    """What all clients of one gateway share for serving Fetch requests."""

    tails: Tails
    serve_permission: ServePermission
    metrics: ServeMetrics
    authorisation_s: float

    def client(self, broker_id: int, client: FramedConnection) -> "ServedClient":
        """Return a new `ServedClient` for a client of this broker."""
        tail = self.tails.of(broker_id)
        context = ServeContext(tail, self.serve_permission, self.authorisation_s, lambda: secrets.randbits(31) or 1)
        return ServedClient(FetchServing(context), client, tail.changed, self.metrics)


class ServedClient:
    """Serves the Fetch requests of one client's connection."""

    def __init__(
        self,
        serving: FetchServing,
        client: FramedConnection,
        changed: Callable[[float], Awaitable[None]],
        metrics: ServeMetrics,
    ) -> None:
        """`changed` waits until the broker's agent has reported something, or until a time."""
        self._serving = serving
        self._client = client
        self._changed = changed
        self._metrics = metrics

    async def came(
        self, frame: Buffer, all_answered: Callable[[], Awaitable[None]]
    ) -> tuple[Buffer, Relay | None] | None:
        """Return what to send to the broker for a client's request; None if the gateway has responded.

        With a frame comes a `Relay` if its response must go through `answered`. `all_answered` waits for the responses
        to all earlier requests.
        """
        loop = asyncio.get_running_loop()
        turn = self._serving.asked(frame)
        if turn is None:
            if api_key_of(frame) == FETCH_API_KEY:
                self._metrics.answered(ServeOutcome.UNCHANGED)
            return frame, None
        await all_answered()
        came_s = loop.time()
        while isinstance(step := self._serving.decide(turn, came_s, loop.time()), Wait):
            await self._changed(step.until_s)
        if isinstance(step, Serve):
            self._metrics.answered(ServeOutcome.SERVED)
            self._client.write_frame(*step.buffers)
            await self._client.drain()
            return None
        self._metrics.answered(step.way)
        return step.frame, step

    def answered(self, relayed: Relay, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        """Return the response to send to the client, given the broker's response to a relayed request."""
        frame = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        return self._serving.answered(relayed, frame, asyncio.get_running_loop().time())
