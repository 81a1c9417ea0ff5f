"""The pipe of one client's connection at the agent beside its broker: every frame passes here in both directions.

| stage, from the near side to the broker | of requests | of responses |
| --- | --- | --- |
| link (`ConsumerLinks`) | notes Fetch requests | replaces records by links |
| splice (`SpliceCore`) | puts routed Produce requests together again, offers them to the write path | ends the offer |
| hold (`HeldResponses`) | sends acks=all as acks=1; asks the agent's questions | waits: stored, replicated |

Which of them run for whom, docs/architecture.md says; a gateway that sends no messages gets `hold` alone.

The cores decide and do no I/O, this carries it out. A response belongs to a request by its place (`RequestOrder`), and
one with another correlation id ends the connection. When the near or the broker's connection ends, both end: what the
broker has not got then is dropped, and so are held responses, because nobody can say any more whether their records are
in the log. While responses may be held, a task of its own reads the broker, so a held one does not stop the others.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import structlog

from gateway.client_protocol import THROTTLED_MAX_S, ClientSide
from gateway.consume.consumer_links import Asked, ConsumerLinks, ReadCosts
from gateway.durable.durable_logs import DurableLogs
from gateway.durable.held_responses import HeldResponses, ProduceRefusedError
from gateway.durable.pipelined_acks import ReplicationLimits
from gateway.metrics import ConsumeMetrics, DurableMetrics, ProduceMetrics
from gateway.produce.route_request import ZoneRouteRequest, encode_number, encode_outcome, split_original
from gateway.produce.splice_core import Action, AskInline, Read, SpliceCore, Spliced, SpliceLimits, ToBroker
from kafka_log.crc32c import Buffer
from plugin.adopted_records import BatchSource
from plugin.blob_storage import BlobStorage, StoredBlob
from plugin.errors import RemoteResourceNotFoundError
from plugin.format.archive_object_id import StoredObjectId
from plugin.hot_path.deadline import DeadlineTimer
from replication.leader.catch_up import FollowerCatchUp
from replication.leader.leader_context import LeaderContext
from replication.leader.leader_relay import decided
from replication.wire.circuit_breaker import CircuitBreaker
from replication.wire.framed_connection import FramedConnection, run_until_one_ends
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_protocol import MessageKind, PeerCapabilities
from replication.wire.request_order import RequestOrder
from rlm.write_path.uploads.adoptable_records import AdoptableRecords, Offer

log = structlog.get_logger(__name__)

CONTROL_KINDS: Final = (MessageKind.INLINE_REQUEST, MessageKind.LINKS_PAUSED, MessageKind.LINKS_RESUMED)
"""A gateway's messages about links."""
_LOOK_AGAIN_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class RouterReads:
    """Reads objects that gateways wrote for producers; while reads fail, they are retried only from time to time."""

    store: BlobStorage
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)

    async def read(self, wanted: Read, timeout_s: float) -> bytes | None:
        """Read a range; None if that failed, or is not tried now."""
        loop = asyncio.get_running_loop()
        if not self.breaker.allows(loop.time()):
            return None
        blob = StoredBlob(wanted.object_id.blob_name, wanted.end_position, wanted.custom_metadata)
        try:
            async with asyncio.timeout(timeout_s):
                content = await self.store.get_blob(blob, wanted.start_position, wanted.end_position)
        except RemoteResourceNotFoundError:  # a missing object is an answer
            self.breaker.succeeded()
            return None
        except Exception:  # any storage manager may raise anything; the original is requested
            self.breaker.failed(loop.time())
            return None
        self.breaker.succeeded()
        return content


@dataclass(frozen=True, slots=True)
class SplicingContext:
    """What all connections share on which an agent splices routed requests."""

    limits: SpliceLimits
    reads: RouterReads
    metrics: ProduceMetrics
    responses_budget: MemoryBudget = field(default_factory=MemoryBudget)
    """Limits the broker's answers."""
    adoptable: AdoptableRecords | None = None
    """If set, ADOPTED_RECORDS may be agreed."""
    channel: Callable[[FramedConnection, int], PeerChannel] = lambda connection, _broker_id: PeerChannel(connection)
    """Makes the channel to the agent beside this broker, after the hellos."""


@dataclass(frozen=True, slots=True)
class ConsumerContext:
    """What all consumers' connections of one agent share."""

    leader: LeaderContext
    """The context for followers, with another budget and other stage times."""
    metrics: ConsumeMetrics
    costs: ReadCosts


