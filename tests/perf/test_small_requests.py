"""The loads of librdkafka: what of them is told."""

import pytest

from perf.small_requests import figures_of
from perf.workloads import WORKLOADS


def test_quantiles_are_those_of_the_records() -> None:
    told = figures_of([float(number) for number in range(101)])
    assert told == {"p50 ms": 50.0, "p95 ms": 95.0, "p99 ms": pytest.approx(99.0)}


def test_there_is_each_rate_with_and_without_linger() -> None:
    names = {one.name for one in WORKLOADS if one.name.startswith("librdkafka")}
    rates = ("50", "200", "1000", "5000")
    assert names == {f"librdkafka-{rate}{linger}" for rate in rates for linger in ("", "-no-linger")}
