import contextlib
import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugin.clients.object_requests import Retrier, RetryPolicy
from plugin.errors import (
    RemoteResourceNotFoundError,
    RemoteSegmentCorruptError,
    RemoteStorageError,
    RemoteStorageThrottledError,
    RemoteStorageTimeoutError,
)
from plugin.store_loop import ask
from tests.plugin.storage_backends import VirtualTime

POLICY = RetryPolicy(attempt_timeout=2.0, total_timeout=10.0)


class Script:
    """Attempts that end as written, each taking its time; then they succeed."""

    def __init__(self, time: VirtualTime, outcomes: list[tuple[float, RemoteStorageError]]) -> None:
        self.time = time
        self.outcomes = outcomes
        self.attempts = 0

    async def __call__(self) -> str:
        self.attempts += 1
        if not self.outcomes:
            return "done"
        seconds, error = self.outcomes.pop(0)
        self.time.now += seconds
        raise error


def retrier(time: VirtualTime, failures: list[str] | None = None) -> Retrier:
    heard = failures if failures is not None else []
    return Retrier(POLICY, time.clock, time.sleep, lambda error: heard.append(error.label))


def throttled() -> RemoteStorageError:
    return RemoteStorageThrottledError("put", "k", "503 SlowDown")


def test_every_failed_attempt_is_heard_of() -> None:
    time = VirtualTime()
    failures: list[str] = []
    script = Script(time, [(0, throttled()), (2, RemoteStorageTimeoutError("put", "k", "")), (0, throttled())])
    trying = retrier(time, failures)
    assert ask(trying.call(script, trying.deadline())) == "done"
    assert failures == ["throttled", "timeout", "throttled"]


def test_what_cannot_succeed_is_not_tried_again() -> None:
    time = VirtualTime()
    script = Script(time, [(0, RemoteResourceNotFoundError("get", "k", "404"))])
    trying = retrier(time)
    with pytest.raises(RemoteResourceNotFoundError):
        ask(trying.call(script, trying.deadline()))
    assert script.attempts == 1


def test_corrupt_bytes_are_fetched_once_more_whatever_else_fails() -> None:
    time = VirtualTime()
    corrupt = [(0.0, RemoteSegmentCorruptError("get", "k", "short")) for _ in range(3)]
    script = Script(time, [corrupt[0], (0, throttled()), corrupt[1], corrupt[2]])
    trying = retrier(time)
    with pytest.raises(RemoteSegmentCorruptError):
        ask(trying.call(script, trying.deadline()))
    assert script.attempts == 3


def test_waits_are_jittered_and_bounded() -> None:
    time = VirtualTime()
    trying = retrier(time)
    with pytest.raises(RemoteStorageThrottledError):
        ask(trying.call(Script(time, [(0, throttled())] * 1000), trying.deadline()))
    assert max(time.slept) <= POLICY.longest_wait
    assert time.slept[0] <= 2 * POLICY.first_wait
    assert len(set(time.slept)) == len(time.slept)


@given(st.lists(st.floats(0, POLICY.attempt_timeout), min_size=1, max_size=40))
def test_no_call_outlives_its_deadline(durations: list[float]) -> None:
    time = VirtualTime()
    trying = retrier(time)
    deadline = trying.deadline()
    with contextlib.suppress(RemoteStorageThrottledError):
        ask(trying.call(Script(time, [(seconds, throttled()) for seconds in durations]), deadline))
    assert time.now <= deadline


def test_requests_of_one_call_share_its_deadline() -> None:
    time = VirtualTime()
    trying = retrier(time)
    deadline = trying.deadline()
    time.now += POLICY.total_timeout - POLICY.attempt_timeout
    script = Script(time, [(0, throttled())])
    with pytest.raises(RemoteStorageThrottledError):
        ask(trying.call(script, deadline))
    assert script.attempts == 1


def test_an_error_of_the_caller_passes_through() -> None:
    time = VirtualTime()
    trying = retrier(time)

    async def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask(trying.call(broken, trying.deadline()))


def test_a_call_that_failed_holds_nothing_of_its_attempts() -> None:
    """While a store is away, each upload that failed would keep its bytes until the collector comes."""
    time = VirtualTime()
    bodies: list[weakref.ref[set[int]]] = []

    async def attempt() -> None:
        body: set[int] = set()
        bodies.append(weakref.ref(body))
        raise throttled()

    trying = retrier(time)
    gc.disable()
    try:
        with contextlib.suppress(RemoteStorageError):
            ask(trying.call(attempt, trying.deadline()))
        assert len(bodies) > 1
        assert [body() for body in bodies] == [None] * len(bodies)
    finally:
        gc.enable()
