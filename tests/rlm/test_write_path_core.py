"""The write path's core driven by a plain loop: no event loop, no thread, no file, and time as the test says."""

from dataclasses import replace
from pathlib import Path

import pytest

from kafka_log.errors import LogDirectoryError
from kafka_log.tail_events import Gap
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.cadence import Cadence
from rlm.write_path.commit.link_policy import LinkDecider
from rlm.write_path.core.actions import (
    AskAnew,
    CountReadFailure,
    DeclareGaps,
    PassOver,
    Release,
    TellSettled,
    TellStored,
    TellTruncated,
    Watch,
)
from rlm.write_path.core.led_partition import PassedOver
from rlm.write_path.core.pacing import UploadNow, Wait
from rlm.write_path.core.write_path_core import WritePathCore
from rlm.write_path.reading.log_task import TaskOutcome
from rlm.write_path.uploads.segment_queue import UploadedSegment
from tests.rlm.driven_core import LIMITS, Driven, price
from tests.rlm.plain_log import BATCH_BYTES, PlainLog, PlainTask, partition


@pytest.fixture
def driven() -> Driven:
    driven = Driven()
    driven.assign(0, 1, 2)
    driven.settle()
    driven.actions.clear()
    return driven


def test_truncation_takes_what_is_queued_from_there_on_and_the_followers_back(driven: Driven) -> None:
    driven.append(0, 4)
    driven.read()
    driven.core.pacing.fetched(2, partition(0), 3, BATCH_BYTES, driven.now_s)
    driven.logs[0].cut(2)
    driven.append(0, 0)
    driven.read()
    assert driven.core.queue.size_bytes == 2 * BATCH_BYTES
    assert driven.core.led[partition(0)].followers_offset == 2
    assert driven.core.led[partition(0)].pending_bytes == 2 * BATCH_BYTES


def test_a_log_that_is_released_during_an_upload_takes_its_digests_with_it(driven: Driven) -> None:
    for number in (0, 1):
        driven.append(number)
    driven.read()
    driven.begin_upload()
    driven.assign(1, 2)
    driven.end_upload()
    assert driven.told == [(0, driven.logs[1].batches[0])]


def test_an_upload_without_digests_is_told_without_any(driven: Driven) -> None:
    driven.append(0)
    driven.read()
    driven.begin_upload()
    upload = driven.uploads.pop()
    items = tuple(upload.items)
    segment = UploadedSegment(
        CombinedSegmentId(1, 1, 1), items, tuple(item.metadata_entry() for item in items), 1, driven.now_s
    )
    assert TellStored(segment) in driven.core.upload_stored(upload, segment, driven.now_s)


def test_nothing_is_read_while_the_queue_is_full_and_as_much_as_fits_otherwise(driven: Driven) -> None:
    driven.append(0, 20)
    driven.read()
    assert driven.core.queue.size_bytes == 4 * BATCH_BYTES, "the budget of a run"
    driven.read()
    assert driven.core.queue.size_bytes == 6 * BATCH_BYTES, "the room that was left"
    assert driven.core.pacing.reads(driven.now_s) is None
    for _ in range(3):
        driven.begin_upload()
        driven.read()
    assert len(driven.uploads) == 3
    assert driven.core.pacing.next_step(driven.now_s) == Wait(None), "no more uploads than that"
    for which in (2, 1, 0):
        driven.end_upload(which, succeeds=False)
    assert driven.core.queue.is_full
    driven.now_s += 10
    driven.settle()
    assert [offset for offset, _ in driven.told] == list(range(20))


def test_what_the_budget_does_not_reach_is_due_again_at_once(driven: Driven) -> None:
    seen_s = driven.now_s
    driven.append(0, 4)
    driven.append(1)
    driven.now_s += 1
    driven.read()
    assert driven.core.led[partition(1)].append_seen_s == seen_s
    driven.read()
    assert driven.core.led[partition(1)].queued_offset == 1


@pytest.mark.parametrize("appended", [(10,), (4, 1), (4, 4, 4)])
def test_what_a_budget_left_of_logs_whose_links_are_wanted_waits_for_no_archive_interval(
    appended: tuple[int, ...], driven: Driven
) -> None:
    began_s = driven.now_s
    for number, count in enumerate(appended):
        driven.append(number, count)
    driven.settle()
    assert [driven.uploaded(number) for number in range(len(appended))] == list(appended)
    assert driven.now_s - began_s < 1


