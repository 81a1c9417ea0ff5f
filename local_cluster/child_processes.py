"""Ends all started processes (brokers, agents, tools, Spark) when the program itself is told to end.

A cluster's processes lead sessions of their own, so that keys typed at a terminal do not reach them, and threads that
wait for a tool would wait on after an interrupt. So the first SIGTERM, SIGINT or SIGHUP kills every process that
descends from this one, and then unwinds the main thread as an interrupt does. Until that has come to its end, a thread
kills what others start meanwhile: who unwinds may wait for it. Descendants whose own parent has ended become this
process's children (prctl(2), PR_SET_CHILD_SUBREAPER).
"""

import contextlib
import ctypes
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_AGAIN_S = 1.0
"""What lives so long while all unwinds is no command of the cleanup."""


@contextlib.contextmanager
def ends_what_it_started(*, stays_if_done: bool = False) -> Iterator[None]:
    """End all started processes after a signal, by KeyboardInterrupt; for the main thread of a program.

    `stays_if_done`: they stay if the block ends without an exception.
    """
    told, unwound = False, threading.Event()

    def kill_until_unwound() -> None:
        before: set[int] = set()
        while not unwound.wait(_AGAIN_S):
            living = set(descendants(os.getpid()))
            for pid in living & before:
                _kill(pid)
            before = living

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal told
        first, told = not told, True
        kill_descendants()
        if first:  # a second one must not interrupt the cleanup
            threading.Thread(target=kill_until_unwound, name="ends what is started", daemon=True).start()
            raise KeyboardInterrupt

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = {number: signal.signal(number, end) for number in _SIGNALS}
    done = False
    try:
        yield
        done = True
    finally:
        unwound.set()
        if not (done and stays_if_done):
            kill_descendants()
        for number, handler in before.items():
            signal.signal(number, handler)


def kill_descendants() -> None:
    """Send SIGKILL to every descendant of this process, until none is left."""
    while living := descendants(os.getpid()):
        for pid in living:
            _kill(pid)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Return the living descendants. Source: proc(5), /proc/pid/stat, fields 3 and 4."""
    children = defaultdict(list)
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (directory / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state not in ("Z", "X"):
            children[int(parent)].append(int(directory.name))
    found = list(children[pid])
    for one in found:  # grows meanwhile
        found += children[one]
    return found
