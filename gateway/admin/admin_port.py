"""The port for admin tools, which then see our topic settings beside Kafka's: each frame passes this agent.

Tools ask any broker that Metadata names. So every agent has such a port for its own broker, and the broker has a
listener that advertises it: a tool that uses one of them finds the ports of all, and nothing must be rewritten. Frames
are read in the pool, because reading a description of many topics takes long, and are passed on in their order.
"""

import asyncio
import ssl
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import structlog

from gateway.admin.admin_frames import is_read
from gateway.admin.topic_requests import PendingRequest, TopicSettingsStore, look_at
from gateway.client_door import ClientLimits
from gateway.client_port import FramedPort
from gateway.metrics import GatewayMetrics
from gateway.produce.produce_frame import PRODUCE_API_KEY
from kafka_log.crc32c import Buffer
from replication.wire.framed_connection import FramedConnection, run_until_one_ends
from replication.wire.kafka_frame import FrameCursor, MalformedFrameError, parse_request_header
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_connection import Address

log = structlog.get_logger(__name__)

_WITHOUT_OURS = {"not_read", "not_understood", "too_large"}


@dataclass(frozen=True, slots=True)
class AdminContext:
    """Shared state of all its connections."""

    broker: Address
    """The broker's listener for admin tools."""
    settings: TopicSettingsStore
    pool: Executor
    """A pool of one thread, so that reading and then writing settings is never interleaved."""
    client_tls: Callable[[], ssl.SSLContext | None]
    limits: ClientLimits
    metrics: GatewayMetrics
    requests_budget: MemoryBudget
    answers_budget: MemoryBudget
    takes_records: bool = True
    """Whether Produce is allowed. If not, a producer's connection ends, because its answers would not be held."""


class AdminPort(FramedPort):
    """Listens for admin tools from `start` until `stop`."""

    answer_unknown = "admin_answer_unknown"
    broker_unreachable = "admin_port_does_not_reach_broker"

    def __init__(self, context: AdminContext) -> None:
        super().__init__(context)
        self._context = context

    async def _relay(self, client: FramedConnection, broker: FramedConnection) -> None:
        await AdminRelay(self._context, client, broker).run()

    async def stop(self) -> None:
        """Take no more clients, and end those that there are."""
        await super().stop()
        self._context.pool.shutdown(wait=False, cancel_futures=True)


class AdminRelay:
    """One connection of a tool, and the matching connection to the broker."""

    def __init__(self, context: AdminContext, client: FramedConnection, broker: FramedConnection) -> None:
        self._context = context
        self._client = client
        self._broker = broker
        self._pending: dict[int, PendingRequest] = {}
        """Pending requests by correlation id."""

    async def run(self) -> None:
        """Relay until either side ends.

        Raises MalformedFrameError when an answer that must be merged is not understood.
        """
        await run_until_one_ends(self._relay_requests(), self._relay_answers())

    async def _relay_requests(self) -> None:
        while (frame := await self._client.read_frame()) is not None:
            self._broker.write_frame(await self._looked_at(frame))
            await self._broker.drain()

    async def _looked_at(self, frame: Buffer) -> Buffer:
        """Return the request as it is passed on. The broker decides about requests that are not understood."""
        try:
            header = parse_request_header(frame)
            if header.api_key == PRODUCE_API_KEY and not self._context.takes_records:
                self._count("produce_refused")
                raise ConnectionAbortedError("a Produce request at the port for admin tools")
            if not is_read(header, len(frame)) or header.correlation_id in self._pending:
                return frame
            loop = asyncio.get_running_loop()
            edited, pending = await loop.run_in_executor(
                self._context.pool, look_at, header, frame, self._context.settings
            )
        except MalformedFrameError as error:
            self._count("not_understood")
            log.warning("admin_request_not_understood", error=str(error), consequence="it goes to the broker as it is")
            return frame
        if pending is not None:
            self._pending[header.correlation_id] = pending
        return edited

    async def _relay_answers(self) -> None:
        while (frame := await self._broker.read_frame()) is not None:
            self._client.write_frame(await self._settled(frame))
            await self._client.drain()

    async def _settled(self, frame: Buffer) -> Buffer:
        pending = self._pending.pop(FrameCursor(frame).int32(), None) if self._pending else None
        if pending is None:
            return frame
        loop = asyncio.get_running_loop()
        answer, outcome = await loop.run_in_executor(self._context.pool, pending.settle, frame, self._context.settings)
        self._count(outcome)
        if outcome in _WITHOUT_OURS:
            log.warning("topic_settings_not_told", reason=outcome, consequence="the tool is told what the broker knows")
        elif outcome == "not_written":
            log.warning("topic_settings_not_written", consequence="the tool is told so")
        return answer

    def _count(self, outcome: str) -> None:
        self._context.metrics.admin_requests.labels(outcome).inc()
