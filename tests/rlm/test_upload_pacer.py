"""When an upload may start."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm.upload_pacer import BULK_BYTES, BULK_OBJECT_BYTES, PacerLimits, UploadPacer, Urgency

LIMITS = PacerLimits(
    interval_s=0.01, archive_interval_s=1.0, upload_bytes=1000, max_in_flight=2, retry_s=0.5, retry_max_s=4.0
)


def test_with_nothing_in_flight_a_lone_record_waits_for_nothing() -> None:
    pacer = UploadPacer(LIMITS)
    pacer.started(10.0)
    pacer.finished(10.0)
    start_s = pacer.next_start_s(1, Urgency.LINKS)
    assert start_s is not None
    assert start_s <= 10.0


def test_with_uploads_in_flight_it_starts_one_interval_after_the_last_or_with_a_full_object() -> None:
    pacer = UploadPacer(LIMITS)
    pacer.started(10.0)
    assert pacer.next_start_s(999, Urgency.LINKS) == pytest.approx(10.01)
    full = pacer.next_start_s(1000, Urgency.LINKS)
    assert full is not None
    assert full <= 10.0


def test_links_that_must_pay_wait_for_the_interval_even_with_nothing_in_flight() -> None:
    pacer = UploadPacer(LIMITS)
    pacer.started(10.0)
    pacer.finished(10.0)
    assert pacer.next_start_s(999, Urgency.PAYING_LINKS) == pytest.approx(10.01)


def test_when_nobody_wants_links_it_keeps_the_archive_interval() -> None:
    pacer = UploadPacer(LIMITS)
    pacer.started(10.0)
    pacer.finished(10.0)
    assert pacer.next_start_s(1, Urgency.ARCHIVE) == pytest.approx(11.0)


def test_no_more_than_the_threads_can_carry_are_in_flight() -> None:
    pacer = UploadPacer(LIMITS)
    pacer.started(10.0)
    pacer.started(10.0)
    assert pacer.next_start_s(10_000, Urgency.LINKS) is None
    assert pacer.oldest_in_flight_s(12.5) == 2.5
    pacer.finished(10.0)
    assert pacer.next_start_s(10_000, Urgency.LINKS) is not None


@settings(max_examples=100)
@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_the_back_off_doubles_with_each_failure_in_a_row_up_to_its_limit(outcomes: list[bool]) -> None:
    pacer, now_s, failures = UploadPacer(LIMITS), 0.0, 0
    for succeeds in outcomes:
        pacer.started(now_s)
        if succeeds:
            pacer.finished(now_s)
            failures = 0
        else:
            pacer.failed(now_s, now_s)
            failures += 1
        next_s = pacer.next_start_s(1000, Urgency.LINKS)
        assert next_s is not None
        if failures:
            assert next_s == now_s + min(0.5 * 2 ** (failures - 1), 4.0)
        else:
            assert next_s <= now_s
        assert pacer.failures_in_a_row == failures
        assert pacer.in_flight == 0
        now_s = max(now_s + 0.1, next_s)


def idle_after_an_upload() -> UploadPacer:
    pacer = UploadPacer(LIMITS)
    pacer.started(10.0)
    pacer.finished(10.0)
    assert pacer.next_start_s(1, Urgency.LINKS) == float("-inf")
    return pacer


@pytest.mark.parametrize(
    ("expected_bytes", "intervals"),
    [(BULK_BYTES, 2.0), (BULK_OBJECT_BYTES / 1.5, 1.5), (BULK_OBJECT_BYTES, 1.0), (9 * BULK_OBJECT_BYTES, 1.0)],
)
def test_while_much_is_appended_without_a_pause_an_upload_waits_for_a_full_object(
    expected_bytes: float, intervals: float
) -> None:
    pacer = idle_after_an_upload()
    for urgency in (Urgency.LINKS, Urgency.PAYING_LINKS):
        assert pacer.next_start_s(1, urgency, expected_bytes) == pytest.approx(10.0 + intervals * LIMITS.interval_s)
    assert pacer.next_start_s(1, Urgency.ARCHIVE, expected_bytes) == 10.0 + LIMITS.archive_interval_s
    assert pacer.next_start_s(LIMITS.upload_bytes, Urgency.LINKS, expected_bytes) == float("-inf")


def test_producers_that_wait_wait_for_two_intervals_at_most() -> None:
    pacer = idle_after_an_upload()
    for expected_bytes in (BULK_BYTES, 9 * BULK_OBJECT_BYTES):
        start_s = pacer.next_start_s(1, Urgency.LINKS, expected_bytes, producers_wait=True)
        assert start_s == pytest.approx(10.0 + 2 * LIMITS.interval_s)


def test_below_a_bulk_nobody_waits_for_a_full_object() -> None:
    pacer = idle_after_an_upload()
    assert pacer.next_start_s(1, Urgency.LINKS, BULK_BYTES - 1) == float("-inf")


def test_the_quota_holds_uploads_back_whatever_they_are_for() -> None:
    pacer = UploadPacer(replace(LIMITS, bytes_per_s=10_000))
    assert pacer.held_back_s(10.0) == 0
    pacer.started(10.0, 7_500)  # a quarter of a second's worth was saved up
    pacer.finished(10.0)
    assert pacer.held_back_s(10.0) == pytest.approx(0.5)
    for queued_bytes, urgency in ((1, Urgency.LINKS), (10_000, Urgency.ARCHIVE), (1, Urgency.PAYING_LINKS)):
        assert pacer.next_start_s(queued_bytes, urgency) == pytest.approx(10.5)
    assert pacer.held_back_s(10.5) == 0


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 5_000), st.sampled_from([0.0, 0.01, 0.3, 2.0])), min_size=1, max_size=40))
def test_in_any_time_no_more_is_uploaded_than_the_quota_lets_and_one_object(uploads: list[tuple[int, float]]) -> None:
    pacer, now_s, started = UploadPacer(replace(LIMITS, bytes_per_s=10_000)), 0.0, list[tuple[float, int]]()
    for size, pause_s in uploads:
        now_s += pause_s
        start_s = pacer.next_start_s(size, Urgency.LINKS)
        assert start_s is not None
        now_s = max(now_s, start_s)
        pacer.started(now_s, size)
        pacer.finished(now_s)
        started.append((now_s, size))
    for first, (from_s, _) in enumerate(started):
        for last in range(first, len(started)):
            until_s, _ = started[last]
            moved = sum(size for _, size in started[first:last])
            assert moved <= 10_000 * (until_s - from_s + 0.25) + 1e-6
