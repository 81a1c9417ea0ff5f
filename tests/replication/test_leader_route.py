"""When a dead agent is bypassed, and when it is trusted again: in virtual time."""

import pytest

from replication.follower.leader_bypass import LeaderRoute, RouteLimits

LIMITS = RouteLimits(after_s=3.0, return_after_s=10.0, probe_s=1.0, probe_max_s=15.0)


def bypassed(now_s: float = 100.0, route: LeaderRoute | None = None) -> LeaderRoute:
    """A route that takes the way past the agent from `now_s` on."""
    route = route or LeaderRoute(LIMITS)
    assert not route.attempt_failed(now_s - 3.0, now_s - 3.0)
    assert route.attempt_failed(now_s - 0.1, now_s)
    return route


def probe_until_back(route: LeaderRoute, now_s: float) -> float:
    """When the agent that answers each probe from now on is used again."""
    while not route.probe_answered(now_s):
        now_s += route.probe_wait_s
    return now_s


def test_an_agent_is_bypassed_once_it_has_been_asked_in_vain_for_the_whole_time() -> None:
    route = LeaderRoute(LIMITS)
    for step in range(30):
        assert not route.attempt_failed(step / 10, step / 10), step
    bypassed_before = route.is_bypassed
    assert not bypassed_before
    assert route.attempt_failed(3.0, 3.0)
    assert route.is_bypassed
    assert not route.attempt_failed(3.1, 3.2), "it is told once"


def test_an_agent_that_takes_connections_and_says_nothing_is_bypassed_after_two_attempts() -> None:
    route = LeaderRoute(LIMITS)
    assert route.limits.attempt_s == 1.5
    assert not route.attempt_failed(0.0, 1.5)
    assert route.attempt_failed(1.5, 3.0)


def test_one_attempt_that_took_very_long_says_nothing_as_this_process_may_have_stood_still() -> None:
    route = LeaderRoute(LIMITS)
    assert not route.attempt_failed(0.0, 60.0)
    assert route.attempt_answered()
    assert not route.attempt_failed(60.0, 61.0)


def test_any_answer_begins_the_time_anew() -> None:
    route = LeaderRoute(LIMITS)
    route.attempt_failed(0.0, 1.0)
    assert route.attempt_answered()
    assert not route.attempt_failed(10.0, 10.0)
    assert not route.attempt_failed(12.9, 12.9)
    assert route.attempt_failed(13.0, 13.0)


def test_an_answer_to_an_attempt_that_others_gave_up_meanwhile_changes_nothing() -> None:
    route = bypassed()
    assert not route.attempt_answered()
    assert route.is_bypassed


def test_the_agent_is_used_again_when_it_has_answered_all_probes_for_some_time() -> None:
    route = bypassed()
    assert not route.probe_answered(101.0)
    assert not route.probe_answered(110.9)
    assert route.probe_answered(111.0)
    assert not route.is_bypassed


def test_one_probe_without_an_answer_begins_that_time_anew() -> None:
    route = bypassed()
    route.probe_answered(101.0)
    route.probe_failed()
    assert not route.probe_answered(112.0)
    assert probe_until_back(route, 113.0) == 122.0


def test_probes_of_an_agent_that_is_away_back_off() -> None:
    route = bypassed()
    waits = []
    for _ in range(6):
        waits.append(route.probe_wait_s)
        route.probe_failed()
    assert waits == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    route.probe_answered(200.0)
    assert route.probe_wait_s == 1.0


def test_an_agent_that_does_not_stay_is_trusted_later_each_time() -> None:
    route, now_s, waited = LeaderRoute(LIMITS), 100.0, []
    for _ in range(8):
        bypassed(now_s, route)
        back_s = probe_until_back(route, now_s)
        waited.append(back_s - now_s)
        now_s = back_s + 5.0
    assert waited == [10, 20, 40, 80, 160, 320, 320, 320]


def test_an_agent_that_stayed_for_long_is_trusted_as_at_first() -> None:
    route = bypassed()
    now_s = probe_until_back(route, 101.0)
    bypassed(now_s + 5.0, route)
    now_s = probe_until_back(route, now_s + 5.0)
    bypassed(now_s + 100.0, route)
    assert route.steady_s == pytest.approx(10.0)
