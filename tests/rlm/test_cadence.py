"""When the logs are read and an upload starts."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.topic_partition import TopicId, TopicIdPartition
from rlm.write_path.commit.cadence import Cadence, CommitLimits, Load, Urgency
from rlm.write_path.commit.constants import BURST_S, LULL_S, OBJECT_BYTES

LIMITS = CommitLimits(
    interval_s=0.01, archive_interval_s=1.0, upload_bytes=1000, max_in_flight=2, retry_s=0.5, retry_max_s=4.0
)
NOW_S = 10.0
ONE, OTHER = (TopicIdPartition(TopicId(bytes(16)), number) for number in range(2))
BULK = OBJECT_BYTES / LIMITS.interval_s / 4
"""Bytes a second."""


def waiting(queued_bytes: int, urgency: Urgency = Urgency.LINKS, bytes_per_s: float = 0.0) -> Load:
    return Load((), queued_bytes, urgency=urgency, bytes_per_s=bytes_per_s)


def begun(limits: CommitLimits = LIMITS, size_bytes: int = 0) -> Cadence:
    cadence = Cadence(limits)
    cadence.started(NOW_S, size_bytes)
    return cadence


def idle_after_an_upload(limits: CommitLimits = LIMITS, size_bytes: int = 0) -> Cadence:
    cadence = begun(limits, size_bytes)
    cadence.stored(NOW_S)
    return cadence


def delay_s(cadence: Cadence, load: Load, now_s: float = NOW_S) -> float:
    return max(cadence.start_s(load, now_s) - now_s, 0.0)


def test_a_lone_record_waits_for_nothing_and_others_for_an_interval_or_a_full_object() -> None:
    assert delay_s(idle_after_an_upload(), waiting(1)) == 0, "nothing is in flight"
    assert delay_s(begun(), waiting(999)) == pytest.approx(0.01)
    assert delay_s(begun(), waiting(1000)) == 0
    for rate in (0.0, BULK):
        archive = waiting(1, Urgency.ARCHIVE, rate)
        assert delay_s(idle_after_an_upload(), archive) == pytest.approx(1.0), "nobody wants links"


@pytest.mark.parametrize("urgency", [Urgency.LINKS, Urgency.PAYING_LINKS])
@pytest.mark.parametrize("size", [999, LIMITS.upload_bytes])
def test_uploads_are_spaced_whoever_waits_and_whole_ones_too(urgency: Urgency, size: int) -> None:
    cadence = idle_after_an_upload()
    cadence.spacing_s = 0.25
    cadence.left_out(NOW_S + 0.2)
    assert delay_s(cadence, waiting(size, urgency), NOW_S + 0.2) == pytest.approx(0.05)
    assert delay_s(cadence, waiting(size, urgency), NOW_S + 0.25) == 0


def test_what_logs_are_known_to_hold_counts_for_a_full_object_until_it_is_read() -> None:
    cadence, load = begun(), waiting(1, Urgency.PAYING_LINKS)
    cadence.left_unread(ONE, LIMITS.upload_bytes - 2)
    assert delay_s(cadence, load) > 0
    cadence.left_unread(OTHER, 1)
    assert delay_s(cadence, load) == 0
    cadence.read()
    assert delay_s(cadence, load) > 0


@pytest.mark.parametrize(("wait_s", "intervals"), [(0.0, 1), (0.02, 2), (0.1, 10)])
def test_links_that_must_pay_wait_as_long_as_they_may_and_no_shorter_than_an_interval(
    wait_s: float, intervals: float
) -> None:
    load = replace(waiting(1, Urgency.PAYING_LINKS, 100_000.0), wait_s=wait_s)
    assert delay_s(idle_after_an_upload(), load) == pytest.approx(intervals * LIMITS.interval_s)
    later = replace(load, since_s=NOW_S + 5)
    assert delay_s(idle_after_an_upload(), later, NOW_S + 5) == pytest.approx(intervals * LIMITS.interval_s), (
        "a new load"
    )


@pytest.mark.parametrize(("enough_bytes", "intervals"), [(500, 1), (3000, 3), (50_000, 10), (math.inf, 10)])
def test_logs_are_read_once_the_rate_has_brought_what_pays_and_that_is_uploaded_in_a_lull(
    enough_bytes: float, intervals: float
) -> None:
    load = replace(
        waiting(0, Urgency.PAYING_LINKS, 100_000.0), wait_s=0.1, due_s=NOW_S, enough_bytes=enough_bytes, newest_s=NOW_S
    )
    assert delay_s(idle_after_an_upload(), load) == pytest.approx(intervals * LIMITS.interval_s)
    read = [replace(load, queued_bytes=size) for size in (499, 500)]
    lull_s = LULL_S if enough_bytes == 500 else 0.1
    assert [delay_s(idle_after_an_upload(), one) for one in read] == pytest.approx([0.1, lull_s])


def test_no_more_than_the_threads_can_carry_are_in_flight() -> None:
    cadence = begun()
    full_before = cadence.is_full
    cadence.started(NOW_S, 0)
    assert (full_before, cadence.is_full) == (False, True)
    assert delay_s(cadence, waiting(10_000)) == math.inf
    cadence.stored(NOW_S)
    assert delay_s(cadence, waiting(10_000)) == 0


def test_with_nothing_queued_it_waits_until_a_log_is_due_and_then_for_the_upload_that_would_take_it() -> None:
    cadence, nothing = begun(), waiting(0)
    assert delay_s(cadence, nothing) == math.inf
    assert delay_s(cadence, replace(nothing, due_s=NOW_S + 5)) == 5.0
    assert delay_s(cadence, replace(nothing, due_s=NOW_S)) == pytest.approx(0.01)
    cadence.stored(NOW_S)
    assert delay_s(cadence, replace(nothing, due_s=NOW_S)) == 0


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_the_back_off_doubles_with_each_failure_in_a_row_up_to_its_limit(outcomes: list[bool]) -> None:
    cadence, now_s, failures = Cadence(LIMITS), 0.0, 0
    for succeeds in outcomes:
        cadence.started(now_s, 0)
        assert [cadence.is_prompt(2.5, now_s + over_s) for over_s in (2.4, 2.6)] == [not failures, False]
        if succeeds:
            cadence.stored(now_s)
            failures = 0
        else:
            cadence.failed(now_s, now_s)
            failures += 1
        back_off_s = min(0.5 * 2 ** (failures - 1), 4.0) if failures else 0.0
        assert cadence.back_off_s(now_s) == pytest.approx(back_off_s)
        assert delay_s(cadence, waiting(1000), now_s) == pytest.approx(back_off_s)
        assert cadence.is_prompt(math.inf, now_s) is not bool(failures)
        now_s += max(0.1, back_off_s)


@pytest.mark.parametrize(("rate", "intervals"), [(BULK, 2.0), (8 / 3 * BULK, 1.5), (4 * BULK, 1.0), (36 * BULK, 1.0)])
def test_while_much_is_appended_an_upload_waits_for_a_large_object(rate: float, intervals: float) -> None:
    step_s = delay_s(idle_after_an_upload(), waiting(1, Urgency.LINKS, rate))
    assert step_s == pytest.approx(intervals * LIMITS.interval_s)
    assert delay_s(idle_after_an_upload(), waiting(LIMITS.upload_bytes, Urgency.LINKS, rate)) == 0
    assert delay_s(idle_after_an_upload(), waiting(1, Urgency.LINKS, 0.99 * BULK)) == 0


def test_the_quota_holds_uploads_back_whatever_they_are_for() -> None:
    cadence = idle_after_an_upload(replace(LIMITS, bytes_per_s=10_000), int(10_000 * (BURST_S + 0.5)))
    assert [cadence.is_prompt(one, NOW_S) for one in (0.4, 0.6)] == [False, True]
    for queued_bytes, urgency in ((1, Urgency.LINKS), (10_000, Urgency.ARCHIVE), (1, Urgency.PAYING_LINKS)):
        assert delay_s(cadence, waiting(queued_bytes, urgency)) == pytest.approx(0.5)
    assert delay_s(cadence, waiting(1), NOW_S + 0.5) == delay_s(idle_after_an_upload(size_bytes=2**40), waiting(1)) == 0


@given(st.lists(st.tuples(st.integers(1, 5_000), st.sampled_from([0.0, 0.01, 0.3, 2.0])), min_size=1, max_size=40))
def test_in_any_time_no_more_is_uploaded_than_the_quota_lets_and_one_object(uploads: list[tuple[int, float]]) -> None:
    cadence, now_s, started = Cadence(replace(LIMITS, bytes_per_s=10_000)), 0.0, list[tuple[float, int]]()
    for size, pause_s in uploads:
        now_s += pause_s
        now_s += delay_s(cadence, waiting(size), now_s)
        cadence.started(now_s, size)
        cadence.stored(now_s)
        started.append((now_s, size))
    for first, (from_s, _) in enumerate(started):
        for last in range(first, len(started)):
            until_s, _ = started[last]
            moved = sum(size for _, size in started[first:last])
            assert moved <= 10_000 * (until_s - from_s + BURST_S) + 1e-6
