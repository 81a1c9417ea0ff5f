"""Chooses the neighbour in the own zone to ask for an object's bytes, and avoids neighbours that fail.

A neighbour is trusted no more than the store: its bytes are checked against the link like any others. It gets a quarter
of the time that a response has. After that, or at once if it refuses or is gone, the range is read from the store. A
neighbour that failed repeatedly is avoided for a while (`CircuitBreaker`), one that gave wrong bytes for longer
(`LinkHoldOff`). The next reader of the zone takes its place for all that notice this.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import replace

import structlog

from plugin.errors import defect_site
from plugin.segment_metadata import CombinedSegmentId
from replication.follower.follower_context import DiallingContext, FollowerContext
from replication.follower.hydration import HydrationError
from replication.follower.range_cache import CachedRange
from replication.wire.circuit_breaker import CircuitBreaker
from replication.wire.framed_connection import FramedConnection, reserve, run_until_one_ends, until_idle
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.link_defects import LinkHoldOff
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_channel import Connect, NumberedQuestions, PeerChannel
from replication.wire.peer_connection import KnownPeers, connect_framed, exchange_hellos
from replication.wire.peer_protocol import (
    Hello,
    MessageKind,
    PeerCapabilities,
    PeerRefusedError,
    RangeRefusal,
    RangeRequest,
    ZoneReading,
    decode_range_response,
    decode_refusal,
    encode_range_response,
    encode_refusal,
)

log = structlog.get_logger(__name__)


class RangeRefusedError(Exception):
    """The neighbour does not send the range; the message says why."""


class RangeAlteredError(Exception):
    """The bytes that arrived are not those that the neighbour sent."""


def _read(kind: MessageKind, body: memoryview) -> tuple[int, bytes | Exception]:
    if kind is MessageKind.RANGE:
        number, data = decode_range_response(body)
        return number, RangeAlteredError("the checksum differs") if data is None else bytes(data)
    if kind is MessageKind.RANGE_REFUSED:
        number, why = decode_refusal(body)
        return number, RangeRefusedError(why)
    raise MalformedFrameError(0, f"{kind.name} from a neighbour")


async def _asked(questions: NumberedQuestions[bytes], wanted: CachedRange, read: tuple[int, int]) -> bytes:
    """Request a range; the neighbour reads all of `read` if it has none of it."""
    object_id = wanted.object_id
    if not isinstance(object_id, CombinedSegmentId):
        raise TypeError("neighbours read combined segments alone")
    data = await questions.ask(
        MessageKind.RANGE_REQUEST,
        lambda number: RangeRequest(number, object_id, wanted.start, wanted.end, read, wanted.custom_metadata).encode(),
    )
    if len(data) != wanted.end - wanted.start:
        raise RangeAlteredError(f"{len(data)} bytes instead of {wanted.end - wanted.start}")
    return data


_SHARE_OF_TIMEOUT = 4
GIVEN = "given"


class _Neighbour:
    def __init__(self, connect: Connect) -> None:
        self.questions = NumberedQuestions(connect, _read)
        self.breaker = CircuitBreaker()
        self.rest = LinkHoldOff()


class Neighbours:
    """The agents of the own zone, to which requests for objects' bytes are sent. Used from the event loop only."""

    def __init__(self, context: DiallingContext, peers: KnownPeers, is_near: Callable[[int], bool]) -> None:
        """`is_near` says whether a broker is in the own zone."""
        self._context = context
        self._peers = peers
        self._is_near = is_near
        self._hello = replace(context.hello, capabilities=PeerCapabilities.RANGES)
        self._metrics = context.metrics.shared_reads
        self._known: dict[int, _Neighbour] = {}

    @property
    def own_id(self) -> int:
        return self._hello.broker_id

    def reader(self, zone: ZoneReading) -> int | None:
        """Return the first reader of the zone that can be asked, which may be the own broker; None if there is none."""
        now_s = self._context.clock()
        for broker_id in zone.readers:
            if broker_id == self.own_id:
                return broker_id
            if broker_id not in self._peers or not self._is_near(broker_id):
                continue
            neighbour = self._neighbour(broker_id)
            if neighbour.rest.is_over(now_s) and neighbour.breaker.allows(now_s):
                return broker_id
        return None

    async def ask(self, neighbour: int, wanted: CachedRange, read: tuple[int, int]) -> bytes | None:
        """Request a range from a neighbour; None if it must be read from the store. Errors are counted, not raised."""
        one = self._neighbour(neighbour)
        try:
            async with asyncio.timeout(self._context.limits.hydration_timeout_s / _SHARE_OF_TIMEOUT):
                data = await _asked(one.questions, wanted, read)
        except TimeoutError:
            self._failed(neighbour, "slow", "no answer in time")
        except RangeRefusedError as error:
            self._failed(neighbour, "refused", str(error))
        except (RangeAlteredError, MalformedFrameError) as error:
            self._failed(neighbour, "altered", str(error))
            self._rest(neighbour)
        except (OSError, ssl.SSLError, PeerRefusedError) as error:
            self._failed(neighbour, "gone", str(error) or type(error).__name__)
        except Exception as error:  # the range is read from the store in any case
            self._failed(neighbour, "defect", defect_site(error))
            self._rest(neighbour)
        else:
            if one.breaker.succeeded():
                log.info("neighbour_asked_again", neighbour=neighbour)
            self._metrics.asked(GIVEN, len(data))
            return data
        return None

    def record_wrong_bytes(self, neighbour: int) -> None:
        """Record that a neighbour sent bytes that differ from the leader's."""
        self._metrics.asked("wrong")
        self._rest(neighbour)

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(one.questions.close() for one in self._known.values()))

    def _failed(self, neighbour: int, outcome: str, detail: str) -> None:
        self._metrics.asked(outcome)
        if self._neighbour(neighbour).breaker.failed(self._context.clock()):
            log.warning("neighbour_left_alone", neighbour=neighbour, reason=outcome, detail=detail)

    def _rest(self, neighbour: int) -> None:
        rest_s = self._neighbour(neighbour).rest.begin(self._context.clock())
        if rest_s:
            log.error("neighbour_gave_wrong_bytes", neighbour=neighbour, not_asked_for_s=rest_s)

    def _neighbour(self, broker_id: int) -> _Neighbour:
        if broker_id not in self._known:
            self._known[broker_id] = _Neighbour(lambda: self._connect(broker_id))
        return self._known[broker_id]

    async def _connect(self, broker_id: int) -> FramedConnection:
        context, address = self._context, self._peers.get(broker_id)
        if address is None:
            raise PeerRefusedError(f"broker {broker_id}'s agent is not known any more")
        limits = context.limits
        connection = FramedConnection(limits.max_response_bytes, limits.frame_timeout_s, budget=context.budget)
        try:
            await connect_framed(address, connection, context.tls())
            if PeerCapabilities.RANGES not in await exchange_hellos(connection, self._hello, broker_id):
                raise PeerRefusedError(f"broker {broker_id}'s agent gives no ranges")
        except BaseException:
            connection.abort()
            self._peers.failed(broker_id, address)
            raise
        self._peers.answered(broker_id, address)
        log.info("neighbour_connected", neighbour=broker_id)
        return connection


