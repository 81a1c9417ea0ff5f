"""Carries out what `FetchServing` decides for one client's connection.

A broker answers one request of a connection at a time, and so does this: a Fetch is decided once all before it are
answered, and nothing behind it is read until it is answered or relayed.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.request_order import RequestOrder
from gateway.serve.fetch_frames import api_key_of
from gateway.serve.serve_metrics import ServeMetrics
from gateway.serve.serving import FetchServing, Relay, Serve, ServeContext, ServeOutcome, ServePermission, Wait
from gateway.serve.tails import Tails
from kafka_log.crc32c import Buffer
from replication.wire.fetch_frame import FETCH_API_KEY
from replication.wire.framed_connection import FramedConnection


@dataclass(frozen=True, slots=True)
class ServingParts:
    """Shared state of all clients of one gateway."""

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
    """One client's connection. It takes the broker's answers in the client's place."""

    def __init__(
        self,
        serving: FetchServing,
        client: FramedConnection,
        changed: Callable[[float], Awaitable[None]],
        metrics: ServeMetrics,
    ) -> None:
        """`changed` waits until anything was told, or until this time."""
        self._serving = serving
        self._client = client
        self._changed = changed
        self._metrics = metrics
        self._order: RequestOrder[Relay | None] = RequestOrder()
        """What the broker has to answer; None: its answer passes as it is."""
        self._all_answered = asyncio.Event()

    async def came(self, frame: Buffer) -> Buffer | None:
        """Return what the broker gets for a client's request; None: it was answered here.

        Raises MalformedFrameError.
        """
        loop = asyncio.get_running_loop()
        turn = self._serving.asked(frame)
        if turn is None:
            if api_key_of(frame) == FETCH_API_KEY:
                self._metrics.answered(ServeOutcome.UNCHANGED)
            self._order.asked(frame, None)
            return frame
        while len(self._order):
            self._all_answered.clear()
            await self._all_answered.wait()
        came_s = loop.time()
        while isinstance(step := self._serving.decide(turn, came_s, loop.time()), Wait):
            await self._changed(step.until_s)
        if isinstance(step, Serve):
            self._metrics.answered(ServeOutcome.SERVED)
            self._client.write_frame(*step.buffers)
            await self._client.drain()
            return None
        self._metrics.answered(step.way)
        self._order.asked(step.frame, step)
        return step.frame

    # FrameSink.

    def write_frame(self, *buffers: Buffer) -> None:
        """Give the client the broker's next answer. Raises ConnectionError, MalformedFrameError."""
        relayed = self._order.answered(buffers[0])
        if not len(self._order):
            self._all_answered.set()
        if relayed is not None:
            frame = buffers[0] if len(buffers) == 1 else b"".join(buffers)
            buffers = tuple(self._serving.answered(relayed, frame, asyncio.get_running_loop().time()))
        self._client.write_frame(*buffers)

    async def drain(self) -> None:
        """Wait until the client keeps up. Raises ConnectionError."""
        await self._client.drain()
