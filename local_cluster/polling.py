"""Waits for a condition by polling: a broker's registration, an ISR's growth, a process's end."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

POLL_INTERVAL_S = 0.05

T = TypeVar("T")


class WaitTimeoutError(Exception):
    """A condition was not met before its deadline; the message names it and what was last seen."""


def wait_until(
    predicate: Callable[[], T | None],
    description: str,
    timeout_s: float = 60.0,
    *,
    interval_s: float = POLL_INTERVAL_S,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] | None = None,
) -> T:
    """Return the first truthy value of `predicate`, which is called each `interval_s` seconds.

    Raises WaitTimeoutError after `timeout_s`; the predicate is called once more at the deadline, so that a slow machine
    does not fail a condition that has come true meanwhile.
    """
    pause = pause or threading.Event().wait
    deadline = clock() + timeout_s
    while True:
        expired = clock() >= deadline
        value = predicate()
        if value:
            return value
        if expired:
            raise WaitTimeoutError(f"not within {timeout_s:g} s: {description} (last seen: {value!r})")
        pause(interval_s)
