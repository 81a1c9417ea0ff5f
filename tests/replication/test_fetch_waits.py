"""How long the broker may let a follower wait: to gather what the next upload will hold, never for what is stored, and
only shortly where the follower has more than the high watermark that it was told of.
"""

import pytest

from replication.leader.fetch_waits import BULK_BYTES, IN_VAIN, FetchMinBytesTuner, PendingHighWatermarks
from tests.replication.fetch_frames import partition

ROUND = 2 * BULK_BYTES
NOW_S = 100.0


def follower_in_step(round_bytes: int = ROUND, wait_max_ms: int = 25) -> FetchMinBytesTuner:
    patience = FetchMinBytesTuner(wait_max_ms)
    patience.uploaded({partition(0): 10, partition(1): 20}, round_bytes, NOW_S)
    patience.fetched(partition(0), 10)
    patience.fetched(partition(1), 20)
    return patience


def asked(patience: FetchMinBytesTuner, max_wait_ms: int = 500, min_bytes: int = 1) -> tuple[int, int] | None:
    return patience.wait(max_wait_ms, min_bytes, NOW_S + 0.01)


def test_a_follower_in_step_gets_as_much_at_once_as_the_last_upload_held() -> None:
    wait = asked(follower_in_step())
    assert wait is not None
    max_wait_ms, min_bytes = wait
    assert max_wait_ms == 25
    assert 0.9 * ROUND < min_bytes <= ROUND


def test_a_follower_that_lacks_something_stored_is_not_made_to_wait() -> None:
    patience = follower_in_step()
    patience.uploaded({partition(0): 15, partition(1): 30}, ROUND, NOW_S)
    assert asked(patience) is None
    patience.fetched(partition(0), 15)
    patience.fetched(partition(1), 29)
    assert asked(patience) is None
    patience.fetched(partition(1), 30)
    assert asked(patience) is not None


def test_what_is_uploaded_anew_is_not_lacking() -> None:
    patience = follower_in_step()
    patience.uploaded({partition(0): 10, partition(1): 5}, ROUND, NOW_S)
    assert asked(patience) is not None


def test_a_partition_that_is_given_up_holds_nothing_up() -> None:
    patience = follower_in_step()
    patience.uploaded({partition(0): 15}, ROUND, NOW_S)
    patience.dropped(partition(0))
    assert asked(patience) is not None


def test_small_uploads_and_those_of_long_ago_leave_requests_as_they_are() -> None:
    assert asked(follower_in_step(round_bytes=BULK_BYTES - 1)) is None
    assert follower_in_step().wait(500, 1, NOW_S + 10) is None


def test_a_bound_of_zero_leaves_requests_as_they_are() -> None:
    assert asked(follower_in_step(wait_max_ms=0)) is None


def test_a_follower_that_asks_for_more_or_for_a_shorter_wait_is_left_its_own() -> None:
    assert asked(follower_in_step(), min_bytes=2 * ROUND) is None
    shorter = asked(follower_in_step(), max_wait_ms=5)
    assert shorter is not None
    assert shorter[0] == 5
    assert asked(follower_in_step(), max_wait_ms=0) is None


@pytest.mark.parametrize("round_bytes", [ROUND // 2, ROUND, 3 * ROUND])
def test_a_load_that_changes_is_followed_within_some_uploads(round_bytes: int) -> None:
    patience = follower_in_step()
    for _ in range(20):
        patience.uploaded({}, round_bytes, NOW_S)
    wait = asked(patience)
    assert wait is not None
    assert wait[1] == pytest.approx(round_bytes, rel=0.02)


def test_waits_in_vain_become_rarer_until_one_is_worth_it() -> None:
    patience, now_s, waits = follower_in_step(), NOW_S, 0
    for _ in range(1000):
        now_s += 0.01
        patience.uploaded({}, ROUND, now_s)
        if patience.wait(500, 1, now_s) is not None:
            waits += 1
            patience.answered(ROUND // 2, now_s)
    assert 10 <= waits <= 20, "in ten seconds"
    while patience.wait(500, 1, now_s) is None:
        now_s += 0.01
        patience.uploaded({}, ROUND, now_s)
    patience.answered(ROUND, now_s)
    assert patience.wait(500, 1, now_s) is not None
    patience.answered(ROUND // 2, now_s)
    assert patience.wait(500, 1, now_s + 0.05) is None
    assert patience.wait(500, 1, now_s + 0.11) is not None


FIRST, SECOND = partition(0), partition(1)
MAX_MS, SHORT_MS = 500, 2


def owed(*, wait_ms: int = SHORT_MS) -> PendingHighWatermarks:
    """The follower has a record more than it was told of."""
    made = PendingHighWatermarks(wait_ms)
    for one in (FIRST, SECOND):
        made.fetched(one, 10)
        made.note_watermark(one, 10)
    made.fetched(FIRST, 11)
    return made


def test_a_follower_that_has_more_than_it_was_told_of_waits_for_a_short_time_until_it_is_told() -> None:
    made = owed()
    assert made.wait_ms(MAX_MS) == SHORT_MS
    made.note_watermark(SECOND, 10)
    assert made.wait_ms(MAX_MS) == SHORT_MS
    made.note_watermark(FIRST, 11)
    assert made.wait_ms(MAX_MS) is None


def test_a_follower_that_is_behind_waits_as_it_asks() -> None:
    made = owed()
    made.note_watermark(FIRST, 12)
    assert made.wait_ms(MAX_MS) is None


def test_what_was_never_told_of_is_not_owed_yet() -> None:
    made = PendingHighWatermarks(SHORT_MS)
    made.fetched(FIRST, 10)
    assert made.wait_ms(MAX_MS) is None
    made.note_watermark(FIRST, 9)
    assert made.wait_ms(MAX_MS) == SHORT_MS


def test_waits_in_vain_get_longer_up_to_the_followers_own_until_something_is_learnt() -> None:
    made = owed()
    waits = [made.wait_ms(MAX_MS) for _ in range(IN_VAIN + 10)]
    assert waits == [SHORT_MS] * (IN_VAIN + 1) + [4, 8, 16, 32, 64, 128, 256, None, None]
    made.note_watermark(FIRST, 10)
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