@dataclass(frozen=True, slots=True)
class HoldingContext:
    """What all connections share on which an agent holds responses to producers."""

    logs: DurableLogs
    metrics: DurableMetrics
    requests_budget: MemoryBudget
    """For clients' frames."""
    responses_budget: MemoryBudget
    """For brokers' answers as they pass."""
    held_budget: MemoryBudget
    """For held answers. It is separate, because a large answer that waits for memory would wait for them in vain."""
    replication: ReplicationLimits | None = None
    """None: acks=all goes on unchanged."""


class _Note(NamedTuple):
    """What stages know of a request that the client has no response to."""

    number: int | None
    """The number of the ZoneRouteRequest that it was."""
    fetch: Asked


def _tell_nobody(_object_id: StoredObjectId, _ranges: list[tuple[int, int]], _custom_metadata: bytes) -> None:
    """Announce nothing: gateways do not read ahead, because a consumer may leave at any time."""


class LinkStage:
    """Sends one connection's responses to the consumer's gateway, linked where `ConsumerLinks` says so."""

    def __init__(self, context: ConsumerContext, side: ClientSide, near: PeerChannel) -> None:
        self._leader = leader = context.leader
        self._near = near
        self._catch_up: FollowerCatchUp | None = None
        if leader.catch_up is not None:
            self._catch_up = FollowerCatchUp(leader.catch_up, _tell_nobody, leader.uploads.notify, side.capabilities)
        read_ahead = self._catch_up.plan if self._catch_up is not None else None
        self._links = ConsumerLinks(leader, side, context.metrics, context.costs, read_ahead)
        begin_reads = self._catch_up.begin_reads if self._catch_up is not None else lambda: None
        self._decided = partial(
            decided, self._links.look_again, context=leader, peer=near.connection, begin_reads=begin_reads
        )

    def asked(self, frame: Buffer) -> Asked:
        """Return a note on a request that is about to be sent to the broker, for `answer`; the frame's beginning is
        enough."""
        return self._links.asked(frame, self._leader.clock())

    def control(self, kind: MessageKind, body: Buffer) -> None:
        """Handle a message of the gateway about links (CONTROL_KINDS). Raises MalformedFrameError, ConnectionError."""
        original = self._links.control(kind, body)
        if original is not None:
            self._near.send(original.kind, *original.body, records=original.records)
        self._leader.uploads.notify()  # whether links are given may have changed

    async def answer(self, frame: Buffer, what: Asked) -> None:
        """Send a response, linked if that pays; `what` is the note on its request. Raises ConnectionError."""
        answer = await self._decided(self._links.response(frame, what, self._leader.clock()))
        self._near.send(answer.kind, *answer.body, records=answer.records)

    def close(self) -> None:
        """Release all memory and reads, because the connection ended."""
        self._links.close()
        if self._catch_up is not None:
            self._catch_up.close()


async def tell_outcomes(adoptable: AdoptableRecords) -> None:
    """Report the due outcomes of offers until cancelled. It must run again after a defect, because without outcomes
    gateways delete nothing."""
    while True:
        adoptable.look_again(asyncio.get_running_loop().time())
        await asyncio.sleep(_LOOK_AGAIN_S)


