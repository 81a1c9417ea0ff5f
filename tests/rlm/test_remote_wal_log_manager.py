"""The write path on real files: what is appended is stored, in order, whatever fails on the way."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafka_log.errors import LogDirectoryError
from kafka_log.open_files import OpenFiles
from kafka_log.segment_tail import SegmentTail
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.segment_metadata import RemoteLogSegmentState
from rlm.write_path.core.partition_schedule import ScheduleIntervals
from rlm.write_path.reading.resume_point import ResumePoint
from rlm.write_path.reading.wal_task import RLMWalTask
from tests.kafka_log.log_writer import LogWriter
from tests.metric_values import metric_value
from tests.rlm.manager_rig import LIMITS, Listener, Rig, partition, running

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def test_a_run_that_ends_where_the_log_was_rolled_says_that_there_is_more(tmp_path: Path) -> None:
    """The appends to the new segment were told of before the run, so nothing else would bring the task back."""
    log = LogWriter(tmp_path / "t-0")
    task = RLMWalTask(partition(0), log.path, ResumePoint(0), OpenFiles())
    log.append(3)
    assert not task.run(10_000, 0.0, 0.0).more
    log.append(3)
    log.roll()
    log.append(2)
    read = []
    for _ in range(2):
        outcome = task.run(10_000, 0.0, 0.0)
        read += [batch.base_offset for item in outcome.items for batch in item.batches]
        if not outcome.more:
            break
    assert read == [3, 6]
    task.close()


async def test_the_backlog_is_bounded_while_the_store_is_down_and_nothing_is_lost(tmp_path: Path) -> None:
    async with running(tmp_path, queue_bytes=3000, queue_items=10) as rig:
        rig.storage.copies_fail = True
        for _ in range(100):
            rig.log().append(1, payload=b"b" * 400)
        rig.assign(0)
        failures = rig.metrics.upload_failures.labels("timeout")
        await rig.until(lambda: metric_value(failures) >= 8)
        one = len(rig.log().batches[0].raw)
        pending = rig.manager.led()[partition(0)].pending_bytes
        # What was being uploaded returns to the queue.
        assert pending <= 3000 + LIMITS.commit.max_in_flight * LIMITS.commit.upload_bytes + one
        assert rig.manager.status()[partition(0)].lag_bytes >= 100 * one - pending
        assert not rig.manager.upload_expected(partition(0), 0)
        rig.storage.copies_fail = False
        await rig.all_stored()
        assert rig.listener.stored(partition(0)) == [batch.raw for batch in rig.log().batches]


async def test_a_full_backlog_of_publications_stops_uploads_and_loses_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.publisher.is_full = True
        rig.log().append(3)
        rig.assign(0)
        failures = rig.metrics.upload_failures.labels("publication_backlog")
        await rig.until(lambda: metric_value(failures) >= 3)
        assert rig.storage.objects == {}
        assert not rig.manager.upload_expected(partition(0), 0)
        rig.publisher.is_full = False
        await rig.all_stored()
    assert len(rig.publisher.sequences(FINISHED)) == len(rig.listener.uploaded)


async def test_nothing_is_expected_of_a_manager_that_stops(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.log().append(3)
        rig.assign(0)
        await rig.all_stored()
        assert rig.manager.upload_expected(partition(0), 3)
    assert not rig.manager.upload_expected(partition(0), 3)


async def test_what_was_read_survives_a_disk_that_fails_right_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [LogDirectoryError(tmp_path, "planted")]
    backlog_bytes = SegmentTail.backlog_bytes

    def failing_once(tail: SegmentTail) -> int:
        if failures:
            raise failures.pop()
        return backlog_bytes(tail)

    monkeypatch.setattr(SegmentTail, "backlog_bytes", failing_once)
    async with running(tmp_path) as rig:
        rig.log().append(4)
        rig.assign(0)
        await rig.all_stored()
    assert failures == []


async def test_a_deleted_log_is_released_and_its_successor_taken_on_anew(tmp_path: Path) -> None:
    async with running(tmp_path, schedule=ScheduleIntervals(process_s=0.02, retry_s=0.002, retry_max_s=0.01)) as rig:
        rig.log().append()
        rig.assign(0)
        await rig.all_stored()
        rig.log().path.rename(tmp_path / "t-0.gone-delete")
        await rig.until(lambda: rig.listener.released == [partition(0)])
        del rig.logs[partition(0)]
        rig.log().append(7)
        rig.assign(0)
        await rig.all_stored()


async def test_a_defect_of_the_storage_manager_is_a_failed_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as rig:
        copy, answers = rig.storage.copy_log_segment_data, iter(["raise", "nonsense"])

        async def broken(*arguments: Any) -> Any:
            match next(answers, None):
                case "raise":
                    raise KeyError("what nobody thought of")
                case "nonsense":
                    return replace(await copy(*arguments), entries=())
                case _:
                    return await copy(*arguments)

        monkeypatch.setattr(rig.storage, "copy_log_segment_data", broken)
        rig.log().append()
        rig.assign(0)
        await rig.all_stored()
        assert metric_value(rig.metrics.upload_failures.labels("defect")) == 2
        assert rig.listener.uploaded[0].combined_segment_id.sequence == 2


async def test_a_defect_of_a_listener_holds_up_neither_the_others_nor_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as rig:
        failing, after = Listener(), Listener()
        monkeypatch.setattr(failing, "segment_uploaded", lambda _: 1 // 0)
        rig.manager.add_listener(failing)
        rig.manager.add_listener(after)
        rig.log().append()
        rig.assign(0)
        await rig.all_stored()
        assert after.stored(partition(0)) == [batch.raw for batch in rig.log().batches]
        assert metric_value(rig.metrics.listener_defects) == 1


async def test_a_defect_in_reading_one_log_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RLMWalTask.run

    def broken(task: RLMWalTask, *arguments: Any) -> Any:
        if task.topic_id_partition == partition(0):
            raise IndexError("what nobody thought of")
        return run(task, *arguments)

    async with running(tmp_path) as rig:
        with monkeypatch.context() as patch:
            patch.setattr(RLMWalTask, "run", broken)
            rig.log(0).append()
            rig.log(1).append()
            rig.assign(0, 1)
            await rig.all_stored(1)
            await rig.until(lambda: metric_value(rig.metrics.read_failures) > 0)
        await rig.all_stored(0)


async def test_a_graceful_stop_uploads_all_that_was_read(tmp_path: Path) -> None:
    commit = replace(LIMITS.commit, archive_interval_s=3600.0, interval_s=3600.0, max_in_flight=1, upload_bytes=1024)
    async with running(tmp_path, commit=commit, read_bytes=4096) as rig:
        rig.storage.hold_copies(0)
        held = rig.storage.copies_held
        assert held is not None
        for number in range(5):
            rig.log(number).append(1, payload=b"s" * 900)
        rig.assign(*range(5))
        for number in range(5):
            await _queued(rig, 1, number)
        assert rig.storage.objects == {}, "one is under way, and the others wait for it"
        asyncio.get_running_loop().call_later(0.02, held[0].set)
    assert len(rig.storage.objects) == 5


async def test_led_partitions_are_found_by_id_and_number_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.log(0)
        rig.assign(0)
        known = partition(0)
        assert rig.manager.find(known.topic_id, 0) == known
        assert rig.manager.find(known.topic_id, 1) is None
        assert rig.manager.find(b"another topic id", 0) is None
        assert rig.manager.find(None, 0) is None


async def _queued(rig: Rig, next_offset: int, number: int = 0) -> None:
    await rig.until(lambda: rig.manager.status()[partition(number)].log_end_offset >= next_offset)


async def test_uploads_keep_to_their_quota_and_lose_nothing(tmp_path: Path) -> None:
    commit = replace(LIMITS.commit, bytes_per_s=40_000)
    async with running(tmp_path, commit=commit, read_bytes=4096) as rig:
        for _ in range(8):
            rig.log().append(1, payload=b"q" * 3000)
        rig.assign(0)
        await rig.all_stored()
        stored_s = [segment.stored_s for segment in rig.listener.uploaded]
        # 24 kB: 10 kB of them were saved up, and the last object begins when those before it are paid for.
        assert stored_s[-1] - stored_s[0] >= 0.2
        assert rig.listener.stored(partition(0)) == [batch.raw for batch in rig.log().batches]


async def test_followers_do_not_wait_for_uploads_that_the_quota_holds_back(tmp_path: Path) -> None:
    async with running(tmp_path, commit=replace(LIMITS.commit, bytes_per_s=1024)) as rig:
        rig.log().append(1, payload=b"q" * 3000)
        rig.assign(0)
        await rig.all_stored()
        assert not rig.manager.upload_expected(partition(0), rig.log().log_end_offset)


async def test_a_log_tells_how_far_it_is_stored(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.log().append(4)
        rig.assign(0)
        await rig.all_stored()
        known = rig.manager.stored_log(partition(0))
        assert known is not None
        assert (known.directory, known.uploaded_offset) == (rig.log().path, 4)
        assert rig.manager.stored_log(partition(1)) is None


async def test_what_is_to_be_linked_at_any_price_is_told_by_the_policy_of_what_is_led(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        assert not rig.manager.is_always_linked(partition(0))
        by_cost = replace(rig.assignment(1), link_policy=LinkPolicy.COST)
        rig.log(0), rig.log(1)
        rig.manager.assign([rig.assignment(0), by_cost])
        await rig.until(lambda: len(rig.manager.status()) == 2)
        assert rig.manager.is_always_linked(partition(0))
        assert not rig.manager.is_always_linked(partition(1))
