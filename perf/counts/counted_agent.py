"""`python -m perf.counts.counted_agent agent ...`: an agent that counts what it does, from one signal to the next.

SIGUSR1 begins to count, SIGUSR2 ends it and writes what was counted, as JSON, to the file that the environment names.
Calls are those on the event loop's thread, which is the main one, where signals are handled too: of functions in
Python, each resumption of a coroutine among them, and of functions in C. Hand-overs are counted on all threads.
"""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from pathlib import Path
from threading import Lock
from types import BuiltinFunctionType, FrameType
from typing import Any, Final

from uvloop import Loop

from plugin.durable_files import write_durably

FILE_VARIABLE: Final = "REMOTE_WAL_PERF_COUNTS_FILE"
BEGIN, END = signal.SIGUSR1, signal.SIGUSR2


class Calls:
    """Counts calls of functions on the thread that starts the counting."""

    def __init__(self) -> None:
        self.python: Counter[str] = Counter()
        self.c: Counter[str] = Counter()

    def begin(self) -> None:
        """Reset the counts, and start counting."""
        self.python.clear()
        self.c.clear()
        sys.setprofile(self._called)

    def end(self) -> None:
        """Stop counting."""
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            self.python[f"{frame.f_globals.get('__name__')}:{code.co_qualname}"] += 1
        elif event == "c_call":
            function: BuiltinFunctionType = argument
            self.c[function.__qualname__] += 1


class HandOvers:
    """Counts work given to pools of threads, and results given back to the event loop."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = Lock()

    def counted(self, hands_over: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that also counts its calls."""

        @wraps(hands_over)
        def call(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self.total += 1
            return hands_over(*arguments, **options)

        return call


def main() -> None:
    """Run an agent that counts its calls and hand-overs."""
    calls, hand_overs, at_begin = Calls(), HandOvers(), 0
    file = Path(os.environ[FILE_VARIABLE].format(pid=os.getpid()))
    for owner, name in ((ThreadPoolExecutor, "submit"), (Loop, "call_soon_threadsafe")):
        setattr(owner, name, hand_overs.counted(getattr(owner, name)))

    def begin(_number: int, _frame: FrameType | None) -> None:
        nonlocal at_begin
        at_begin = hand_overs.total
        calls.begin()

    def end(_number: int, _frame: FrameType | None) -> None:
        calls.end()
        counted = {"python": calls.python, "c": calls.c, "hand_overs": hand_overs.total - at_begin}
        write_durably(file, json.dumps(counted))

    signal.signal(BEGIN, begin)
    signal.signal(END, end)
    from cli.start import main as start

    start()


if __name__ == "__main__":
    main()