class SpliceStage:
    """Puts the records back into one connection's routed requests, and offers them to the write path.

    A gateway keeps what it stored until it learns that no log wants it. If the connection ends first, it cannot learn
    that, and leaves the objects alone.
    """

    def __init__(
        self,
        context: SplicingContext,
        side: ClientSide,
        near: PeerChannel,
        forward: Callable[[Sequence[Buffer], int | None], None],
    ) -> None:
        """`forward` is called with each request for the broker, as buffers, and its number if it was routed."""
        self._context = context
        self._near = near
        self._forward = forward
        self._adoptable = context.adoptable if PeerCapabilities.ADOPTED_RECORDS in side.capabilities else None
        self._offers: dict[int, Offer] = {}
        """Offers of requests that the broker has not answered, by the requests' numbers."""
        self._is_closed = False
        self._core = SpliceCore(
            context.limits, side.gateway.broker_id, side.gateway.incarnation, tells_spliced=self._adoptable is not None
        )
        self._is_routed = PeerCapabilities.ROUTED_PRODUCE in side.capabilities
        self._loop = asyncio.get_running_loop()
        self._reads: dict[asyncio.Task[None], None] = {}
        self._timer = DeadlineTimer(lambda: self._do(self._core.look_again(self._loop.time())))

    def came(self, kind: MessageKind, body: Buffer) -> None:
        """Handle a message of the gateway. Raises MalformedFrameError."""
        if kind is MessageKind.KAFKA:
            self._do(self._core.frame_came(body))
        elif kind is MessageKind.ZONE_ROUTE_REQUEST and self._is_routed:
            self._do(self._core.request_came(body, self._loop.time()))
        elif kind is MessageKind.ORIGINAL:
            self._do(self._core.original_came(*split_original(body)))
        else:
            raise MalformedFrameError(0, f"{kind.name} from a gateway")

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            with suppress(ConnectionError):  # the task that reads the connection notices its end
                self._do_one(action)
        self._timer.set(self._core.deadline_s)

    def _do_one(self, action: Action) -> None:
        match action:
            case Read():
                task = self._loop.create_task(self._read(action))
                self._reads[task] = None
                task.add_done_callback(self._reads.pop)
            case ToBroker(buffers, number):
                self._forward(buffers, number)
            case Spliced(request, content):
                self.offer(request, content)
            case AskInline(number, reason):
                self._context.metrics.asked.labels(reason.value).inc()
                self._near.send(MessageKind.ROUTE_INLINE_REQUEST, encode_number(number))

    async def _read(self, wanted: Read) -> None:
        content = await self._context.reads.read(wanted, self._context.limits.read_wait_max_s)
        if content is None:
            self._do(self._core.not_read(wanted.number))
        else:
            self._context.metrics.router.get += 1
            self._context.metrics.router.get_bytes += len(content)
            self._do(self._core.was_read(wanted.number, content))

    def offer(self, request: ZoneRouteRequest, content: Buffer) -> None:
        """Offer a request's records, `content`, to the write path, before the request is sent to the broker."""
        if self._adoptable is None:
            return
        tell, lengths = partial(self._tell, request.number), [cut.length for cut in request.cuts]
        source = BatchSource(request.object_id, request.custom_metadata)
        now_s = self._loop.time()
        offer = self._adoptable.offer(source, request.start_position, content, lengths, now_s, tell)
        if offer is None:
            tell(adopted=False)
        else:
            self._offers[request.number] = offer

    def _tell(self, number: int, adopted: bool) -> None:
        if not self._is_closed:
            with suppress(ConnectionError):  # the task that reads the connection notices its end
                self._near.send(MessageKind.ROUTE_OUTCOME, encode_outcome(number, adopted))

    def answered(self, number: int | None) -> None:
        """Record that the broker responded to a request; `number` is that of a routed one, else None."""
        if self._adoptable is not None and number is not None and (offer := self._offers.pop(number, None)) is not None:
            self._adoptable.answered(offer, self._loop.time())

    def close(self) -> None:
        """Drop all waiting requests and end all offers, because the connection ended."""
        self._is_closed = True
        self._timer.set(None)
        for task in list(self._reads):
            task.cancel()
        for number in list(self._offers):
            self.answered(number)


class HoldStage:
    """Holds the responses of one connection until they may go to the client. A task of its own reads them, so that a
    held one does not stop the broker."""

    def __init__(self, context: HoldingContext, broker: FramedConnection) -> None:
        self._context = context
        self._broker = broker
        self._clock = asyncio.get_running_loop().time
        self._changed, self._has_room = asyncio.Event(), asyncio.Event()
        self._core: HeldResponses[_Note] = HeldResponses(
            context.logs, self._changed.set, context.metrics, context.replication
        )
        self._in_turn: deque[tuple[Buffer, _Note]] = deque()
        """The client's frames that wait for held answers before they go to the broker."""
        self._timer = DeadlineTimer(self._changed.set)
        self._counted_bytes = 0
        self._pump = asyncio.get_running_loop().create_task(self._take_in())
        self._pump.add_done_callback(self._ended)

    def forward(self, buffers: Sequence[Buffer], note: _Note) -> None:
        """Send the broker one frame made of these buffers, after those before it.

        Raises ProduceRefusedError if the broker must not get it; then its connection ends. Raises ConnectionError.
        """
        if not self._core.may_hold and not self._in_turn:
            self._core.passed(buffers[0], note)
            self._broker.write_frame(*buffers)
            return
        self._in_turn.append((buffers[0] if len(buffers) == 1 else b"".join(buffers), note))
        self._forward_in_turn()

    def _forward_in_turn(self) -> None:
        try:
            while self._in_turn and (buffers := self._core.asked(*self._in_turn[0], self._clock())) is not None:
                self._in_turn.popleft()
                if buffers:
                    self._broker.write_frame(*buffers)
        except ProduceRefusedError as error:
            self._in_turn.clear()
            self._context.metrics.refused()
            log.warning("produce_refused", error=str(error), consequence="the client's connection is closed")
            self._broker.abort()
            raise

    async def wait_for_room(self, client: FramedConnection) -> None:
        """Wait until more may be sent to the broker; `client`, whose frames these are, counts as stalled meanwhile."""
        if self._has_room_now:
            return
        with client.stalled():
            while not self._has_room_now:
                self._has_room.clear()
                await self._has_room.wait()

    @property
    def _has_room_now(self) -> bool:
        return self._pump.done() or not (self._in_turn or self._core.is_busy or self._is_spent)

    async def next_response(self) -> tuple[Buffer, _Note] | None:
        """Return the next response for the client, once it may go; None: the broker's connection ended.

        Raises MalformedFrameError for one that is not understood.
        """
        while True:
            self._changed.clear()
            with suppress(ConnectionError):  # the pump has ended then
                for question in self._core.to_broker(self._clock()):
                    self._broker.write_frame(question)
            ready = self._core.ready(self._clock())
            self._count()
            if self._in_turn:
                self._forward_in_turn()
                self._has_room.set()
            if ready is not None:
                self._has_room.set()
                return ready
            if self._pump.done():
                self._pump.result()
                return None
            self._timer.set(self._core.deadline_s)
            await self._changed.wait()

    async def _take_in(self) -> None:
        while (frame := await self._broker.read_frame()) is not None:
            self._core.answered(frame, self._clock())
            self._has_room.set()
            self._changed.set()
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
        self._changed.set()

    def _count(self) -> None:
        """Count held bytes against the budget."""
        more, self._counted_bytes = self._core.held_bytes - self._counted_bytes, self._core.held_bytes
        self._context.held_budget.adjust(more)

    def close(self) -> None:
        """Stop reading from the broker and drop what is held, because the connection ended."""
        self._timer.set(None)
        self._pump.cancel()
        self._core.close()
        self._count()


