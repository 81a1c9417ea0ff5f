"""Decides for one client connection at the gateway how and in which order frames are sent, and what is kept. Sans-IO.

It takes frames, answers, ends of uploads and the time, and returns actions to be done in their order.

- Frames are sent strictly in the order in which they came, while uploads run side by side: a ready frame waits for
  those in front. If the upload of the first one has not ended `put_wait_max_s` after it came, it goes inline.
- One copy of a request reaches the broker. Either the frame is sent, or a ZoneRouteRequest, which is not yet a copy.
  The original follows at most once, when the leader's agent asks for it, which it does only instead of splicing. So the
  original of a ZoneRouteRequest is kept until its answer.
- What is kept is bounded: by requests and bytes here (`is_full`: do not read more from the client), and by how much
  follows a ZoneRouteRequest that may yet be requested inline, because the leader's agent holds that (`Window`).
- When a connection closes, its unsent requests are dropped. The client has had no answer, and may have sent them again
  on another connection.
- Requests with acks=0 go inline: no answer would show when the original may be dropped, and a client that closes its
  connection right after them relies on their being sent.

A request's number counts those of this connection that were offered to the RouterChannel. For each, either `Settled` or
`Left` comes once. If the leader's agent adopts (`adopts`), a spliced request also belongs to the write path until that
has said otherwise. So its `outcome` is awaited besides the answer, and if it was adopted, or nobody will say, it is
left.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gateway.produce.produce_frame import (
    ACKS_NONE,
    MIN_PRODUCE_VERSION,
    MIN_TRANSACTIONAL_VERSION,
    ProduceRequestView,
    Unread,
    scan_produce_request,
)
from gateway.produce.route_request import CutRequest, ZoneRouteRequest, cut_request
from kafka_log.crc32c import Buffer
from plugin.router_object_id import RouterObjectId
from replication.wire.kafka_frame import MalformedFrameError


@dataclass(frozen=True, slots=True)
class Window:
    """How much may be sent after a ZoneRouteRequest before its response. The leader's agent ends connections that
    send more."""

    frames: int = 64
    size_bytes: int = 32 * 1024 * 1024
    """One frame may be larger."""

    def has_room(self, frames: int, size_bytes: int) -> bool:
        """Whether one more frame may be sent after this many."""
        return frames < self.frames and size_bytes < self.size_bytes


DEFAULT_WINDOW: Final = Window()


@dataclass(frozen=True, slots=True)
class RouteLimits:
    """Limits of one client's connection at the gateway; sizes in bytes."""

    put_wait_max_s: float
    """Measured from the arrival of a request."""
    kept_requests: int = 64
    kept_bytes: int = 32 * 1024 * 1024
    """Limit for waiting requests and originals. One frame may be larger."""
    window: Window = DEFAULT_WINDOW


class StoredRecords(NamedTuple):
    """Where in an object a request's records are stored, one after the other."""

    object_id: RouterObjectId
    start_position: int
    custom_metadata: bytes


class Offer(NamedTuple):
    """An action: upload these records; `stored` or `not_stored` must follow, unless `Settled` comes before."""

    number: int
    records: list[memoryview]


class Settled(NamedTuple):
    """An action: the request no longer needs its stored or queued records."""

    number: int


class Left(NamedTuple):
    """An action: a log may refer to the request's records in their object, so the gateway must not delete it."""

    number: int


@dataclass(frozen=True, slots=True)
class ForwardInline:
    """An action: send this frame to the leader's agent unchanged."""

    frame: Buffer
    note: object = None
    """As it was given with the frame."""
    scanned: ProduceRequestView | Unread = field(default=Unread.OTHER_API, compare=False)
    """Where its records are."""


class ForwardRoute(NamedTuple):
    """An action: send this ZoneRouteRequest to the leader's agent."""

    request: ZoneRouteRequest
    has_records: bool
    """Whether some of its records were not cut out."""


class SendOriginal(NamedTuple):
    """An action: send this frame to the leader's agent in place of the routed request with this number."""

    number: int
    frame: Buffer


Action = Offer | Settled | Left | ForwardInline | ForwardRoute | SendOriginal


