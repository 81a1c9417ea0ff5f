"""The event loop on which the requests to stores run, and how threads ask there.

A store's connections belong to one event loop. In an agent that is the agent's own (`use_loop`). Elsewhere, as in
commands and in Spark's executors, the first question starts one in a thread of its own.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError
from typing import Any, Final, TypeVar

import uvloop

from plugin.errors import RemoteStorageError

T = TypeVar("T")

_LOOK_S: Final = 1.0
"""How often a thread that waits checks whether the loop was closed meanwhile (guessed)."""
_lock = threading.Lock()
_loops: list[asyncio.AbstractEventLoop] = []
"""The loop, if there is one yet."""
os.register_at_fork(after_in_child=_loops.clear)


def use_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run all requests of this process to object stores on this event loop."""
    _loops[:] = [loop]


def ask(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the store's event loop and return its result. Blocks; for threads other than the loop's."""
    loop = _running_loop()
    if _is_here(loop):
        coroutine.close()
        raise RuntimeError("a question that blocks was asked on the event loop that has to answer it")
    asked = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        while True:
            try:
                return asked.result(_LOOK_S)
            except TimeoutError:
                if asked.done():
                    raise
                if loop.is_closed():
                    raise _closed() from None
            except CancelledError:
                raise _closed() from None
    finally:
        del asked  # it holds the error, whose traceback holds this frame, and with it the request's body


def ask_each(parts: AsyncIterator[Iterable[T]]) -> Iterator[T]:
    """Yield the items of all parts of an async iterator, run on the store's event loop. Blocks like `ask`."""
    while (part := ask(_next(parts))) is not None:
        yield from part


async def _next(parts: AsyncIterator[Iterable[T]]) -> Iterable[T] | None:
    return await anext(parts, None)


def _is_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _running_loop() -> asyncio.AbstractEventLoop:
    with _lock:
        if not _loops or _loops[0].is_closed():
            use_loop(uvloop.new_event_loop())
            threading.Thread(target=_run, args=_loops, name="store-loop", daemon=True).start()
        return _loops[0]


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _closed() -> RemoteStorageError:
    return RemoteStorageError("wait", "-", "the program ends", label="closed")
