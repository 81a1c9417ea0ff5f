"""The pipe of one client's connection at the gateway of its zone: every frame passes here in both directions.

| stage, from the client to the broker's agent | of requests | of responses |
| --- | --- | --- |
| rack (`with_zone`) | names the zone in Fetch | |
| serve (`ServedClient`) | answers Fetch here, or makes it sessionless | gives it its session again |
| route (`RouteCore`) | cuts records out of Produce once they are stored | lets go of what it kept |
| link (`HydratedResponses`) | tells when links are wanted | puts linked responses together |

Each stage takes part if the settings and both agents have it; for an agent that takes no messages, none but the rack.

The cores decide and do no I/O, this carries it out. A response belongs to a request by its place (`RequestOrder`), and
one with another correlation id ends the connection. When the client's or the agent's connection ends, both end. What
`RouteCore` keeps is counted in the memory budget, and the client is not read while it keeps too much.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.client_protocol import THROTTLED_MAX_S
from gateway.metrics import ProduceMetrics, ServeMetrics
from gateway.produce.produce_frame import (
    MIN_TRANSACTIONAL_VERSION,
    ProduceRequestView,
    Unread,
    scan_produce_request,
)
from gateway.produce.route_core import (
    Action,
    ForwardInline,
    ForwardRoute,
    Left,
    Offer,
    RouteCore,
    RouteLimits,
    SendOriginal,
    Settled,
    StoredRecords,
)
from gateway.produce.route_decider import RouteDecider
from gateway.produce.route_request import decode_number, decode_outcome, encode_number, encode_route_request
from gateway.router_uploads import Holder, RouterUploads
from gateway.serve.fetch_frames import api_key_of
from gateway.serve.serving import FetchServing, Relay, Serve, ServeOutcome, ServePermission, Wait
from gateway.serve.tails import Tails
from kafka_log.crc32c import Buffer
from plugin.hot_path.deadline import DeadlineTimer
from replication.follower.follower_context import FollowerContext
from replication.follower.hydrated_responses import HydratedResponses
from replication.wire.circuit_breaker import CircuitBreaker
from replication.wire.fetch_frame import FETCH_API_KEY
from replication.wire.framed_connection import FramedConnection, run_until_one_ends
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.memory_budget import MemoryBudget
from replication.wire.packed_message import TopicRecords
from replication.wire.peer_channel import PeerChannel, PlainFrames
from replication.wire.peer_protocol import MESSAGES, MessageKind, PeerCapabilities
from replication.wire.request_order import MAX_UNANSWERED, RequestOrder


@dataclass(frozen=True, slots=True)
class RoutingContext:
    """What all connections of one gateway share."""

    limits: RouteLimits
    uploads: RouterUploads
    decider: RouteDecider
    metrics: ProduceMetrics
    requests_budget: MemoryBudget = field(default_factory=MemoryBudget)
    """Limits clients' frames, kept ones included."""
    responses_budget: MemoryBudget = field(default_factory=MemoryBudget)
    links: FollowerContext | None = None
    """Hydrates links in consumers' responses, within `responses_budget`. If set, LINKED_FETCH may be agreed."""
    channel: Callable[[FramedConnection, int], PeerChannel] = lambda connection, _broker_id: PeerChannel(connection)
    """Makes the channel to the agent beside this broker, after the hellos."""


@dataclass(frozen=True, slots=True)
class ServingParts:
    """What all clients of one gateway share for serving Fetch requests."""

    tails: Tails
    serve_permission: ServePermission
    metrics: ServeMetrics
    authorisation_s: float


class ServedClient:
    """Serves the Fetch requests of one client's connection, as `FetchServing` decides.

    A broker answers one request of a connection at a time, and so does this: a Fetch is decided once all before it are
    answered, and nothing behind it is read until it is answered or relayed.
    """

    def __init__(self, parts: ServingParts, broker_id: int, client: FramedConnection) -> None:
        """`client` is one of this broker."""
        self._tail, self._client, self._metrics = parts.tails.of(broker_id), client, parts.metrics
        self._serving = FetchServing(
            self._tail, parts.serve_permission, parts.authorisation_s, lambda: secrets.randbits(31) or 1
        )

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
            await self._tail.changed(step.until_s)
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


