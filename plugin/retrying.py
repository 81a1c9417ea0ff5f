"""Trying again: which errors, how long to wait, and when to give up.

A call has a deadline in total; each attempt has one of its own, which the store keeps. No attempt is
started that could end after the deadline in total, so a call never takes longer than that. Waits are
exponential with full jitter (Brooker, "Exponential Backoff And Jitter"), so that agents which failed
together do not come back together.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import RetryCallState, Retrying

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
    """Runs calls under one policy; `on_failure` hears of every failed attempt. Safe for many threads."""

    policy: RetryPolicy
    clock: Callable[[], float]
    """Monotonic seconds."""
    sleep: Callable[[float], None]
    rng: random.Random
    on_failure: Callable[[RemoteStorageError], None]

    def deadline(self) -> float:
        """The end, on `clock`, of a call that starts now. Requests that serve one call share it."""
        return self.clock() + self.policy.total_timeout

    def call(self, attempt: Callable[[], T], deadline: float) -> T:
        """What `attempt` returns, tried again while its errors allow and the deadline leaves room.

        Raises the last attempt's RemoteStorageError.
        """
        try:
            return attempt()
        except RemoteStorageError as error:
            self.on_failure(error)
            return self._call_again(attempt, error, deadline)

    def _call_again(self, attempt: Callable[[], T], first: RemoteStorageError, deadline: float) -> T:
        """The slow path; the first failure is replayed so that tenacity counts it as attempt one."""
        failures: dict[type[RemoteStorageError], int] = {}
        pending: list[RemoteStorageError] = [first]

        def run() -> T:
            if pending:
                raise pending.pop()
            try:
                return attempt()
            except RemoteStorageError as error:
                self.on_failure(error)
                raise

        def helps(state: RetryCallState) -> bool:
            error = state.outcome.exception() if state.outcome else None
            if not isinstance(error, RemoteStorageError) or not error.retriable:
                return False
            kind = type(error)
            failures[kind] = failures.get(kind, 0) + 1
            return error.retry_limit is None or failures[kind] <= error.retry_limit

        def no_room(state: RetryCallState) -> bool:
            return self.clock() + state.upcoming_sleep + self.policy.attempt_timeout > deadline

        def wait(state: RetryCallState) -> float:
            ceiling = self.policy.first_wait * 2 ** min(state.attempt_number, 20)
            return self.rng.uniform(0.0, min(self.policy.longest_wait, ceiling))

        retrying = Retrying(retry=helps, stop=no_room, wait=wait, sleep=self.sleep, reraise=True)
        return retrying(run)
