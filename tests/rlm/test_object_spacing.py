"""The share of all agents' objects that falls to one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm.write_path.uploads.object_spacing import HEADROOM, spacing_s

BOUND_PER_S = 360.0


def allowed_per_s(objects_per_s: list[float]) -> float:
    apart_s = spacing_s(objects_per_s, BOUND_PER_S)
    return 1 / apart_s if apart_s else math.inf


def settled(wanted_per_s: list[float], windows: int = 20, lateness: float = 0.1) -> list[float]:
    """What agents make in the end that each look at what all have made, and begin a little late."""
    made = wanted_per_s
    for _ in range(windows):
        made = [min(wanted, allowed_per_s(made) * (1 - lateness)) for wanted in wanted_per_s]
    return made


@given(st.lists(st.floats(0.0, 500.0), max_size=100))
def test_together_they_are_allowed_as_many_as_the_bound_and_nobody_more_than_another_that_is_held_back(
    objects_per_s: list[float],
) -> None:
    allowed = allowed_per_s(objects_per_s)
    wanted = [rate * HEADROOM for rate in objects_per_s]
    if allowed == math.inf:
        assert sum(wanted) <= BOUND_PER_S * 1.000001
    else:
        assert sum(min(rate, allowed) for rate in wanted) == pytest.approx(BOUND_PER_S)


def test_where_many_make_many_each_is_allowed_an_equal_share_of_what_others_leave() -> None:
    for agents, each_per_s in ((3, math.inf), (9, 40.0), (30, 12.0), (90, 4.0)):
        assert allowed_per_s([40.0] * agents) == pytest.approx(each_per_s)
    left_each_per_s = (BOUND_PER_S - 80 * HEADROOM) / 10
    assert allowed_per_s([1.0] * 80 + [40.0] * 10) == pytest.approx(left_each_per_s)


def test_nobody_is_let_go_of_because_it_is_held_back_but_when_others_stop() -> None:
    made = settled([40.0] * 90)
    assert made == settled([40.0] * 90, windows=21)
    assert 0.85 * BOUND_PER_S < sum(made) <= BOUND_PER_S
    assert settled([40.0] * 8 + [0.0] * 82) == [40.0] * 8 + [0.0] * 82
