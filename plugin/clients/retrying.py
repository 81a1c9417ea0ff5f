"""Retries calls: which errors, how long to wait, and when to give up.

A call has a total deadline; each attempt has one of its own, which the store keeps. No attempt is started that could
end after the total deadline, so a call never takes longer. Waits are exponential with full jitter (Brooker,
"Exponential Backoff And Jitter"), so that agents which failed together do not come back together.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from plugin.errors import RemoteStorageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Times in seconds."""

    attempt_timeout: float
    total_timeout: float
    first_wait: float = 0.02
    longest_wait: float = 1.0


@dataclass(frozen=True, slots=True)
class Retrier:
    """Runs calls under one policy; `on_failure` is called with every failed attempt. Safe for many threads."""

    policy: RetryPolicy
    clock: Callable[[], float]
    """Monotonic seconds."""
    sleep: Callable[[float], None]
    rng: random.Random
    on_failure: Callable[[RemoteStorageError], None]

    def deadline(self) -> float:
        """Return the end, on `clock`, of a call that starts now. Requests that serve one call share it."""
        return self.clock() + self.policy.total_timeout

    def call(self, attempt: Callable[[], T], deadline: float) -> T:
        """Return what `attempt` returns, retried while its errors allow and the deadline leaves time.

        Raises the last attempt's RemoteStorageError, and keeps none: its traceback holds the request's body.
        """
        failures: Counter[type[RemoteStorageError]] = Counter()
        while True:
            try:
                return attempt()
            except RemoteStorageError as error:
                self.on_failure(error)
                failures[type(error)] += 1
                limit = error.retry_limit
                if not error.retriable or (limit is not None and failures[type(error)] > limit):
                    raise
                pause_s = self._pause_s(failures.total())
                if self.clock() + pause_s + self.policy.attempt_timeout > deadline:
                    raise
            self.sleep(pause_s)

    def _pause_s(self, attempts: int) -> float:
        ceiling = self.policy.first_wait * 2 ** min(attempts, 20)
        return self.rng.uniform(0.0, min(self.policy.longest_wait, ceiling))
