"""An event loop whose time jumps to the next timer when nothing is ready, and executors that run calls on its thread.

Nothing here waits, and nothing depends on the machine: the same seed gives the same run.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import suppress
from contextvars import Context
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from tests.simulation.network import PROCESS, AcceptedSocket, ListeningSocket, Network

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SPINS_MAX = 20_000
"""So many rounds of the loop without a step of time are taken for a loop that never ends."""


class NothingEverHappensError(Exception):
    """All wait, and nothing is scheduled."""


class SpinningError(Exception):
    """The loop goes round and round at one moment."""


class _JumpingSelector:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self._spins = 0

    def select(self, timeout_s: float | None) -> list[Any]:
        if timeout_s is None:
            raise NothingEverHappensError
        if timeout_s > 0:
            self.now_s += timeout_s
            self._spins = 0
        else:
            self._spins += 1
            if self._spins > SPINS_MAX:
                self._spins = 0
                raise SpinningError(f"at {self.now_s}")
        return []

    def close(self) -> None:
        pass


class _Nothing(asyncio.Handle):
    def __init__(self) -> None:
        self._cancelled = True


_NOTHING = _Nothing()


_context_of: Callable[[asyncio.Handle], Context] = attrgetter("_context")
"""It has no other name before Python 3.12."""


class _Held(deque[asyncio.Handle]):
    """The loop's queue, while some processes stand still."""

    def __init__(self, ready: Iterable[asyncio.Handle]) -> None:
        super().__init__(ready)
        self.of: dict[str, list[asyncio.Handle]] = {}

    def popleft(self) -> asyncio.Handle:
        handle = super().popleft()
        held = self.of.get(_context_of(handle).get(PROCESS, ""))
        if held is None or handle.cancelled():
            return handle
        held.append(handle)
        return _NOTHING


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """See the module's summary. Readers are called when `readable` says so; connections are those of `network`."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _JumpingSelector()
        self._readers: dict[FileDescriptorLike, Callable[[], object]] = {}
        self.default_executor: Executor | None = None
        self.network = Network(self)
        self._ready: deque[asyncio.Handle]

    def time(self) -> float:
        return self._selector.now_s

    def pause(self, process: str) -> None:
        """A process stands still, as by SIGSTOP: what is its turn waits."""
        if not isinstance(self._ready, _Held):
            self._ready = _Held(self._ready)
        self._ready.of.setdefault(process, [])

    def resume(self, process: str) -> None:
        assert isinstance(self._ready, _Held)
        self._ready += self._ready.of.pop(process)
        if not self._ready.of:
            self._ready = deque(self._ready)

    def jump(self, seconds: float) -> None:
        """Time passes without anybody running, as when the process is stopped or the machine is suspended."""
        self._selector.now_s += seconds

    def add_reader(self, fd: "FileDescriptorLike", callback: Callable[[*Ts], object], *args: *Ts) -> None:
        self._readers[fd] = partial(callback, *args)

    def remove_reader(self, fd: "FileDescriptorLike") -> bool:
        return self._readers.pop(fd, None) is not None

    def readable(self, fd: int, is_readable: Callable[[], bool]) -> None:
        """Call who listens to `fd`, as long as there is something to read when it is its turn."""

        def turn() -> None:
            listening = self._readers.get(fd)
            if listening is not None and is_readable():
                listening()
                self.call_soon(turn)

        self.call_soon(turn)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        executor = executor or self.default_executor
        if isinstance(executor, SeededExecutor):  # it is on this thread, so nothing has to be handed over
            return executor.call(func, args, asyncio.Future(loop=self))
        return super().run_in_executor(executor, func, *args)

    async def create_server(self, protocol_factory: Any, *where: Any, **options: Any) -> Any:
        assert options.get("ssl") is None
        return self.network.listen((where[0], where[1]), lambda end: end.begin(protocol_factory()))

    async def getaddrinfo(self, host: Any, port: Any, **_options: Any) -> Any:
        """Every host has one address, its name, and is found at once."""
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    async def create_connection(self, protocol_factory: Any, *where: Any, **options: Any) -> Any:
        assert options.get("ssl") is None
        end = await self.network.connect((where[0], where[1]))
        protocol = protocol_factory()
        end.begin(protocol)
        return end, protocol

    async def sock_accept(self, sock: Any) -> Any:
        assert isinstance(sock, ListeningSocket)
        return await sock.accept()

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **options: Any) -> Any:
        assert isinstance(sock, AcceptedSocket)
        assert options.get("ssl") is None
        protocol = protocol_factory()
        sock.end.begin(protocol)
        return sock.end, protocol

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Who calls is on this very thread, so nobody is to be woken."""


