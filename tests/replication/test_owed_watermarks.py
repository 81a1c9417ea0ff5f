"""For how long the broker may let a follower wait that has more than the high watermark that it was told of."""

from replication.leader.fetch_waits import IN_VAIN, OwedWatermarks
from tests.replication.fetch_frames import partition

FIRST, SECOND = partition(0), partition(1)
MAX_MS, SHORT_MS = 500, 2


def owed(*, wait_ms: int = SHORT_MS) -> OwedWatermarks:
    """The follower has a record more than it was told of."""
    made = OwedWatermarks(wait_ms)
    for one in (FIRST, SECOND):
        made.fetched(one, 10)
        made.told(one, 10)
    made.fetched(FIRST, 11)
    return made


def test_a_follower_that_has_more_than_it_was_told_of_waits_for_a_short_time_until_it_is_told() -> None:
    made = owed()
    assert made.wait_ms(MAX_MS) == SHORT_MS
    made.told(SECOND, 10)
    assert made.wait_ms(MAX_MS) == SHORT_MS
    made.told(FIRST, 11)
    assert made.wait_ms(MAX_MS) is None


def test_a_follower_that_is_behind_waits_as_it_asks() -> None:
    made = owed()
    made.told(FIRST, 12)
    assert made.wait_ms(MAX_MS) is None


def test_what_was_never_told_of_is_not_owed_yet() -> None:
    made = OwedWatermarks(SHORT_MS)
    made.fetched(FIRST, 10)
    assert made.wait_ms(MAX_MS) is None
    made.told(FIRST, 9)
    assert made.wait_ms(MAX_MS) == SHORT_MS


def test_waits_in_vain_get_longer_up_to_the_followers_own_until_something_is_learnt() -> None:
    made = owed()
    waits = [made.wait_ms(MAX_MS) for _ in range(IN_VAIN + 10)]
    assert waits == [SHORT_MS] * (IN_VAIN + 1) + [4, 8, 16, 32, 64, 128, 256, None, None]
    made.told(FIRST, 10)
    assert made.wait_ms(MAX_MS) is None, "that is no news"
    made.fetched(FIRST, 12)
    assert made.wait_ms(MAX_MS) == SHORT_MS


def test_it_is_never_longer_than_the_follower_asks_for() -> None:
    assert owed().wait_ms(SHORT_MS) is None


def test_a_partition_that_is_not_led_here_any_more_owes_nothing() -> None:
    made = owed()
    made.dropped(FIRST)
    assert made.wait_ms(MAX_MS) is None


def test_without_a_short_wait_requests_stay_as_they_are() -> None:
    assert owed(wait_ms=0).wait_ms(MAX_MS) is None
