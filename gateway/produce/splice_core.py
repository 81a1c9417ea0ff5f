"""One connection of a gateway, at the agent beside the leader: requests are spliced and go on in order. Sans-IO.

Messages, ends of reads and the time go in; actions come out, to be done in their order.

Holds true:

- Frames go to the broker strictly in the order in which they came; reads run side by side, and who is ready waits for
  who is in front.
- A request goes to the broker once: spliced, or as the original. The original is asked for when the read failed, is
  late, or brought other bytes; from then on whatever the read brings is not looked at.
- A request may name objects of the gateway and incarnation that the connection's hello named, and of no other: nobody
  has a leader read what another wrote.
- What is held is bounded (`Window`): a gateway that sends more behind a request which waits is no gateway of ours, and
  its connection is closed. What is read is bounded by `reading_bytes`; who is beyond it waits for its turn.

When the connection ends, what did not go to the broker is dropped, so no request is produced after its client is gone.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gateway.produce.request_splicer import RouteSpliceError, splice_request
from gateway.produce.route_core import DEFAULT_WINDOW, Window
from gateway.produce.route_request import ZoneRouteRequest, decode_route_request
from kafka_log.crc32c import Buffer
from plugin.router_object_id import RouterObjectId
from replication.wire.kafka_frame import MalformedFrameError


@dataclass(frozen=True, slots=True)
class SpliceLimits:
    """Of one connection; sizes in bytes."""

    read_wait_max_s: float
    """From when a request came."""
    max_frame_bytes: int
    reading_bytes: int = 32 * 1024 * 1024
    """At once; one request may be larger."""
    window: Window = DEFAULT_WINDOW


class AskReason(Enum):
    """Why a request is asked for inline; the value labels a counter."""

    FAILED = "read_failed"
    LATE = "read_late"
    CORRUPT = "corrupt"


class Read(NamedTuple):
    """Read these bytes of an object; `was_read` or `not_read` is to follow."""

    number: int
    object_id: RouterObjectId
    start_position: int
    end_position: int
    custom_metadata: bytes


class ToBroker(NamedTuple):
    """Send one frame made of these buffers."""

    buffers: list[Buffer]


class Spliced(NamedTuple):
    """The request was put together out of these bytes of its object, and goes to the broker when it is in front."""

    request: ZoneRouteRequest
    content: Buffer


class AskInline(NamedTuple):
    """Ask the gateway for the original of this request."""

    number: int
    reason: AskReason


Action = Read | ToBroker | Spliced | AskInline


@dataclass(slots=True)
class _Held:
    """A frame that has not gone to the broker."""

    size_bytes: int
    """As it came, for the window."""
    ready: list[Buffer] | None = None
    request: ZoneRouteRequest | None = None
    came_s: float = 0.0
    is_reading: bool = False
    is_asked: bool = False


class SpliceCore:
    """See the module's theory. All times are monotonic seconds."""

    def __init__(self, limits: SpliceLimits, gateway_id: int, incarnation: int, *, tells_spliced: bool = False) -> None:
        """Of the connection's hello. `tells_spliced` is whether `Spliced` is wanted."""
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
        """A Kafka frame as the client sent it. Raises MalformedFrameError."""
        if not self._held:
            return [ToBroker([frame])]
        self._hold(_Held(len(frame), [frame]))
        return []

    def request_came(self, payload: Buffer, now_s: float) -> list[Action]:
        """A ZoneRouteRequest. Raises MalformedFrameError."""
        request = decode_route_request(payload, self._limits.max_frame_bytes)
        if request.object_id[:2] != self._writer:
            raise MalformedFrameError(0, f"{request.object_id} is not of gateway {self._writer}")
        if request.number < self._next_number:
            raise MalformedFrameError(0, f"request {request.number} comes after {self._next_number - 1}")
        self._next_number = request.number + 1
        held = _Held(request.original_frame_bytes - request.linked_bytes, request=request, came_s=now_s)
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
        """What the object holds there."""
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
        """The read failed, or is not even tried."""
        held = self._read_ended(number)
        asked = [] if held is None else [self._ask(number, held, AskReason.FAILED)]
        return [*asked, *self._begin_reads()]

    def look_again(self, now_s: float) -> list[Action]:
        """Time has passed."""
        actions: list[Action] = []
        for number, held in list(self._pending.items()):
            if not held.is_asked and now_s >= held.came_s + self._limits.read_wait_max_s:
                self._read_ended(number)
                actions.append(self._ask(number, held, AskReason.LATE))
        return [*actions, *self._begin_reads()]

    def original_came(self, number: int, frame: Buffer) -> list[Action]:
        """What was asked for. Raises MalformedFrameError."""
        held = self._pending.pop(number, None)
        if held is None or not held.is_asked or held.request is None:
            raise MalformedFrameError(0, f"the original of request {number}, which was not asked for")
        if len(frame) != held.request.original_frame_bytes:
            raise MalformedFrameError(0, f"an original of {len(frame)} bytes, not {held.request.original_frame_bytes}")
        held.ready, held.request = [frame], None
        return self._go_on()

    def _read_ended(self, number: int) -> _Held | None:
        """None when nobody waits for it any more."""
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
        """What is in front and ready goes to the broker."""
        return list(self._ready())

    def _ready(self) -> Iterator[Action]:
        while self._held and (ready := self._held[0].ready) is not None:
            self._held_bytes -= self._held.popleft().size_bytes
            yield ToBroker(ready)