def test_a_hurried_log_does_not_wait_for_the_archive_interval_and_is_told_when_nothing_is_left() -> None:
    driven = Driven()
    driven.assign(0, policy=LinkPolicy.COST)
    driven.append(0)
    driven.settle()
    driven.append(0)
    step = driven.core.pacing.next_step(driven.now_s)
    assert isinstance(step, Wait)
    assert step.delay_s is not None
    assert step.delay_s > 50
    driven.core.pacing.hurry(partition(0), driven.now_s, hurried=True)
    assert driven.core.pacing.next_step(driven.now_s) == UploadNow()
    driven.read()
    assert driven.taken(TellSettled) == [], "it is read, and not stored"
    driven.begin_upload()
    driven.end_upload()
    driven.core.pacing.hurry(partition(0), driven.now_s, hurried=True)
    driven.read()
    assert driven.taken(TellSettled) == [TellSettled(partition(0))]
    driven.core.pacing.hurry(partition(0), driven.now_s, hurried=False)
    driven.append(0)
    assert isinstance(driven.core.pacing.next_step(driven.now_s), Wait)


def test_what_was_read_of_a_durable_log_waits_for_no_archive_interval_behind_another_log() -> None:
    driven = Driven(commit=replace(LIMITS.commit, upload_bytes=4 * BATCH_BYTES))
    driven.assign(0, 1, policy=LinkPolicy.COST)
    driven.append(0)
    driven.settle()
    durable = driven.core.led[partition(1)]
    durable.assignment = replace(durable.assignment, is_durable=True)
    for number in (0, 1):
        driven.append(number)
    driven.read()
    assert list(driven.core.queue.partitions) == [partition(0), partition(1)]
    assert driven.core.pacing.next_step(driven.now_s) == UploadNow()
    driven.begin_upload()
    assert not driven.core.queue.partitions


def test_who_is_not_led_is_not_hurried(driven: Driven) -> None:
    driven.core.pacing.hurry(partition(9), driven.now_s, hurried=True)
    assert driven.core.pacing.next_step(driven.now_s) == Wait(driven.core.pacing.schedule.next_time_s() - driven.now_s)  # type: ignore[operator]


def far_behind(driven: Driven) -> None:
    """Read in part, with more than eight objects' bytes to go and a follower at the end."""
    driven.append(0, 25)
    driven.read()
    driven.core.pacing.fetched(2, partition(0), 24, BATCH_BYTES, driven.now_s)


def test_a_log_that_is_far_behind_its_followers_is_to_be_passed_over_before_it_is_read(driven: Driven) -> None:
    far_behind(driven)
    reads = driven.core.pacing.reads(driven.now_s)
    assert reads is not None
    led = driven.core.led[partition(0)]
    assert (led.task.next_offset, led.followers_offset) == (4, 24)
    assert reads.first == [PassOver(led)]
    assert [read.led for read in reads.reads] == [led]


@pytest.mark.parametrize("kept", ["hurried", "near", "no follower is ahead"])
def test_a_log_is_not_passed_over_while_it_is(kept: str, driven: Driven) -> None:
    if kept == "hurried":
        far_behind(driven)
        driven.core.pacing.hurry(partition(0), driven.now_s, hurried=True)
    elif kept == "near":
        driven.append(0, 20)  # 16 batches are left: eight objects' bytes, and not more
        driven.read()
        driven.core.pacing.fetched(2, partition(0), 19, BATCH_BYTES, driven.now_s)
    else:
        driven.append(0, 25)
        driven.read()
        driven.core.pacing.fetched(2, partition(0), 4, BATCH_BYTES, driven.now_s)
    reads = driven.core.pacing.reads(driven.now_s)
    assert reads is not None
    assert reads.first == []


def test_a_log_that_is_cut_with_something_passed_over_is_released_and_asked_for_anew(driven: Driven) -> None:
    driven.append(0, 4)
    driven.read()
    led = driven.core.led[partition(0)]
    led.passed_over = PassedOver(led.assignment, led.task, driven.now_s, left=((0, 2),))
    assert led.stored_offset == 0
    driven.actions.clear()
    driven.logs[0].cut(1)
    driven.append(0)
    driven.read()
    assert driven.actions == [TellTruncated(partition(0), 1), Release(led), AskAnew()]
    assert partition(0) not in driven.core.led
    assert len(driven.core.queue) == 0


