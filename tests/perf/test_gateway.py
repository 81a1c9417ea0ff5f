"""Figures of the gateway beside direct clients."""

import pytest

from perf.gateway.command import Row, quantile


@pytest.mark.parametrize(("unit", "told"), [("ms", "+0.25 ms"), ("x", "0.25 x"), ("of direct", "25.00%")])
def test_a_comparison_is_told_in_its_unit(unit: str, told: str) -> None:
    assert Row("f", "w", 1.0, 2.0, 0.25, unit).cells() == ("f", "w", "1.00", "2.00", told)


def test_a_quantile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1.0)) == (51.0, 100.0, 100.0)
