"""Figures of the gateway beside direct clients, and whether they reach what was aimed at."""

import pytest

from perf.gateway.command import Row
from perf.gateway.world import quantile


@pytest.mark.parametrize(
    ("unit", "compared", "is_met"),
    [("ms", 1.4, True), ("ms", 1.6, False), ("of direct", 1.4, True), ("of direct", 1.6, False)],
)
def test_what_is_added_must_not_pass_its_goal(unit: str, compared: float, is_met: bool) -> None:
    assert Row("f", "w", 1.0, 1.0, compared, unit, 1.5).is_met is is_met


@pytest.mark.parametrize(("compared", "is_met"), [(0.61, True), (0.59, False)])
def test_a_share_of_throughput_must_reach_its_goal(compared: float, is_met: bool) -> None:
    assert Row("f", "w", 1.0, 1.0, compared, "x", 0.6).is_met is is_met


def test_what_has_no_goal_is_neither_met_nor_missed() -> None:
    assert Row("f", "w", 1.0, 1.0, 1.0, "ms").is_met is None


def test_a_quantile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1.0)) == (51.0, 100.0, 100.0)
