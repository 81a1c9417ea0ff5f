"""TCP between processes that are none: what is written arrives later, in parts, or never, as a seed says.

`VirtualTimeLoop` hands over its own seams for connections: `create_server`, `create_connection`, `sock_accept` and
`connect_accepted_socket`. Whose a connection is, and where that one stands, is told by `PROCESS`, which tasks inherit.
An end's callbacks run in the context in which its owner opened it.

What TCP promises is kept: bytes arrive in order or not at all, and who has closed gets nothing more. Who stops reading
stops who writes. Between two zones that are cut apart everything waits, as TCP sends it again, until they are joined.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.virtual_time import VirtualTimeLoop

PROCESS: ContextVar[str] = ContextVar("PROCESS", default="")
"""Whose code runs."""
KERNEL_BYTES = 256 * 1024
"""So much of what was written is the kernel's, in both of its buffers; the rest is the transport's."""
_FIRST_PORT = 40_000
Where = tuple[str, int]


class Network:
    def __init__(self, loop: "VirtualTimeLoop") -> None:
        self.loop = loop
        self.hit: Callable[[str], None] = lambda _: None
        self.rng = random.Random(0)
        self.slowest_s = 0.002
        self.splits = 0.1
        """How often what is sent arrives in two parts."""
        self.zone_of: dict[str, int] = {}
        """By process; who is not listed is in all zones."""
        self._apart: set[frozenset[int]] = set()
        self._listening: dict[Where, Listening] = {}
        self._ends: dict[End, None] = {}
        self._joined = asyncio.Event()
        self._next_port = _FIRST_PORT

    # Where.

    def is_cut(self, one: str, other: str) -> bool:
        """Whether nothing goes between these two processes now."""
        zones = self.zone_of.get(one), self.zone_of.get(other)
        return frozenset(zone for zone in zones if zone is not None) in self._apart

    def cut_apart(self, one: int, other: int) -> None:
        self._apart.add(frozenset((one, other)))

    def join(self) -> None:
        self._apart.clear()
        self._joined.set()
        self._joined = asyncio.Event()
        for end in list(self._ends):
            end.go_on()

    def delay_s(self) -> float:
        rng = self.rng
        longest_s = self.slowest_s * (50 if rng.random() < 0.01 else 1)
        return rng.uniform(0.0001, longest_s)

    # Who listens.

    def listen(self, where: Where, accepted: Callable[["End"], None]) -> "Listening":
        """Raises OSError when somebody listens there."""
        host, port = where
        if not port:
            port, self._next_port = self._next_port, self._next_port + 1
        if (host, port) in self._listening:
            raise OSError(98, f"{host}:{port} is in use")
        listening = self._listening[host, port] = Listening(self, (host, port), accepted)
        return listening

    def no_longer(self, listening: "Listening") -> None:
        if self._listening.get(listening.where) is listening:
            del self._listening[listening.where]

    async def connect(self, where: Where) -> "End":
        """Raises ConnectionRefusedError. Nobody is told while zones are cut apart."""
        process = PROCESS.get()
        await asyncio.sleep(self.delay_s())
        while (listening := self._listening.get(where)) is not None and self.is_cut(process, listening.process):
            await self._joined.wait()
        if listening is None:
            raise ConnectionRefusedError(111, f"nobody listens at {where[0]}:{where[1]}")
        near, far = End(self, process, copy_context(), where), End(self, listening.process, listening.context, where)
        near.peer, far.peer = far, near
        self._ends |= {near: None, far: None}
        self.loop.call_later(self.delay_s(), listening.take, far, context=listening.context)
        return near

    def gone(self, end: "End") -> None:
        self._ends.pop(end, None)

    # What happens to them.

    def connections(self, process: str | None = None) -> "list[End]":
        """One end of each that is open, of this process if one is named."""
        return [end for end in self._ends if not end.is_lost and process in (None, end.process)]

    def cut(self, end: "End") -> None:
        """The connection breaks: some of what is on its way arrives, and both learn of it."""
        for each in (end, end.peer):
            each.lose_what_is_under_way(self.rng)
            each.reset(self.delay_s())

    def kill(self, process: str) -> None:
        """Its kernel closes what it had; its code is told nothing."""
        for listening in [each for each in self._listening.values() if each.process == process]:
            listening.close()
        for end in self.connections(process):
            end.lose_what_is_under_way(self.rng)
            end.die()


class Listening:
    """Who listens somewhere: an `asyncio.Server`, and a socket, as far as they are used."""

    def __init__(self, network: Network, where: Where, accepted: Callable[["End"], None]) -> None:
        self._network = network
        self.where = where
        self.process = PROCESS.get()
        self.context = copy_context()
        self._accepted = accepted
        self.sockets = [self]

    def take(self, end: "End") -> None:
        if self._network._listening.get(self.where) is self:
            self._accepted(end)
        else:
            end.abort()

    def getsockname(self) -> Where:
        return self.where

    def close(self) -> None:
        self._network.no_longer(self)


class ListeningSocket:
    """A socket as a service manager hands it over; connections wait until they are accepted."""

    def __init__(self, network: Network, where: Where) -> None:
        self._network = network
        self._where = where
        self._waiting: deque[End] = deque()
        self._accepting: deque[asyncio.Future[End]] = deque()
        self._listening: Listening | None = None

    def setblocking(self, _flag: bool) -> None:
        pass

    def listen(self, _backlog: int) -> None:
        self._listening = self._network.listen(self._where, self._came)

    def _came(self, end: "End") -> None:
        while self._accepting:
            accepting = self._accepting.popleft()
            if not accepting.done():
                accepting.set_result(end)
                return
        self._waiting.append(end)

    async def accept(self) -> "tuple[AcceptedSocket, Where]":
        if not self._waiting:
            accepting = self._network.loop.create_future()
            self._accepting.append(accepting)
            self._waiting.append(await accepting)
        end = self._waiting.popleft()
        return AcceptedSocket(end), (end.peer.process, 0)

    def getsockname(self) -> Where:
        return self._listening.where if self._listening is not None else self._where

    def close(self) -> None:
        if self._listening is not None:
            self._listening.close()


class AcceptedSocket:
    """A connection that nobody has made a transport of."""

    def __init__(self, end: "End") -> None:
        self.end = end

    def close(self) -> None:
        self.end.abort()


class End(asyncio.Transport):
    """One side of a connection. What the other one writes goes into `_arrived`, and from there to the protocol."""

    peer: "End"

    def __init__(self, network: Network, process: str, context: Context, where: Where) -> None:
        super().__init__()
        self.process = process
        self.where = where
        """Where it was opened to, at both ends."""
        self._network, self._loop = network, network.loop
        self._context = context
        self._protocol: asyncio.BaseProtocol | None = None
        self._under_way: deque[bytes | None] = deque()
        """What was written here and has not arrived there; None is the end of it."""
        self._under_way_bytes = 0
        self._next_arrival_s = 0.0
        self._lost_times = 0
        """How often what was under way was lost: what is due of that never arrives."""
        self._is_cut = False
        """Something was lost on its way, so nothing that follows it arrives."""
        self._held = 0
        """So many arrivals are due, and wait for zones to be joined."""
        self._arrived: deque[bytes] = deque()
        self._arrived_bytes = 0
        self._has_ended = False
        self._reads = True
        self._is_closing = False
        self.is_lost = False
        self._high_bytes = 64 * 1024
        self._writing_paused = False

    # As a transport.

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        self._soon(self._hand_on)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is not None:
            self._high_bytes = high

    def get_write_buffer_size(self) -> int:
        return max(self._under_way_bytes + self.peer._arrived_bytes - KERNEL_BYTES, 0)

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing and data:
            self._send(bytes(data))
            self._update_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True
        self._soon(self._hand_on)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._send(None)
            self._lose_when_written()

    def abort(self) -> None:
        if not self.is_lost:
            self._is_closing = True
            self._forget_under_way()
            self.peer.reset(self._network.delay_s())
            self._lost(None)

    # On the way.

    def _send(self, data: bytes | None) -> None:
        if self._is_cut:
            return
        pieces: list[bytes | None] = [data]
        if data is not None:
            self._under_way_bytes += len(data)
            if len(data) > 1 and self._network.rng.random() < self._network.splits:
                at = self._network.rng.randrange(1, len(data))
                pieces = [data[:at], data[at:]]
        for piece in pieces:
            self._under_way.append(piece)
            self._next_arrival_s = max(self._next_arrival_s + 1e-6, self._loop.time() + self._network.delay_s())
            self._loop.call_at(self._next_arrival_s, self._due, self._lost_times, context=self.peer._context)

    def _due(self, lost_times: int) -> None:
        if lost_times != self._lost_times:
            return
        if self._held or self._network.is_cut(self.process, self.peer.process):
            self._held += 1
        else:
            self._arrive()

    def go_on(self) -> None:
        for _ in range(self._held):
            self._held -= 1
            self._loop.call_soon(self._due_again, self._lost_times, context=self.peer._context)

    def _due_again(self, lost_times: int) -> None:
        if lost_times == self._lost_times:
            self._arrive()

    def _arrive(self) -> None:
        data = self._under_way.popleft()
        self._under_way_bytes -= 0 if data is None else len(data)
        if self.is_lost and not self._under_way:
            self._network.gone(self)
        self.peer._came(data)
        self._update_writing()
        if self._is_closing:
            self._lose_when_written()

    def _came(self, data: bytes | None) -> None:
        if self._is_closing:
            if data is not None:
                self.peer.reset(self._network.delay_s())
            return
        if data is None:
            self._has_ended = True
        else:
            self._arrived.append(data)
            self._arrived_bytes += len(data)
        self._hand_on()

    def _hand_on(self) -> None:
        protocol = self._protocol
        while protocol is not None and self._arrived and self._reads and not self._is_closing:
            data = self._arrived.popleft()
            if isinstance(protocol, asyncio.BufferedProtocol):
                into = memoryview(protocol.get_buffer(-1))
                taken = min(len(into), len(data))
                into[:taken] = data[:taken]
                if taken < len(data):
                    self._arrived.appendleft(data[taken:])
                self._arrived_bytes -= taken
                protocol.buffer_updated(taken)
            else:
                self._arrived_bytes -= len(data)
                assert isinstance(protocol, asyncio.Protocol)
                protocol.data_received(data)
        if protocol is not None and self._has_ended and not self._arrived and self._reads and not self._is_closing:
            self._has_ended = False
            assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
            if not protocol.eof_received():
                self.close()
        self.peer._update_writing()
        if self.peer._is_closing:
            self.peer._lose_when_written()

    def _update_writing(self) -> None:
        size, protocol = self.get_write_buffer_size(), self._protocol
        if protocol is None or self.is_lost:
            return
        if size > self._high_bytes and not self._writing_paused:
            self._writing_paused = True
            protocol.pause_writing()
        elif size <= self._high_bytes // 4 and self._writing_paused:
            self._writing_paused = False
            protocol.resume_writing()

    # Ends.

    def reset(self, after_s: float) -> None:
        """The other side wants no more, or is gone."""
        if not self.is_lost:
            self._loop.call_later(after_s, self._was_reset, context=self._context)

    def _was_reset(self) -> None:
        if self._network.is_cut(self.process, self.peer.process):
            self.reset(1.0)
        elif not self.is_lost:
            self._is_closing = True
            self._forget_under_way()
            self._lost(ConnectionResetError(104, "reset by peer"))

    def lose_what_is_under_way(self, rng: random.Random) -> None:
        """But for some of its first bytes: perhaps the half of a frame."""
        sent = [piece for piece in self._under_way if piece is not None]
        whole = b"".join(sent)
        self._forget_under_way()
        self._is_cut = True
        kept = whole[: rng.randint(0, len(whole))]
        if kept:
            self._network.hit("half of a frame")
            self._under_way_bytes += len(kept)
            self._under_way.append(kept)
            self._loop.call_soon(self._due, self._lost_times, context=self.peer._context)

    def _forget_under_way(self) -> None:
        self._lost_times += 1
        self._under_way.clear()
        self._under_way_bytes = self._held = 0

    def die(self) -> None:
        """The process is gone; nobody here is told."""
        if not self.is_lost:
            self.is_lost = self._is_closing = True
            self._protocol = None
            self._network.gone(self)
            self.peer.reset(self._network.delay_s())

    def _lose_when_written(self) -> None:
        if not self.is_lost and not self.get_write_buffer_size():
            self._lost(None)

    def _lost(self, error: Exception | None) -> None:
        self.is_lost = True
        if not self._under_way:
            self._network.gone(self)
        protocol = self._protocol
        if protocol is not None:
            self._soon(lambda: protocol.connection_lost(error))

    def _soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call, context=self._context)