@dataclass(slots=True)
class _Pending:
    """A frame of the client, until it was sent inline or, as a ZoneRouteRequest, is answered."""

    frame: Buffer
    """Empty once the original was sent."""
    scanned: ProduceRequestView | Unread
    came_s: float
    note: object
    number: int = -1
    cut: CutRequest | None = None
    """None: it goes inline."""
    route: ZoneRouteRequest | None = None
    """Set once its records are stored."""
    frames_before: int = 0
    bytes_before: int = 0
    """Bytes sent by then, this request included."""

    @property
    def is_ready(self) -> bool:
        return self.cut is None or self.route is not None


class RouteCore:
    """The Produce requests of one client's connection at the gateway. All times are monotonic seconds."""

    def __init__(
        self,
        limits: RouteLimits,
        is_linked: Callable[[ProduceRequestView, int, float], bool] | None,
        *,
        adopts: bool = False,
    ) -> None:
        """`is_linked` decides for each request that could use object storage, by the size of its records; None: none.

        `adopts` says whether the leader's agent reports the outcome of each request that it splices.
        """
        self._adopts = adopts
        self._outcomes: dict[int, bool | None] = {}
        """Requests with an answer or an outcome but not both; None: it was answered."""
        self._limits = limits
        self._is_linked = is_linked
        self._waiting: deque[_Pending] = deque()
        self._offered: dict[int, _Pending] = {}
        """Requests whose upload has not ended, by number."""
        self._under_way: dict[int, _Pending] = {}
        """By number, in the order in which they were sent."""
        self._next_number = 0
        self._sent_frames = self._sent_bytes = 0
        self._kept_bytes = 0
        self._is_closed = False

    @property
    def is_full(self) -> bool:
        """Whether to stop reading from the client, because too much waits."""
        kept = len(self._waiting) + len(self._under_way)
        return kept >= self._limits.kept_requests or self._kept_bytes >= self._limits.kept_bytes

    @property
    def waiting(self) -> int:
        """How many frames were not sent to the leader's agent yet."""
        return len(self._waiting)

    @property
    def kept_bytes(self) -> int:
        """Bytes of waiting requests, and of originals kept until their response."""
        return self._kept_bytes

    @property
    def deadline_s(self) -> float | None:
        """When to call `look_again`; None: not before something happens."""
        first = self._waiting[0] if self._waiting else None
        if first is None or first.is_ready or not self._has_room():
            return None
        return first.came_s + self._limits.put_wait_max_s

    # Requests, from the client to the leader's agent.

    def frame_came(self, frame: Buffer, now_s: float, note: object = None) -> list[Action]:
        """Handle a complete frame of the client; if it is sent inline, `note` is sent along in the action."""
        if self._is_closed:
            return []
        scanned = scan_produce_request(frame, MIN_TRANSACTIONAL_VERSION)
        waiting = self._read(_Pending(frame, scanned, now_s, note))
        self._waiting.append(waiting)
        self._kept_bytes += len(frame)
        actions: list[Action] = []
        if waiting.cut is not None:
            self._offered[waiting.number] = waiting
            actions.append(Offer(waiting.number, waiting.cut.records))
        return [*actions, *self._go_on(now_s)]

    def _read(self, waiting: _Pending) -> _Pending:
        view = waiting.scanned
        if self._is_linked is None or isinstance(view, Unread) or view.acks == ACKS_NONE:
            return waiting
        cut = cut_request(waiting.frame, view) if view.api_version >= MIN_PRODUCE_VERSION else None
        if cut is not None and self._is_linked(view, cut.linked_bytes, waiting.came_s):
            waiting.cut, waiting.number = cut, self._next_number
            self._next_number += 1
        return waiting

    def stored(self, number: int, where: StoredRecords, now_s: float) -> list[Action]:
        """Record that the request's records are stored."""
        waiting = self._offered.pop(number, None)
        if waiting is not None and waiting.cut is not None:
            waiting.route = waiting.cut.routed(number, *where)
        return self._go_on(now_s)

    def not_stored(self, number: int, now_s: float) -> list[Action]:
        """Record that a request's records will not be stored, or that it is unknown: the request is sent inline."""
        waiting = self._offered.get(number)
        if waiting is None:
            return self._go_on(now_s)
        return [self._inline(waiting), *self._go_on(now_s)]

    def look_again(self, now_s: float) -> list[Action]:
        """Handle the passing of time; call it at `deadline_s`."""
        return self._go_on(now_s)

    def _go_on(self, now_s: float) -> list[Action]:
        """Send the first frames that are ready."""
        return list(self._steps(now_s))

    def _steps(self, now_s: float) -> Iterator[Action]:
        while self._waiting and self._has_room():
            first = self._waiting[0]
            if not first.is_ready:
                if now_s < first.came_s + self._limits.put_wait_max_s:
                    return
                yield self._inline(first)
            self._waiting.popleft()
            self._sent_frames += 1
            if first.route is None:
                self._kept_bytes -= len(first.frame)
                self._sent_bytes += len(first.frame)
                yield ForwardInline(first.frame, first.note, first.scanned)
            else:
                self._sent_bytes += len(first.frame) - first.route.linked_bytes
                first.frames_before, first.bytes_before = self._sent_frames, self._sent_bytes
                self._under_way[first.number] = first
                yield ForwardRoute(first.route, first.cut is None or not first.cut.has_all)

    def _inline(self, waiting: _Pending) -> Settled:
        waiting.cut = waiting.route = None
        self._offered.pop(waiting.number, None)
        return Settled(waiting.number)

    def _has_room(self) -> bool:
        oldest = next((one for one in self._under_way.values() if one.frame), None)
        if oldest is None:
            return True
        return self._limits.window.has_room(
            self._sent_frames - oldest.frames_before, self._sent_bytes - oldest.bytes_before
        )

    # What comes back from the leader's agent.

    def inline_asked(self, number: int, now_s: float) -> list[Action]:
        """Handle a request of the leader's agent for the original. Raises MalformedFrameError when it may not ask
        for it."""
        if self._is_closed:
            return []
        asked = self._under_way.get(number)
        if asked is None or not asked.frame:
            raise MalformedFrameError(0, f"request {number} is asked for inline and is not under way")
        frame, asked.frame, asked.cut, asked.route = asked.frame, b"", None, None
        self._kept_bytes -= len(frame)
        return [SendOriginal(number, frame), Settled(number), *self._go_on(now_s)]

    def outcome(self, number: int, adopted: bool) -> list[Action]:
        """Handle the outcome of a spliced request. Raises MalformedFrameError when it may not be reported."""
        if self._is_closed:
            return []
        if number in self._outcomes and self._outcomes.pop(number) is None:
            return [_ended(number, adopted)]
        request = self._under_way.get(number)
        if not self._adopts or request is None or not request.frame:
            raise MalformedFrameError(0, f"the outcome of request {number}, which is not under way")
        self._outcomes[number] = adopted
        return []

    def answered(self, number: int, now_s: float) -> list[Action]:
        """Handle the broker's response to a ZoneRouteRequest, or to its original."""
        if self._is_closed:
            return []
        return [*self._done(self._under_way.pop(number)), *self._go_on(now_s)]

    def _done(self, request: _Pending) -> list[Action]:
        if not request.frame:
            return []
        self._kept_bytes -= len(request.frame)
        if not self._adopts:
            return [Settled(request.number)]
        adopted = self._outcomes.pop(request.number, None)
        if adopted is None:
            self._outcomes[request.number] = None
            return []
        return [_ended(request.number, adopted)]

    def closed(self) -> list[Action]:
        """Handle the end of the client's or the agent's connection; the other must be ended as well."""
        actions: list[Action] = [Settled(one.number) for one in self._waiting if one.cut is not None]
        for request in self._under_way.values():
            actions += self._done(request)
        actions += [Left(number) for number in self._outcomes]
        self._outcomes.clear()
        self._is_closed = True
        self._waiting.clear()
        self._offered.clear()
        self._under_way.clear()
        self._kept_bytes = 0
        return actions


def _ended(number: int, adopted: bool) -> Action:
    return Left(number) if adopted else Settled(number)