MAX_ASKED = 64
"""The most ranges that one neighbour may request at a time."""


class RangeHandler:
    """Serves ranges of objects to other agents of the own zone: cached ones, and ones read for all of them.

    Only combined segments are served; their ids are turned into keys under this agent's own prefix. The peer listener
    decides who may ask. The asker must be in the own zone, because bytes to another zone would cost what this is meant
    to save.
    """

    def __init__(
        self, context: FollowerContext, budget: MemoryBudget, is_near: Callable[[int], bool], idle_timeout_s: float
    ) -> None:
        """`budget` limits the memory for what is sent to other agents; `is_near` says whether a broker is in the own
        zone."""
        self._context = context
        self._budget = budget
        self._is_near = is_near
        self._idle_timeout_s = idle_timeout_s

    async def serve(self, peer: FramedConnection, hello: Hello, _capabilities: PeerCapabilities) -> None:
        """Serve one connection, after the hellos, until it ends. Raises PeerRefusedError, MalformedFrameError."""
        if not self._is_near(hello.broker_id):
            raise PeerRefusedError(f"broker {hello.broker_id}'s agent asks for ranges, and is not known to be near")
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
                data = await hydration.fetch_for_neighbour(
                    request.segment_id, request.start, request.end, request.read, request.custom_metadata
                )
                await reserve(self._budget, len(data))
        except TimeoutError as error:
            raise HydrationError("timeout", "the store did not answer in time") from error
        try:
            async with self._sending:
                self._channel.send(MessageKind.RANGE, encode_range_response(request.number, data), data)
                await self._peer.drain()
        finally:
            self._budget.give_back(len(data))
        self._context.metrics.shared_reads.count_given("given", len(data))

    def _refuse(self, number: int, why: RangeRefusal) -> None:
        self._context.metrics.shared_reads.count_given(why.name.lower())
        if self._peer.is_writable:  # else the asker gives up by itself
            self._channel.send(MessageKind.RANGE_REFUSED, encode_refusal(number, why))