@dataclass(frozen=True, slots=True)
class AgentSide:
    """The connection to the agent beside a broker, and what that agent understands."""

    broker_id: int
    connection: FramedConnection
    capabilities: PeerCapabilities
    """The capabilities that both agents have."""
    reads: CircuitBreaker
    """The state of its reads: each request for an original counts as a failure."""


def _records_in(scanned: ProduceRequestView | Unread, position: int = 0) -> list[TopicRecords] | None:
    """Return where records are in a message that has a client's frame at this position; None if nobody knows."""
    if isinstance(scanned, Unread):
        return [] if scanned is Unread.OTHER_API else None
    return [
        TopicRecords(one.topic_id or one.topic_name or "", position + one.records_start, position + one.records_end)
        for one in scanned.fields
    ]


class _Note(NamedTuple):
    """What stages know of a request that the client has no response to."""

    number: int | None
    """If it was routed."""
    relayed: Relay | None
    """If its response is changed by `ServedClient`."""


class GatewayPipe:
    """Relays one client's connection to the agent beside the broker, frame by frame."""

    def __init__(
        self,
        context: RoutingContext,
        client: FramedConnection,
        agent: AgentSide,
        passed: Callable[[], object] = lambda: None,
        edit: Callable[[Buffer], Buffer] = lambda frame: frame,
        served: ServedClient | None = None,
    ) -> None:
        """`passed` is called whenever a frame has passed; `edit` returns the frame to send in place of a client's.

        With `served`, the gateway may respond to Fetch requests itself.
        """
        self._served = served
        self._passed = passed
        self._edit = edit
        self._context = context
        self._client = client
        self._agent = agent
        self._order: RequestOrder[_Note] = RequestOrder()
        self._responses: HydratedResponses | None = None
        links = context.links
        self._channel: PeerChannel = PlainFrames(agent.connection)
        if agent.capabilities & MESSAGES:
            self._channel = context.channel(agent.connection, agent.broker_id)
        if links is not None and PeerCapabilities.LINKED_FETCH in agent.capabilities:
            self._responses = HydratedResponses(links, self._channel, self, agent.broker_id, self, is_announced=False)
        adopts = PeerCapabilities.ADOPTED_RECORDS in agent.capabilities
        routes = PeerCapabilities.ROUTED_PRODUCE in agent.capabilities
        self._core = RouteCore(context.limits, self._is_linked if routes else None, adopts=adopts)
        self._inline = context.metrics.requests.labels("inline")
        self._owner = agent.broker_id if adopts else None
        self._changed = asyncio.Event()
        self._timer = DeadlineTimer(self._look_again)
        self._held_bytes = 0

    async def run(self) -> None:
        """Relay until either side ends. Raises MalformedFrameError when the agent sends a message that is not
        allowed."""
        try:
            if self._responses is None:
                await run_until_one_ends(self._relay_requests(), self._relay_responses())
            else:
                with self._responses.watch_breakers():
                    await run_until_one_ends(self._relay_requests(), self._responses.receive(), self._responses.relay())
        finally:
            self._do(self._core.closed())
            self._passed()

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _is_linked(self, _view: ProduceRequestView, size: int, now_s: float) -> bool:
        is_stopped = self._context.uploads.wanted.is_stopped
        return not is_stopped and self._context.decider.is_linked(size, now_s) and self._agent.reads.allows(now_s)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def _has_room(self) -> bool:
        return not self._core.is_full and self._core.waiting + len(self._order) < MAX_UNANSWERED

    async def _all_answered(self) -> None:
        await self._until(lambda: not self._core.waiting and not len(self._order))

    async def _relay_requests(self) -> None:
        while True:
            await self._until(self._has_room)
            frame = await self._client.read_frame()
            if frame is None:
                return
            edited = self._edit(frame)
            came = (edited, None) if self._served is None else await self._served.came(edited, self._all_answered)
            if came is not None:
                request, relayed = came
                self._do(self._core.frame_came(request, self._now_s, relayed))
            self._passed()
            await self._channel.drain(THROTTLED_MAX_S, self._client)

    async def _relay_responses(self) -> None:
        while (message := await self._channel.receive()) is not None:
            kind, body = message
            if kind is MessageKind.KAFKA:
                self.write_frame(body)
            else:
                self.message_came(kind, body)
            self._passed()
            await self._client.drain()

    # ResponseTaker.

    def passed(self) -> None:
        """Record that a frame has passed."""
        self._passed()

    # FrameSink.

    async def drain(self) -> None:
        """Wait until the client keeps up. Raises ConnectionError."""
        await self._client.drain()

    def write_frame(self, *buffers: Buffer) -> None:
        """Send the client a response of the broker, after those before it. Raises MalformedFrameError."""
        number, relayed = self._order.answered(buffers[0])
        answer: Sequence[Buffer] = buffers
        if relayed is not None and self._served is not None:
            answer = self._served.answered(relayed, buffers)
        with suppress(ConnectionError):  # the task that reads the connection notices its end
            self._client.write_frame(*answer)
        actions = self._core.answered(number, self._now_s) if number is not None else []
        if any(isinstance(action, Settled) for action in actions):
            self._agent.reads.succeeded()
        self._do(actions)

    def message_came(self, kind: MessageKind, body: Buffer) -> None:
        """Handle a message of the agent that is no response. Raises MalformedFrameError."""
        if kind is MessageKind.ROUTE_OUTCOME:
            self._do(self._core.outcome(*decode_outcome(body)))
            return
        if kind is not MessageKind.ROUTE_INLINE_REQUEST:
            raise MalformedFrameError(0, f"{kind.name} from the agent beside a broker")
        self._agent.reads.failed(self._now_s)
        self._do(self._core.inline_asked(decode_number(body), self._now_s))

    # RoutedConnection.

    def stored(self, number: int, where: StoredRecords) -> None:
        """Handle that the request's records are stored."""
        self._do(self._core.stored(number, where, self._now_s))

    def not_stored(self, number: int) -> None:
        """Handle that the request's records will not be stored."""
        self._do(self._core.not_stored(number, self._now_s))

    def _look_again(self) -> None:
        self._do(self._core.look_again(self._now_s))

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            try:
                self._do_one(action)
            except ConnectionError:  # the task that reads the connection notices its end
                continue
        more, self._held_bytes = self._core.kept_bytes - self._held_bytes, self._core.kept_bytes
        self._context.requests_budget.adjust(more)
        self._changed.set()
        self._timer.set(self._core.deadline_s)

    def _do_one(self, action: Action) -> None:
        metrics = self._context.metrics
        match action:
            case Offer(number, records):
                self._context.uploads.offer(Holder(self, number), records, self._owner)
            case Settled(number):
                self._context.uploads.settled(Holder(self, number))
            case Left(number):
                metrics.requests.labels("adopted").inc()
                self._context.uploads.left(Holder(self, number))
            case ForwardInline(frame, relayed, scanned):
                self._order.asked(frame, _Note(None, relayed if isinstance(relayed, Relay) else None))
                self._inline.inc()
                if self._responses is not None:
                    self._responses.tell_links()
                self._channel.send(MessageKind.KAFKA, frame, records=_records_in(scanned))
            case ForwardRoute(request, has_records):
                self._order.asked(request.skeleton[0], _Note(request.number, None))
                metrics.requests.labels("linked").inc()
                metrics.linked_bytes.inc(request.linked_bytes)
                whole = encode_route_request(request)
                self._channel.send(MessageKind.ZONE_ROUTE_REQUEST, *whole, records=None if has_records else ())
            case SendOriginal(number, frame):
                metrics.requests.labels("original").inc()
                head, scanned = encode_number(number), scan_produce_request(frame, MIN_TRANSACTIONAL_VERSION)
                self._channel.send(MessageKind.ORIGINAL, head, frame, records=_records_in(scanned, len(head)))
