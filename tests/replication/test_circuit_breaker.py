"""When what keeps failing is left alone, and when it is tried again."""

from replication.wire.circuit_breaker import BreakerLimits, CircuitBreaker

LIMITS = BreakerLimits(failures_to_open=3, open_s=1.0, open_max_s=4.0)


def opened() -> CircuitBreaker:
    breaker = CircuitBreaker(LIMITS)
    assert [breaker.failed(0.0) for _ in range(3)] == [False, False, True]
    return breaker


def test_calls_that_were_under_way_when_it_opened_do_not_make_the_wait_longer() -> None:
    breaker = opened()
    for _ in range(10):
        breaker.failed(0.1)
    assert not breaker.allows(0.9)
    assert breaker.allows(1.0)


def test_each_probe_that_fails_doubles_the_wait_up_to_its_bound() -> None:
    breaker, now_s = opened(), 0.0
    for wait_s in (1.0, 2.0, 4.0, 4.0):
        assert not breaker.allows(now_s + wait_s - 0.1)
        now_s += wait_s
        assert breaker.allows(now_s)
        breaker.failed(now_s)


def test_a_success_closes_it_and_the_next_wait_is_the_first_again() -> None:
    breaker = opened()
    assert breaker.allows(1.0)
    breaker.failed(1.0)
    assert breaker.succeeded()
    assert not breaker.is_open
    for _ in range(3):
        breaker.failed(5.0)
    assert breaker.allows(6.0)


def test_a_probe_is_due_when_the_wait_is_over_and_asking_for_it_takes_it_from_nobody() -> None:
    breaker = CircuitBreaker(BreakerLimits(failures_to_open=1, open_s=1.0))
    assert breaker.is_due(0.0)
    breaker.failed(0.0)
    assert not breaker.is_due(0.9)
    assert breaker.is_due(1.0)
    assert breaker.is_due(1.0)
    assert breaker.allows(1.0)
    assert not breaker.is_due(1.0)
