"""Played leaders, and the follower's side of an agent between them and their followers."""

import pytest

from perf.fan_in.world import Followed, Shape, leaders_of, measure, share_of

SHAPE = Shape(20, 1, 12, 0.2, 0.6)


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_follower_is_given_the_bytes_that_its_leaders_have(is_shared: bool) -> None:
    """Its fetchers hold each answer against them, and end with an error."""
    (found,) = measure([3], Shape(20, 1, 12, 0, 1.5, is_shared))
    assert (found.brokers, found.leaders, found.ranges) == (3, 2, 1)
    assert found.objects_per_s > 0
    assert found.cores > 0
    assert found.asked_per_object == pytest.approx(int(is_shared), abs=0.5)


def test_what_a_follower_has_of_an_object_follows_from_how_many_share_it() -> None:
    assert [leaders_of(brokers) for brokers in (3, 10, 30, 90)] == [2, 7, 20, 60]
    few, many = share_of(3, SHAPE), share_of(90, Shape(4, 5, 240, 1, 1))
    assert (few.partitions, few.ranges, few.record_bytes) == (12, 1, 4167)
    assert (many.partitions, many.ranges) == (8, 4)


def test_the_cpu_of_an_object_is_that_of_all_over_those_that_were_read() -> None:
    assert Followed(30, 20, 4, 200.0, 10.0, 0.0, 0.3, 5, 90).cpu_ms_per_object == pytest.approx(1.5)
