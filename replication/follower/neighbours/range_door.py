"""Gives other agents of the own zone ranges of objects: what is there, else what one read for all of them brings.

Only combined segments are given, by ids from which this agent builds the keys in its own prefix. Who may ask is for the
peer listener to say, and stands in the own zone: to another one the bytes would cost what they are to save.
"""

import asyncio
from collections.abc import Callable

import structlog

from plugin.errors import defect_site
from replication.follower.follower_context import FollowerContext
from replication.follower.hydration import HydrationError
from replication.wire.framed_connection import FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.memory_budget import MemoryBudget
from replication.wire.memory_reservation import reserve
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_protocol import Hello, MessageKind, PeerRefusedError
from replication.wire.relay_tasks import run_until_one_ends, until_idle
from replication.wire.shared_reads import RangeRefusal, RangeRequest, encode_answer, encode_refusal

log = structlog.get_logger(__name__)

MAX_ASKED = 64
"""Ranges that one neighbour may ask for at a time."""


class RangeDoor:
    """What the peer listener gives connections for ranges to."""

    def __init__(
        self, context: FollowerContext, budget: MemoryBudget, is_near: Callable[[int], bool], idle_timeout_s: float
    ) -> None:
        """`budget` is for what goes to other agents; `is_near` says whether a broker stands in the own zone."""
        self._context = context
        self._budget = budget
        self._is_near = is_near
        self._idle_timeout_s = idle_timeout_s

    async def serve(self, peer: FramedConnection, asker: Hello) -> None:
        """One connection, after the hellos, until it ends. Raises PeerRefusedError, MalformedFrameError."""
        if not self._is_near(asker.broker_id):
            raise PeerRefusedError(f"broker {asker.broker_id}'s agent asks for ranges, and is not known to be near")
        giving = _Giving(self._context, self._budget, peer)
        try:
            await run_until_one_ends(giving.run(), until_idle((peer,), self._idle_timeout_s))
        finally:
            await giving.close()


class _Giving:
    """To one asker."""

    def __init__(self, context: FollowerContext, budget: MemoryBudget, peer: FramedConnection) -> None:
        self._context = context
        self._budget = budget
        self._peer = peer
        self._channel = PeerChannel(peer)
        self._sending = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until the asker ends the connection."""
        while (message := await self._channel.receive()) is not None:
            kind, body = message
            if kind is not MessageKind.RANGE_REQUEST:
                raise MalformedFrameError(0, f"{kind.name} from an agent that asks for ranges")
            request = RangeRequest.decode(body)
            if len(self._tasks) >= MAX_ASKED:
                self._refuse(request.number, RangeRefusal.BUSY)
                await self._peer.drain()
                continue
            task = asyncio.get_running_loop().create_task(self._answer(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """What is asked for is not given any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, request: RangeRequest) -> None:
        try:
            await self._give(request)
        except ConnectionError:
            return  # it asks another one
        except HydrationError as error:
            why = RangeRefusal.BUSY if error.reason == "over_budget" else RangeRefusal.NOT_READ
            self._refuse(request.number, why)
        except Exception as error:
            self._context.metrics.fault("range_defect")
            log.error("range_defect", defect=defect_site(error))
            self._refuse(request.number, RangeRefusal.NOT_READ)

    async def _give(self, request: RangeRequest) -> None:
        """In whatever order reads end, one answer at a time, as far as the asker takes them."""
        hydration, limits = self._context.hydration, self._context.limits
        try:
            async with asyncio.timeout(limits.hydration_timeout_s):
                data = await hydration.given(
                    request.segment_id, request.start, request.end, request.read, request.custom_metadata
                )
                await reserve(self._budget, len(data))
        except TimeoutError as error:
            raise HydrationError("timeout", "the store did not answer in time") from error
        try:
            async with self._sending:
                self._channel.send(MessageKind.RANGE, encode_answer(request.number, data), data)
                await self._peer.drain()
        finally:
            self._budget.give_back(len(data))
        self._context.metrics.shared_reads.gave("given", len(data))

    def _refuse(self, number: int, why: RangeRefusal) -> None:
        self._context.metrics.shared_reads.gave(why.name.lower())
        if self._peer.is_writable:  # else it gives up by itself
            self._channel.send(MessageKind.RANGE_REFUSED, encode_refusal(number, why))