@pytest.mark.parametrize("lacks_descriptors", [False, True])
def test_a_log_that_cannot_be_read_backs_off_and_holds_up_no_other(lacks_descriptors: bool, driven: Driven) -> None:
    driven.append(0)
    reads = driven.core.pacing.reads(driven.now_s)
    assert reads is not None
    error = LogDirectoryError(Path("t-0"), "planted")
    if lacks_descriptors:
        error = no_descriptors()
    actions = driven.core.read_done(reads.reads[0], error, driven.now_s)
    assert actions == (CountReadFailure(close_unread=lacks_descriptors),)
    assert not driven.core.pacing.upload_expected(partition(0), 0, driven.now_s)
    driven.append(0)
    driven.append(1)
    driven.settle()
    assert driven.told == [(0, driven.logs[1].batches[0])]
    driven.now_s += LIMITS.schedule.retry_s
    driven.settle()
    assert driven.uploaded(0) == 2


def no_descriptors() -> LogDirectoryError:
    try:
        try:
            raise OSError(24, "too many open files")
        except OSError as cause:
            raise LogDirectoryError(Path("t-0"), str(cause)) from cause
    except LogDirectoryError as error:
        return error


def test_what_a_log_has_lost_is_declared_and_a_log_that_is_gone_released(driven: Driven) -> None:
    driven.append(0)
    reads = driven.core.pacing.reads(driven.now_s)
    assert reads is not None
    led, gaps = driven.core.led[partition(0)], (Gap(0, 7),)
    outcome = TaskOutcome((), 0, 7, 0, None, gaps, deleted=True)
    actions = driven.core.read_done(reads.reads[0], outcome, driven.now_s)
    assert actions[0] == DeclareGaps(led.assignment, gaps)
    assert actions[-1] == Release(led)
    assert partition(0) not in driven.core.led


def test_the_follower_of_an_unknown_log_asks_for_it_once_until_it_is_led(driven: Driven) -> None:
    assert driven.core.not_led(partition(9)) == (AskAnew(),)
    assert driven.core.not_led(partition(9)) == ()
    driven.assign(0, 1)
    driven.core.not_led(partition(2))
    driven.assign(0, 1, 2)
    driven.assign(0, 1)
    assert driven.core.not_led(partition(2)) == (AskAnew(),)


def test_a_log_whose_begin_is_not_known_is_put_off_and_asked_for_after_a_while(driven: Driven) -> None:
    assignment = Assignment(partition(7), "t", Path("t-7"), LinkPolicy.ALWAYS, 20)
    known = [led.assignment for led in driven.core.led.values()]
    driven.core.assigned([*known, assignment])
    assert driven.core.to_take_on() == [assignment]
    assert driven.core.resume_unknown(assignment, "why") == (AskAnew(1.0),)
    assert driven.core.put_off == {partition(7): "why"}
    driven.core.assigned(known)
    assert driven.core.put_off == {}


def test_logs_are_taken_on_a_few_at_a_time_and_watched_and_none_when_it_stops() -> None:
    core = WritePathCore(LIMITS, LinkDecider(price(1, 1.0), Cadence(LIMITS.commit)))
    wanted = [Assignment(partition(n), "t", Path(f"t-{n}"), LinkPolicy.ALWAYS, 20) for n in range(70)]
    core.assigned(wanted)
    first = core.to_take_on()
    assert first == wanted[:32]
    assert core.taken_on(first[0], PlainTask(PlainLog(0))) == (Watch(partition(0), Path("t-0")),)
    assert len(core.to_take_on()) == 32
    assert core.has_to_take_on
    core.stopping()
    assert core.to_take_on() == []


def test_a_log_that_moved_to_another_directory_is_taken_on_anew(driven: Driven) -> None:
    led = driven.core.led[partition(0)]
    known = [one.assignment for one in driven.core.led.values()]
    moved = replace(known[0], directory=Path("elsewhere"))
    assert driven.core.assigned([moved, *known[1:]]) == [Release(led)]
    assert driven.core.to_take_on() == [moved]


def test_the_last_uploads_wait_for_no_interval_and_no_quota_but_for_back_offs_and_threads() -> None:
    driven = Driven(commit=replace(LIMITS.commit, bytes_per_s=1, interval_s=1000.0))
    driven.assign(0)
    driven.append(0, 6)
    driven.read()
    driven.begin_upload()
    driven.read()
    assert driven.core.pacing.next_upload(driven.now_s) is None, "the quota is used up"
    last = list(driven.core.pacing.last_uploads(driven.now_s))
    assert [len(upload.items[0].batches) for upload in last] == [2]
    driven.core.upload_failed(last[0], driven.now_s)
    assert list(driven.core.pacing.last_uploads(driven.now_s)) == []
    driven.now_s += LIMITS.commit.retry_s
    assert len(list(driven.core.pacing.last_uploads(driven.now_s))) == 1
