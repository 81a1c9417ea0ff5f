"""When the logs are read and an upload starts; and who waits for it, told by what is appended during uploads."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.topic_partition import TopicId, TopicIdPartition
from rlm.write_path.commit.group_commit import (
    BULK_BYTES,
    BULK_OBJECT_BYTES,
    GATHER_RECENT_S,
    UPLOAD_WAIT_MAX_S,
    CommitLimits,
    Gather,
    GroupCommit,
    Load,
    Step,
    UploadNow,
    Urgency,
    Wait,
)
from rlm.write_path.commit.producers import QUIET_S

LIMITS = CommitLimits(
    interval_s=0.01, archive_interval_s=1.0, upload_bytes=1000, max_in_flight=2, retry_s=0.5, retry_max_s=4.0
)
NOW_S = 10.0
ONE, OTHER = (TopicIdPartition(TopicId(bytes(16)), number) for number in range(2))


def waiting(queued_bytes: int, urgency: Urgency = Urgency.LINKS, expected_bytes: float = 0.0) -> Load:
    return Load(queued_bytes, math.inf, has_unread=False, expected_bytes=expected_bytes, urgency=urgency)


def begun(limits: CommitLimits = LIMITS, size_bytes: int = 0) -> GroupCommit:
    """With one upload that starts now."""
    commit = GroupCommit(limits)
    commit.started(NOW_S, size_bytes)
    return commit


def idle_after_an_upload(limits: CommitLimits = LIMITS, size_bytes: int = 0) -> GroupCommit:
    commit = begun(limits, size_bytes)
    commit.stored(NOW_S)
    return commit


def where_nobody_waits() -> GroupCommit:
    commit = idle_after_an_upload()
    for _ in range(5):
        commit.producers.stored(0.005, 1, 2.0, NOW_S)
    return commit


def delay_s(step: Step) -> float:
    if isinstance(step, UploadNow):
        return 0.0
    assert step.delay_s is not None
    return step.delay_s


# When an upload starts.


def test_with_nothing_in_flight_a_lone_record_waits_for_nothing() -> None:
    assert idle_after_an_upload().next_step(waiting(1), NOW_S) == UploadNow()


def test_with_uploads_in_flight_it_starts_one_interval_after_the_last_or_with_a_full_object() -> None:
    commit = begun()
    assert delay_s(commit.next_step(waiting(999), NOW_S)) == pytest.approx(0.01)
    assert commit.next_step(waiting(1000), NOW_S) == UploadNow()


@pytest.mark.parametrize("urgency", [Urgency.LINKS, Urgency.PAYING_LINKS])
def test_uploads_are_spaced_whoever_waits_unless_an_object_is_whole(urgency: Urgency) -> None:
    commit = idle_after_an_upload()
    commit.spacing_s = 0.25
    commit.note_look(NOW_S + 0.2)
    assert delay_s(commit.next_step(waiting(999, urgency), NOW_S + 0.2)) == pytest.approx(0.05)
    assert commit.is_too_soon(999, NOW_S + 0.2)
    assert commit.next_step(waiting(1000, urgency), NOW_S + 0.2) == UploadNow()
    assert not commit.is_too_soon(1000, NOW_S + 0.2)
    assert commit.next_step(waiting(999, urgency), NOW_S + 0.25) == UploadNow()


def test_what_logs_are_known_to_hold_counts_for_a_full_object_until_it_is_read() -> None:
    commit = begun()
    commit.appended(ONE, LIMITS.upload_bytes - 2)
    assert delay_s(commit.next_step(waiting(1, Urgency.PAYING_LINKS), NOW_S)) == pytest.approx(LIMITS.interval_s)
    commit.appended(OTHER, 1)
    assert commit.next_step(waiting(1, Urgency.PAYING_LINKS), NOW_S) == UploadNow()
    commit.read()
    assert delay_s(commit.next_step(waiting(1, Urgency.PAYING_LINKS), NOW_S)) == pytest.approx(LIMITS.interval_s)


def test_links_that_must_pay_wait_for_the_interval_even_with_nothing_in_flight() -> None:
    step = idle_after_an_upload().next_step(waiting(999, Urgency.PAYING_LINKS), NOW_S)
    assert delay_s(step) == pytest.approx(0.01)


def test_when_nobody_wants_links_it_keeps_the_archive_interval() -> None:
    step = idle_after_an_upload().next_step(waiting(1, Urgency.ARCHIVE), NOW_S)
    assert delay_s(step) == pytest.approx(1.0)


def test_no_more_than_the_threads_can_carry_are_in_flight() -> None:
    commit = begun()
    full_before = commit.is_full
    commit.started(NOW_S, 0)
    assert (full_before, commit.is_full) == (False, True)
    assert commit.next_step(waiting(10_000), NOW_S) == Wait(None)
    commit.stored(NOW_S)
    assert commit.next_step(waiting(10_000), NOW_S) == UploadNow()


def test_with_nothing_queued_it_waits_until_a_log_is_due_and_then_for_the_upload_that_would_take_it() -> None:
    commit, nothing = begun(), waiting(0)
    assert commit.next_step(nothing, NOW_S) == Wait(None)
    assert commit.next_step(replace(nothing, due_s=NOW_S + 5), NOW_S) == Wait(5.0)
    assert delay_s(commit.next_step(replace(nothing, due_s=NOW_S), NOW_S)) == pytest.approx(0.01)
    commit.stored(NOW_S)
    assert commit.next_step(replace(nothing, due_s=NOW_S), NOW_S) == UploadNow()


def test_links_are_not_waited_for_where_an_upload_takes_long_or_one_failed() -> None:
    commit = begun()
    assert commit.is_prompt(2.5, NOW_S + 2.4)
    assert not commit.is_prompt(2.5, NOW_S + 2.5)
    commit.failed(NOW_S, NOW_S + 2.4)
    assert not commit.is_prompt(2.5, NOW_S + 2.4)


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_the_back_off_doubles_with_each_failure_in_a_row_up_to_its_limit(outcomes: list[bool]) -> None:
    commit, now_s, failures = GroupCommit(LIMITS), 0.0, 0
    for succeeds in outcomes:
        commit.started(now_s, 0)
        if succeeds:
            commit.stored(now_s)
            failures = 0
        else:
            commit.failed(now_s, now_s)
            failures += 1
        back_off_s = min(0.5 * 2 ** (failures - 1), 4.0) if failures else 0.0
        assert commit.back_off_s(now_s) == pytest.approx(back_off_s)
        assert delay_s(commit.next_step(waiting(1000), now_s)) == pytest.approx(back_off_s)
        assert commit.is_prompt(math.inf, now_s) is not bool(failures)
        now_s += max(0.1, back_off_s)


# While much is appended.


@pytest.mark.parametrize(
    ("expected_bytes", "intervals"),
    [(BULK_BYTES, 2.0), (BULK_OBJECT_BYTES / 1.5, 1.5), (BULK_OBJECT_BYTES, 1.0), (9 * BULK_OBJECT_BYTES, 1.0)],
)
def test_while_much_is_appended_without_a_pause_an_upload_waits_for_a_full_object(
    expected_bytes: float, intervals: float
) -> None:
    commit = where_nobody_waits()
    for urgency in (Urgency.LINKS, Urgency.PAYING_LINKS):
        step = commit.next_step(waiting(1, urgency, expected_bytes), NOW_S)
        assert delay_s(step) == pytest.approx(intervals * LIMITS.interval_s)
    step = commit.next_step(waiting(1, Urgency.ARCHIVE, expected_bytes), NOW_S)
    assert delay_s(step) == LIMITS.archive_interval_s
    assert commit.next_step(waiting(LIMITS.upload_bytes, Urgency.LINKS, expected_bytes), NOW_S) == UploadNow()


def test_producers_that_wait_wait_for_two_intervals_at_most() -> None:
    for expected_bytes in (BULK_BYTES, 9 * BULK_OBJECT_BYTES):
        step = idle_after_an_upload().next_step(waiting(1, Urgency.LINKS, expected_bytes), NOW_S)
        assert delay_s(step) == pytest.approx(2 * LIMITS.interval_s)


def test_below_a_bulk_nobody_waits_for_a_full_object() -> None:
    step = where_nobody_waits().next_step(waiting(1, Urgency.LINKS, BULK_BYTES - 1), NOW_S)
    assert step == UploadNow()


def test_appends_of_a_bulk_are_gathered_and_a_silence_means_something_only_where_producers_wait() -> None:
    unread = replace(waiting(1, Urgency.LINKS, BULK_BYTES), has_unread=True)
    for commit, quiet_s in ((idle_after_an_upload(), QUIET_S), (where_nobody_waits(), math.inf)):
        step = commit.next_step(unread, NOW_S)
        assert isinstance(step, Gather)
        assert step.quiet_s == quiet_s
        assert isinstance(commit.next_step(replace(unread, has_unread=False), NOW_S), Wait)
        paying_little = replace(unread, expected_bytes=BULK_BYTES - 1, urgency=Urgency.PAYING_LINKS)
        assert isinstance(commit.next_step(paying_little, NOW_S), Wait)


def test_nothing_is_gathered_after_a_failure_nor_where_no_more_may_be_in_flight() -> None:
    unread = replace(waiting(1, Urgency.LINKS, BULK_BYTES), has_unread=True)
    commit = begun()
    commit.started(NOW_S, 0)
    assert commit.next_step(unread, NOW_S) == Wait(None)
    commit.failed(NOW_S, NOW_S)
    assert commit.next_step(unread, NOW_S) == Wait(LIMITS.retry_s)


# The quota.


def test_the_quota_holds_uploads_back_whatever_they_are_for() -> None:
    # A quarter of a second's worth was saved up.
    commit = idle_after_an_upload(replace(LIMITS, bytes_per_s=10_000), 7_500)
    assert commit.held_back_s(NOW_S) == pytest.approx(0.5)
    assert not commit.is_prompt(0.5, NOW_S)
    for queued_bytes, urgency in ((1, Urgency.LINKS), (10_000, Urgency.ARCHIVE), (1, Urgency.PAYING_LINKS)):
        step = commit.next_step(waiting(queued_bytes, urgency), NOW_S)
        assert delay_s(step) == pytest.approx(0.5)
    assert commit.held_back_s(NOW_S + 0.5) == 0


def test_without_a_quota_nothing_is_held_back() -> None:
    assert idle_after_an_upload(size_bytes=2**40).held_back_s(NOW_S) == 0


@given(st.lists(st.tuples(st.integers(1, 5_000), st.sampled_from([0.0, 0.01, 0.3, 2.0])), min_size=1, max_size=40))
def test_in_any_time_no_more_is_uploaded_than_the_quota_lets_and_one_object(uploads: list[tuple[int, float]]) -> None:
    commit, now_s, started = GroupCommit(replace(LIMITS, bytes_per_s=10_000)), 0.0, list[tuple[float, int]]()
    for size, pause_s in uploads:
        now_s += pause_s
        now_s += delay_s(commit.next_step(waiting(size), now_s))
        commit.started(now_s, size)
        commit.stored(now_s)
        started.append((now_s, size))
    for first, (from_s, _) in enumerate(started):
        for last in range(first, len(started)):
            until_s, _ = started[last]
            moved = sum(size for _, size in started[first:last])
            assert moved <= 10_000 * (until_s - from_s + 0.25) + 1e-6


# Who waits, and for how much.


def told(*appended_meanwhile: bool) -> bool:
    commit = GroupCommit(LIMITS)
    for appended in appended_meanwhile:
        commit.producers.stored(0.005, int(appended), 1.0, NOW_S)
    return commit.producers.wait


def test_producers_are_taken_to_wait_until_they_are_seen_not_to() -> None:
    assert told()


def test_appends_during_upload_after_upload_show_that_nobody_waits() -> None:
    assert not told(*[True] * 3)


def test_a_single_late_append_shows_nothing() -> None:
    assert told(True)
    assert told(*[False] * 20, True, False, True)


def test_a_load_that_changes_is_recognised_within_a_few_uploads() -> None:
    assert told(*[True] * 50, *[False] * 3)
    assert not told(*[False] * 50, *[True] * 3)


def paying_where(appended_bytes: int, *, urgency: Urgency = Urgency.PAYING_LINKS, full_bytes: float = 4000) -> float:
    """From one start to the next, where 1,000 bytes are appended in an interval of 10 ms, and so many of the 500 that
    are usual during an upload."""
    commit, limits = GroupCommit(LIMITS), LIMITS
    load = Load(1, math.inf, False, 1000, urgency, 100_000.0, paying_bytes=500, full_bytes=full_bytes)
    commit.next_step(load, NOW_S - 1)  # links have paid for a while
    for _ in range(40):
        commit.producers.stored(0.005, appended_bytes, 500, NOW_S)
    commit.started(NOW_S, 1000)
    commit.stored(NOW_S)
    return delay_s(commit.next_step(load, NOW_S)) / limits.interval_s


def test_where_nobody_waits_paying_links_wait_until_an_object_is_large_and_for_a_tenth_of_a_second_at_most() -> None:
    assert paying_where(500) == pytest.approx(4)
    assert paying_where(450, full_bytes=2500) == pytest.approx(2.5)
    assert paying_where(500, full_bytes=100_000) == pytest.approx(UPLOAD_WAIT_MAX_S / LIMITS.interval_s)
    assert paying_where(500, full_bytes=10) == pytest.approx(1)


@pytest.mark.parametrize("appended_bytes", [0, 100, 350])
def test_where_a_part_of_the_producers_waits_the_interval_stays(appended_bytes: int) -> None:
    assert paying_where(appended_bytes) == pytest.approx(1)


def test_links_within_a_latency_bound_and_whatever_they_cost_are_not_held_up_for_larger_objects() -> None:
    assert paying_where(500, urgency=Urgency.BOUNDED_LINKS) == pytest.approx(1)
    assert paying_where(500, urgency=Urgency.LINKS) == 0


def test_an_upload_long_after_the_one_before_says_nothing_of_who_waits() -> None:
    commit = GroupCommit(LIMITS)
    for _ in range(40):
        commit.producers.stored(0.005, 1, 500, NOW_S)
    assert not commit.producers.nobody_waits
    commit.producers.stored(0.005, 10**6, None, NOW_S)
    assert not commit.producers.nobody_waits


@pytest.mark.parametrize(
    ("paying_bytes", "wait_max_s", "intervals"), [(500, 0.1, 1), (3000, 0.1, 3), (3000, 0.02, 2), (50_000, 0.1, 10)]
)
def test_where_producers_wait_paying_links_are_as_far_apart_as_the_rate_takes_to_bring_what_pays(
    paying_bytes: float, wait_max_s: float, intervals: float
) -> None:
    commit = idle_after_an_upload()
    load = Load(1, math.inf, False, 1000, Urgency.PAYING_LINKS, 100_000.0, paying_bytes, wait_max_s)
    assert delay_s(commit.next_step(load, NOW_S)) / LIMITS.interval_s == pytest.approx(intervals)
    long_after_s = NOW_S + 5
    begun = idle_after_an_upload()
    assert delay_s(begun.next_step(load, long_after_s)) / LIMITS.interval_s == pytest.approx(intervals), "the first"


def test_where_nobody_stands_still_for_what_is_wanted_objects_become_full() -> None:
    load = Load(1, math.inf, False, 1000, Urgency.PAYING_LINKS, 100_000.0, 500, 0.1, is_free=True, full_bytes=4000)
    assert delay_s(idle_after_an_upload().next_step(load, NOW_S)) / LIMITS.interval_s == pytest.approx(4)


def after_rounds_of(size_bytes: int, rounds: int = 5) -> GroupCommit:
    commit = GroupCommit(LIMITS)
    for _ in range(rounds):
        commit.started(NOW_S, size_bytes)
        commit.stored(NOW_S)
        commit.producers.stored(0.005, 0, 1.0, NOW_S)
    return commit


@pytest.mark.parametrize(
    ("round_bytes", "urgency", "gathers"),
    [
        (1000, Urgency.PAYING_LINKS, True),
        (1000, Urgency.BOUNDED_LINKS, True),
        (400, Urgency.PAYING_LINKS, False),
        (1000, Urgency.ARCHIVE, False),
    ],
)
def test_a_round_that_pays_well_is_gathered_and_not_held_back_for_the_interval(
    round_bytes: int, urgency: Urgency, gathers: bool
) -> None:
    unread = replace(waiting(0, urgency, BULK_BYTES - 1), has_unread=True, due_s=NOW_S, paying_bytes=500)
    step = after_rounds_of(round_bytes).next_step(unread, NOW_S)
    assert isinstance(step, Gather if gathers else Wait)
    assert not gathers or (isinstance(step, Gather) and step.quiet_s == QUIET_S)
    long_after = NOW_S + GATHER_RECENT_S + 0.001
    assert isinstance(after_rounds_of(round_bytes).next_step(replace(unread, due_s=long_after), long_after), Wait)


def test_where_nobody_waits_or_something_failed_no_round_is_gathered_below_a_bulk() -> None:
    unread = replace(waiting(0, Urgency.PAYING_LINKS, BULK_BYTES - 1), has_unread=True, due_s=NOW_S, paying_bytes=500)
    commit = after_rounds_of(1000)
    for _ in range(5):
        commit.producers.stored(0.005, 1, 2.0, NOW_S)
    assert isinstance(commit.next_step(unread, NOW_S), Wait)
    failed = after_rounds_of(1000)
    failed.started(NOW_S, 1000)
    failed.failed(NOW_S, NOW_S)
    assert isinstance(failed.next_step(unread, NOW_S), Wait)


def test_a_round_is_whole_when_as_much_is_queued_and_unread_as_the_last_ones_had() -> None:
    commit = after_rounds_of(1000)
    commit.appended(ONE, 400)
    commit.appended(OTHER, 400)
    assert not commit.is_round(100)
    assert commit.is_round(200)
    commit.appended(OTHER, 500)
    assert commit.is_round(100)
    commit.read()
    assert not commit.is_round(200)


def test_where_nobody_waits_there_are_no_rounds() -> None:
    commit = after_rounds_of(1000)
    for _ in range(5):
        commit.producers.stored(0.005, 1, 2.0, NOW_S)
    assert not commit.is_round(5000)


def test_when_fewer_append_their_smaller_rounds_are_known_within_some_uploads() -> None:
    commit = after_rounds_of(1000)
    assert not commit.is_round(500)
    for _ in range(20):
        commit.started(NOW_S, 500)
    assert commit.is_round(500)