Delays = tuple[float, float]
"""In seconds: until a call takes effect, and from then on until its caller learns of that."""


Ended = Callable[[Callable[..., Any], tuple[Any, ...], Any], None]
"""Told of a call, its arguments, and what it returned; None, if it raised."""


class _Call:
    """One call in a pool that has no threads."""

    def __init__(
        self,
        pool: "SeededExecutor",
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        future: Future[Any] | asyncio.Future[Any],
    ) -> None:
        self.future = future
        self._pool = pool
        self.function = function
        self._arguments = arguments
        self._result: Any = None
        self._error: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_made = False

    def begin(self, delays: Delays) -> bool:
        """False when it was cancelled before a thread had time for it."""
        if isinstance(self.future, asyncio.Future):
            if self.future.cancelled():
                return False
        elif not self.future.set_running_or_notify_cancel():
            return False
        self._timer = self._pool.loop.call_later(delays[0], self._take_effect, delays[1])
        return True

    def _take_effect(self, until_told_s: float) -> None:
        self.make()
        self._timer = self._pool.loop.call_later(until_told_s, self.tell)

    def make(self) -> None:
        """Take effect, if it has not yet."""
        if self._is_made:
            return
        self._is_made = True
        try:
            self._result = self._pool.around(self.function, self._arguments)
        except Exception as error:
            self._error = error

    def tell(self) -> None:
        self._pool.told(self, self.function, self._arguments, self._result)
        if self.future.cancelled():  # nobody waits any more
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._result)

    def stop(self) -> None:
        """Nothing more happens by itself."""
        if self._timer is not None:
            self._timer.cancel()


class SeededExecutor(Executor):
    """A pool of so many threads that are none: calls take effect later, in any order across pools.

    `delays` is asked for each call; `ended` is told of each when its caller learns of it.
    """

    def __init__(
        self,
        loop: VirtualTimeLoop,
        threads: int,
        delays: Callable[[], Delays],
        ended: Ended = lambda _function, _arguments, _result: None,
    ) -> None:
        self.loop = loop
        self._idle = threads
        self._delays = delays
        self._ended = ended
        self._queued: deque[_Call] = deque()
        self._running: dict[_Call, None] = {}
        self._is_shut = False
        self.around: Callable[[Callable[..., Any], tuple[Any, ...]], Any] = lambda function, given: function(*given)
        """Makes each call."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self._queue(_Call(self, partial(function, **options) if options else function, arguments, future))
        return future

    def call(
        self, function: Callable[..., T], arguments: tuple[Any, ...], future: asyncio.Future[T]
    ) -> asyncio.Future[T]:
        """As `submit`, for who waits on the loop."""
        self._queue(_Call(self, function, arguments, future))
        return future

    def _queue(self, call: _Call) -> None:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self._queued.append(call)
        self._begin()

    def _begin(self) -> None:
        while self._idle and self._queued:
            call = self._queued.popleft()
            if call.begin(self._delays()):
                self._idle -= 1
                self._running[call] = None

    def told(self, call: _Call, function: Callable[..., Any], arguments: tuple[Any, ...], result: Any) -> None:
        del self._running[call]
        self._idle += 1
        self._ended(function, arguments, result)
        self._begin()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What runs ends now if it is waited for, and takes its course otherwise."""
        self._is_shut = True
        if cancel_futures:
            for call in self._queued:
                call.future.cancel()
            self._queued.clear()
        for call in list(self._running) if wait else ():
            call.stop()
            call.make()
            call.tell()

    @property
    def running(self) -> list[Callable[..., Any]]:
        """What has begun and did not end."""
        return [call.function for call in self._running]

    def crash(self, takes_effect: Callable[[], bool]) -> None:
        """The process is gone. What runs may take effect all the same, and nobody learns of it."""
        self._is_shut = True
        self._queued.clear()
        for call in self._running:
            call.stop()
            if takes_effect():
                call.make()
        self._running.clear()


def run(loop: VirtualTimeLoop, main: Any) -> Any:
    """As `asyncio.run`, on this loop."""
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            with suppress(NothingEverHappensError):
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()
