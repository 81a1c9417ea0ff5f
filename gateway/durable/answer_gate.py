"""Holds a broker's answers before they go on to a client: `HeldAnswers` decides, this carries it out.

A task reads the broker's answers, so that a held one does not stop the broker from going on. When the broker's
connection ends, held answers are dropped: nobody can say any more whether their records are in the log.
"""

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass

import structlog

from gateway.deadline_timer import DeadlineTimer
from gateway.durable.durable_logs import DurableLogs
from gateway.durable.durable_metrics import DurableMetrics
from gateway.durable.held_answers import HeldAnswers, ProduceRefusedError
from gateway.durable.pipelined_acks import ReplicationLimits
from kafka_log.crc32c import Buffer
from replication.wire.framed_connection import FramedConnection
from replication.wire.memory_budget import MemoryBudget

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HoldingContext:
    """Shared state of all connections of one agent."""

    logs: DurableLogs
    metrics: DurableMetrics
    requests_budget: MemoryBudget
    """For clients' frames."""
    answers_budget: MemoryBudget
    """For brokers' answers as they pass."""
    held_budget: MemoryBudget
    """For held answers. It is separate, because a large answer that waits for memory would wait for them in vain."""
    replication: ReplicationLimits | None = None
    """None: acks=all goes on unchanged."""


class AnswerGate:
    """Holds the answers of one connection to the broker. Create it in the event loop; `close` it."""

    def __init__(self, context: HoldingContext, broker: FramedConnection) -> None:
        self._context = context
        self._broker = broker
        self._clock = asyncio.get_running_loop().time
        self._core = HeldAnswers(context.logs, self._wake, context.metrics, context.replication)
        self._in_turn: deque[Buffer] = deque()
        """The client's frames that wait for held answers before they go to the broker."""
        self._changed, self._has_room = asyncio.Event(), asyncio.Event()
        self._timer = DeadlineTimer(self._wake)
        self._counted_bytes = 0
        self._pump = asyncio.get_running_loop().create_task(self._take_in())
        self._pump.add_done_callback(self._ended)

    def forward(self, buffers: list[Buffer]) -> None:
        """Send the broker one frame made of these buffers, in its turn.

        Raises ProduceRefusedError if the broker must not get it; then its connection ends. Raises ConnectionError.
        """
        if not self._core.may_hold and not self._in_turn:
            self._core.passed(buffers[0])
            self._broker.write_frame(*buffers)
            return
        self._in_turn.append(buffers[0] if len(buffers) == 1 else b"".join(buffers))
        self._forward_in_turn()

    def _forward_in_turn(self) -> None:
        try:
            while self._in_turn and (frames := self._core.asked(self._in_turn[0], self._clock())) is not None:
                self._in_turn.popleft()
                for frame in frames:
                    self._broker.write_frame(frame)
        except ProduceRefusedError as error:
            self._in_turn.clear()
            self._context.metrics.refused()
            log.warning("produce_refused", error=str(error), consequence="the client's connection is closed")
            self._broker.abort()
            raise

    async def wait_for_room(self, client: FramedConnection) -> None:
        """Wait until the broker may be sent more; `client`, whose frames they are, is stalled meanwhile."""
        if self._has_room_now:
            return
        with client.stalled():
            while not self._has_room_now:
                self._has_room.clear()
                await self._has_room.wait()

    @property
    def _has_room_now(self) -> bool:
        return self._pump.done() or not (self._in_turn or self._core.is_busy or self._is_spent)

    async def next_answer(self) -> Buffer | None:
        """Return the next answer for the client, once it may go; None: the broker's connection ended.

        Raises MalformedFrameError for an answer that is not understood.
        """
        while True:
            self._changed.clear()
            self._ask_broker()
            frame = self._core.ready(self._clock())
            self._count()
            if self._in_turn:
                self._forward_in_turn()
                self._has_room.set()
            if frame is not None:
                self._has_room.set()
                return frame
            if self._pump.done():
                self._pump.result()
                return None
            self._timer.set(self._core.deadline_s)
            await self._changed.wait()

    def _ask_broker(self) -> None:
        with contextlib.suppress(ConnectionError):  # the pump has ended then
            for frame in self._core.to_broker(self._clock()):
                self._broker.write_frame(frame)

    async def _take_in(self) -> None:
        while (frame := await self._broker.read_frame()) is not None:
            self._core.answered(frame, self._clock())
            self._has_room.set()
            self._wake()
            while self._is_full:
                self._has_room.clear()
                await self._has_room.wait()

    @property
    def _is_full(self) -> bool:
        """Whether to read no more of the broker's answers; False while a held answer waits for one of them."""
        return self._core.is_full or (self._is_spent and not self._core.is_asking)

    @property
    def _is_spent(self) -> bool:
        """Whether the budget for held answers is spent; False while this connection holds none: it may take one."""
        return self._context.held_budget.is_spent and self._core.held_bytes > 0

    def _ended(self, _pump: "asyncio.Task[None]") -> None:
        self._has_room.set()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()

    def _count(self) -> None:
        """Count held bytes against the budget."""
        held, budget = self._core.held_bytes, self._context.held_budget
        if held > self._counted_bytes:
            budget.take(held - self._counted_bytes)
        else:
            budget.give_back(self._counted_bytes - held)
        self._counted_bytes = held

    def close(self) -> None:
        """Stop reading the broker and drop what is held: the connection ended."""
        self._timer.set(None)
        self._pump.cancel()
        self._core.close()
        self._count()
