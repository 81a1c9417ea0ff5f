"""Splices the requests of one gateway connection, at the agent beside the leader, and sends them in order. Sans-IO.

It takes messages, ends of reads and the time, and returns actions to be done in their order.

- Frames go to the broker strictly in the order in which they came; reads run side by side, and a ready frame waits for
  those in front.
- A request goes to the broker once: spliced, or as the original. The original is requested when the read failed, is
  late, or gave other bytes; from then on the read's result is ignored.
- A request may only name objects of the gateway and incarnation in the connection's hello: nobody can make a leader
  read what another gateway wrote.
- What is held is bounded (`Window`): a gateway that sends more behind a waiting request is not one of ours, and its
  connection is closed. Reads are bounded by `reading_bytes`; requests beyond it wait for their turn.

When the connection ends, what did not go to the broker is dropped, so no request is produced after its client is gone.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gateway.produce.route_core import DEFAULT_WINDOW, Window
from gateway.produce.route_request import RouteSpliceError, ZoneRouteRequest, decode_route_request, splice_request
from kafka_log.crc32c import Buffer
from plugin.router_object_id import RouterObjectId
from replication.wire.kafka_frame import MalformedFrameError


@dataclass(frozen=True, slots=True)
class SpliceLimits:
    """Limits of one gateway's connection at the leader's agent; sizes in bytes."""

    read_wait_max_s: float
    """Measured from the arrival of a request."""
    max_frame_bytes: int
    reading_bytes: int = 32 * 1024 * 1024
    """Bytes read at the same time; one request may be larger."""
    window: Window = DEFAULT_WINDOW


class AskReason(Enum):
    """Why the original of a request is asked for; the value labels a counter."""

    FAILED = "read_failed"
    LATE = "read_late"
    CORRUPT = "corrupt"


class Read(NamedTuple):
    """An action: read these bytes of an object; `was_read` or `not_read` must follow."""

    number: int
    object_id: RouterObjectId
    start_position: int
    end_position: int
    custom_metadata: bytes


class ToBroker(NamedTuple):
    """An action: send one frame made of these buffers to the broker."""

    buffers: list[Buffer]
    number: int | None = None
    """The number of the ZoneRouteRequest that it was; None: it came as a Kafka frame."""


class Spliced(NamedTuple):
    """An event: the request was put together from these bytes of its object, and will be sent in its turn."""

    request: ZoneRouteRequest
    content: Buffer


class AskInline(NamedTuple):
    """An action: ask the gateway for the original of this request."""

    number: int
    reason: AskReason


Action = Read | ToBroker | Spliced | AskInline


@dataclass(slots=True)
class _Held:
    """A frame that was not sent to the broker yet."""

    size_bytes: int
    """Size as it came, for the window."""
    ready: list[Buffer] | None = None
    number: int | None = None
    request: ZoneRouteRequest | None = None
    came_s: float = 0.0
    is_reading: bool = False
    is_asked: bool = False


class SpliceCore:
    """The requests of one gateway's connection at the leader's agent. All times are monotonic seconds."""

    def __init__(self, limits: SpliceLimits, gateway_id: int, incarnation: int, *, tells_spliced: bool = False) -> None:
        """Gateway id and incarnation are from the connection's hello. `tells_spliced`: whether to return `Spliced`."""
        self._tells_spliced = tells_spliced
        self._limits = limits
        self._writer = gateway_id, incarnation
        self._held: deque[_Held] = deque()
        self._pending: dict[int, _Held] = {}
        """Requests that are neither spliced nor there as originals, by number, in their order."""
        self._held_bytes = self._reading_bytes = 0
        self._next_number = 0

    @property
    def deadline_s(self) -> float | None:
        """When to call `look_again`; None: not before something happens."""
        first = next((one for one in self._pending.values() if not one.is_asked), None)
        return None if first is None else first.came_s + self._limits.read_wait_max_s

    def frame_came(self, frame: Buffer) -> list[Action]:
        """Handle a Kafka frame as the client sent it. Raises MalformedFrameError."""
        if not self._held:
            return [ToBroker([frame])]
        self._hold(_Held(len(frame), [frame]))
        return []

    def request_came(self, payload: Buffer, now_s: float) -> list[Action]:
        """Handle a ZoneRouteRequest. Raises MalformedFrameError."""
        request = decode_route_request(payload, self._limits.max_frame_bytes)
        if request.object_id[:2] != self._writer:
            raise MalformedFrameError(0, f"{request.object_id} is not of gateway {self._writer}")
        if request.number < self._next_number:
            raise MalformedFrameError(0, f"request {request.number} comes after {self._next_number - 1}")
        self._next_number = request.number + 1
        held = _Held(request.original_frame_bytes - request.linked_bytes, None, request.number, request, now_s)
        self._hold(held)
        self._pending[request.number] = held
        return self._begin_reads()

    def _hold(self, held: _Held) -> None:
        behind_first_bytes = self._held_bytes - (self._held[0].size_bytes if self._held else 0)
        if self._held and not self._limits.window.has_room(len(self._held) - 1, behind_first_bytes):
            raise MalformedFrameError(0, f"{len(self._held)} frames of {self._held_bytes} bytes wait already")
        self._held.append(held)
        self._held_bytes += held.size_bytes

    def _begin_reads(self) -> list[Action]:
        reads: list[Action] = []
        for number, held in self._pending.items():
            if held.is_reading or held.is_asked or held.request is None:
                continue
            request = held.request
            if self._reading_bytes and self._reading_bytes + request.linked_bytes > self._limits.reading_bytes:
                break
            held.is_reading = True
            self._reading_bytes += request.linked_bytes
            reads.append(
                Read(number, request.object_id, request.start_position, request.end_position, request.custom_metadata)
            )
        return reads

    def was_read(self, number: int, content: Buffer) -> list[Action]:
        """Handle a successful read with these bytes."""
        held = self._read_ended(number)
        if held is None or held.request is None:
            return self._begin_reads()
        try:
            held.ready = splice_request(held.request, content)
        except RouteSpliceError:
            return [self._ask(number, held, AskReason.CORRUPT), *self._begin_reads()]
        spliced = [Spliced(held.request, content)] if self._tells_spliced else []
        held.request = None
        del self._pending[number]
        return [*spliced, *self._go_on(), *self._begin_reads()]

    def not_read(self, number: int) -> list[Action]:
        """Handle a read that failed, or was not tried."""
        held = self._read_ended(number)
        asked = [] if held is None else [self._ask(number, held, AskReason.FAILED)]
        return [*asked, *self._begin_reads()]

    def look_again(self, now_s: float) -> list[Action]:
        """Handle the passing of time; call it at `deadline_s`."""
        actions: list[Action] = []
        for number, held in list(self._pending.items()):
            if not held.is_asked and now_s >= held.came_s + self._limits.read_wait_max_s:
                self._read_ended(number)
                actions.append(self._ask(number, held, AskReason.LATE))
        return [*actions, *self._begin_reads()]

    def original_came(self, number: int, frame: Buffer) -> list[Action]:
        """Handle an original that was asked for. Raises MalformedFrameError."""
        held = self._pending.pop(number, None)
        if held is None or not held.is_asked or held.request is None:
            raise MalformedFrameError(0, f"the original of request {number}, which was not asked for")
        if len(frame) != held.request.original_frame_bytes:
            raise MalformedFrameError(0, f"an original of {len(frame)} bytes, not {held.request.original_frame_bytes}")
        held.ready, held.request = [frame], None
        return self._go_on()

    def _read_ended(self, number: int) -> _Held | None:
        """Return the request; None when nobody waits for the read any more."""
        held = self._pending.get(number)
        if held is None or held.is_asked or held.request is None:
            return None
        if held.is_reading:
            self._reading_bytes -= held.request.linked_bytes
        held.is_reading = False
        return held

    def _ask(self, number: int, held: _Held, reason: AskReason) -> AskInline:
        held.is_asked = True
        return AskInline(number, reason)

    def _go_on(self) -> list[Action]:
        """Send the first frames that are ready to the broker."""
        return list(self._ready())

    def _ready(self) -> Iterator[Action]:
        while self._held and (ready := self._held[0].ready) is not None:
            held = self._held.popleft()
            self._held_bytes -= held.size_bytes
            yield ToBroker(ready, held.number)