class BrokerPipe:
    """Relays the frames of one client's connection until either side ends. Create and `run` it in the event loop."""

    def __init__(
        self,
        near: PeerChannel,
        broker: FramedConnection,
        passed: Callable[[], object] = lambda: None,
        *,
        splicing: tuple[SplicingContext, ClientSide] | None = None,
        links: tuple[ConsumerContext, ClientSide] | None = None,
        holding: HoldingContext | None = None,
        edit: Callable[[Buffer], Buffer] | None = None,
    ) -> None:
        """Requests come from `near`. Stages that are None are left out.

        `passed` is called whenever a frame has passed; `edit` returns the frame to send in place of a request.
        """
        self._near, self._client, self._broker = near, near.connection, broker
        self._passed = passed
        self._links = LinkStage(*links, near) if links is not None else None
        self._edit = edit
        self._splice = SpliceStage(*splicing, near, self._forward) if splicing is not None else None
        self._hold = HoldStage(holding, broker) if holding is not None else None
        self._order: RequestOrder[_Note] = RequestOrder()
        """Only if nothing is held."""

    async def run(self, *others: Coroutine[None, None, None]) -> None:
        """Relay until either side or one of `others` ends.

        Raises MalformedFrameError when a side sends a frame that is not understood or not allowed.
        """
        try:
            await run_until_one_ends(self._relay_requests(), self._relay_responses(), *others)
        finally:
            for stage in (self._hold, self._links, self._splice):
                if stage is not None:
                    stage.close()
            self._passed()

    async def _relay_requests(self) -> None:
        while (message := await self._near.receive()) is not None:
            self._came(*message)
            self._passed()
            await self._broker.drain(THROTTLED_MAX_S, self._client)
            if self._hold is not None:
                await self._hold.wait_for_room(self._client)

    def _came(self, kind: MessageKind, body: Buffer) -> None:
        if kind in CONTROL_KINDS and self._links is not None:
            self._links.control(kind, body)
        elif self._splice is not None:
            self._splice.came(kind, body)
        elif kind is MessageKind.KAFKA:
            self._forward([body if self._edit is None else self._edit(body)])
        else:
            raise MalformedFrameError(0, f"{kind.name} on a connection that routes nothing")

    def _forward(self, buffers: Sequence[Buffer], number: int | None = None) -> None:
        note = _Note(number, self._links.asked(buffers[0]) if self._links is not None else False)
        if self._hold is not None:
            self._hold.forward(buffers, note)
        else:
            self._order.asked(buffers[0], note)
            self._broker.write_frame(*buffers)

    async def _relay_responses(self) -> None:
        next_response = self._next_response if self._hold is None else self._hold.next_response
        while (response := await next_response()) is not None:
            frame, note = response
            if self._splice is not None:
                self._splice.answered(note.number)
            if self._links is None:
                self._near.send(MessageKind.KAFKA, frame, records=None)
            else:
                await self._links.answer(frame, note.fetch)
            await self._near.drain()
            self._passed()

    async def _next_response(self) -> tuple[Buffer, _Note] | None:
        frame = await self._broker.read_frame()
        return None if frame is None else (frame, self._order.answered(frame))
