"""Relays a client's connection at the agent beside its broker, frame by frame: routed Produce requests are spliced.

`SpliceCore` decides, this carries it out; `RouterReads` reads objects, for all connections of an agent. When the
gateway's or the broker's connection ends, both end; what the broker has not got then is dropped. Consumers' answers may
contain links (`ConsumerAnswers`).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.adoption_offers import AdoptionOffers
from gateway.client_side import THROTTLED_MAX_S, ClientSide
from gateway.consume.consumer_answers import CONTROL_KINDS, ConsumerAnswers, ConsumerContext
from gateway.deadline_timer import DeadlineTimer
from gateway.durable.answer_gate import AnswerGate, HoldingContext
from gateway.produce.produce_metrics import ProduceMetrics
from gateway.produce.route_messages import encode_number, split_original
from gateway.produce.splice_core import Action, AskInline, Read, SpliceCore, Spliced, SpliceLimits, ToBroker
from gateway.router_uploads import RouterStore
from plugin.blob_storage import StoredBlob
from plugin.errors import RemoteResourceNotFoundError
from replication.wire.circuit_breaker import CircuitBreaker
from replication.wire.framed_connection import FramedConnection, run_until_one_ends
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_protocol import MessageKind, PeerCapabilities
from rlm.write_path.uploads.adoptable_records import AdoptableRecords


@dataclass(frozen=True, slots=True)
class RouterReads:
    """Reads objects of the RouterChannels; while reads fail, they are retried from time to time."""

    store: RouterStore
    breaker: CircuitBreaker

    async def read(self, wanted: Read, timeout_s: float) -> bytes | None:
        """Read a range; None if it failed, or is not tried now."""
        loop = asyncio.get_running_loop()
        if not self.breaker.allows(loop.time()):
            return None
        blob = StoredBlob(wanted.object_id.blob_name, wanted.end_position, wanted.custom_metadata)
        try:
            async with asyncio.timeout(timeout_s):
                content = await loop.run_in_executor(
                    self.store.pool, self.store.blobs.get_blob, blob, wanted.start_position, wanted.end_position
                )
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
    """Shared state of all connections of one agent."""

    limits: SpliceLimits
    reads: RouterReads
    metrics: ProduceMetrics
    answers_budget: MemoryBudget = field(default_factory=MemoryBudget)
    """Limits the broker's answers."""
    adoptable: AdoptableRecords | None = None
    """If set, ADOPTED_RECORDS may be agreed."""
    channel: Callable[[FramedConnection, int], PeerChannel] = lambda connection, _broker_id: PeerChannel(connection)
    """Makes the channel to the agent beside this broker, after the hellos."""


class SplicedRelay:
    """One connection of a gateway, and the matching connection to the local broker."""

    def __init__(
        self,
        context: SplicingContext,
        gateway: FramedConnection,
        broker: FramedConnection,
        side: ClientSide,
        passed: Callable[[], object] = lambda: None,
        consumers: ConsumerContext | None = None,
        holding: HoldingContext | None = None,
    ) -> None:
        """`passed` is called whenever something has passed.

        Without `consumers`, answers pass unchanged; without `holding`, at once.
        """
        self._passed = passed
        self._gate = AnswerGate(holding, broker) if holding is not None else None
        self._context = context
        self._gateway = gateway
        self._broker = broker
        self._channel = context.channel(gateway, side.gateway.broker_id)
        self._is_routed = PeerCapabilities.ROUTED_PRODUCE in side.capabilities
        self._answers: ConsumerAnswers | None = None
        if consumers is not None and side.capabilities & (PeerCapabilities.LINKED_FETCH | PeerCapabilities.PACKED):
            self._answers = ConsumerAnswers(consumers, side, gateway, self._channel)
        self._offers: AdoptionOffers | None = None
        if context.adoptable is not None and PeerCapabilities.ADOPTED_RECORDS in side.capabilities:
            self._offers = AdoptionOffers(context.adoptable, self._channel)
        self._core = SpliceCore(
            context.limits, side.gateway.broker_id, side.gateway.incarnation, tells_spliced=self._offers is not None
        )
        self._reads: dict[asyncio.Task[None], None] = {}
        self._timer = DeadlineTimer(self._look_again)

    async def run(self) -> None:
        """Relay until either side ends. Raises MalformedFrameError when the gateway sends what it may not."""
        try:
            await run_until_one_ends(self._relay_requests(), self._relay_answers())
        finally:
            self._timer.set(None)
            for task in list(self._reads):
                task.cancel()
            if self._gate is not None:
                self._gate.close()
            if self._answers is not None:
                self._answers.close()
            if self._offers is not None:
                self._offers.close(asyncio.get_running_loop().time())
            self._passed()

    async def _relay_requests(self) -> None:
        while (message := await self._channel.receive()) is not None:
            self._do(self._came(*message))
            self._passed()
            await self._broker.drain(THROTTLED_MAX_S, self._gateway)
            if self._gate is not None:
                await self._gate.wait_for_room(self._gateway)

    def _came(self, kind: MessageKind, body: memoryview) -> list[Action]:
        if kind is MessageKind.KAFKA:
            return self._core.frame_came(body)
        if kind is MessageKind.ZONE_ROUTE_REQUEST and self._is_routed:
            return self._core.request_came(body, asyncio.get_running_loop().time())
        if kind is MessageKind.ORIGINAL:
            return self._core.original_came(*split_original(body))
        if kind in CONTROL_KINDS and self._answers is not None:
            self._answers.control(kind, body)
            return []
        raise MalformedFrameError(0, f"{kind.name} from a gateway")

    async def _relay_answers(self) -> None:
        next_answer = self._broker.read_frame if self._gate is None else self._gate.next_answer
        while (frame := await next_answer()) is not None:
            if self._offers is not None:
                self._offers.answered(frame, asyncio.get_running_loop().time())
            if self._answers is None:
                self._channel.send(MessageKind.KAFKA, frame, records=None)
            else:
                await self._answers.answer(frame)
            await self._channel.drain()
            self._passed()

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            try:
                self._do_one(action)
            except ConnectionError:  # the task that reads the connection notices its end
                continue
        self._timer.set(self._core.deadline_s)

    def _do_one(self, action: Action) -> None:
        match action:
            case Read():
                task = asyncio.get_running_loop().create_task(self._read(action))
                self._reads[task] = None
                task.add_done_callback(self._reads.pop)
            case ToBroker(buffers, number):
                if self._offers is not None:
                    self._offers.asked(buffers[0], number)
                if self._answers is not None:
                    self._answers.asked(buffers[0])
                if self._gate is not None:
                    self._gate.forward(buffers)
                else:
                    self._broker.write_frame(*buffers)
            case Spliced(request, content):
                if self._offers is not None:
                    self._offers.spliced(request, content, asyncio.get_running_loop().time())
            case AskInline(number, reason):
                self._context.metrics.asked.labels(reason.value).inc()
                self._channel.send(MessageKind.ROUTE_INLINE_REQUEST, encode_number(number))

    async def _read(self, wanted: Read) -> None:
        content = await self._context.reads.read(wanted, self._context.limits.read_wait_max_s)
        if content is None:
            self._do(self._core.not_read(wanted.number))
        else:
            self._context.metrics.router.get += 1
            self._context.metrics.router.get_bytes += len(content)
            self._do(self._core.was_read(wanted.number, content))

    def _look_again(self) -> None:
        self._do(self._core.look_again(asyncio.get_running_loop().time()))
