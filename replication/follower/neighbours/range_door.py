"""Gives ranges of objects to other agents of the own zone: cached ones, and ones read for all of them.

Only combined segments are given; their ids are turned into keys under this agent's own prefix. The peer listener
decides who may ask. The asker must be in the own zone, because bytes to another zone would cost what this is meant to
save.
"""

import asyncio
from collections.abc import Callable

import structlog

from plugin.errors import defect_site
from replication.follower.follower_context import FollowerContext
from replication.follower.hydration import HydrationError
from replication.wire.framed_connection import FramedConnection, reserve, run_until_one_ends, until_idle
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_protocol import Hello, MessageKind, PeerRefusedError
from replication.wire.shared_reads import RangeRefusal, RangeRequest, encode_answer, encode_refusal

log = structlog.get_logger(__name__)

MAX_ASKED = 64
"""The most ranges that one neighbour may request at a time."""


class RangeDoor:
    """Serves the connections that the peer listener got for ranges."""

    def __init__(
        self, context: FollowerContext, budget: MemoryBudget, is_near: Callable[[int], bool], idle_timeout_s: float
    ) -> None:
        """`budget` limits what goes to other agents; `is_near` says whether a broker is in the own zone."""
        self._context = context
        self._budget = budget
        self._is_near = is_near
        self._idle_timeout_s = idle_timeout_s

    async def serve(self, peer: FramedConnection, asker: Hello) -> None:
        """Serve one connection, after the hellos, until it ends. Raises PeerRefusedError, MalformedFrameError."""
        if not self._is_near(asker.broker_id):
            raise PeerRefusedError(f"broker {asker.broker_id}'s agent asks for ranges, and is not known to be near")
        giving = _Giving(self._context, self._budget, peer)
        try:
            await run_until_one_ends(giving.run(), until_idle((peer,), self._idle_timeout_s))
        finally:
            await giving.close()


class _Giving:
    """Gives ranges to one asker."""

    def __init__(self, context: FollowerContext, budget: MemoryBudget, peer: FramedConnection) -> None:
        self._context = context
        self._budget = budget
        self._peer = peer
        self._channel = PeerChannel(peer)
        self._sending = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Answer requests until the asker ends the connection."""
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
        """Stop giving what is still requested."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, request: RangeRequest) -> None:
        try:
            await self._give(request)
        except ConnectionError:
            return  # our own agent would ask another one
        except HydrationError as error:
            why = RangeRefusal.BUSY if error.reason == "over_budget" else RangeRefusal.NOT_READ
            self._refuse(request.number, why)
        except Exception as error:
            self._context.metrics.fault("range_defect")
            log.error("range_defect", defect=defect_site(error))
            self._refuse(request.number, RangeRefusal.NOT_READ)

    async def _give(self, request: RangeRequest) -> None:
        """Read a range and send it.

        Reads may end in any order; answers are sent one at a time, as the asker takes them.
        """
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
        if self._peer.is_writable:  # else the asker gives up by itself
            self._channel.send(MessageKind.RANGE_REFUSED, encode_refusal(number, why))
