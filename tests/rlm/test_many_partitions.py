"""Many partitions, and file descriptors that run out: slower and told, but nothing ends and nothing is lost."""

from pathlib import Path

from rlm.write_path.uploads.segment_queue import UploadedSegment
from tests.descriptors import few_left, none_left
from tests.metric_values import metric_value
from tests.rlm.manager_rig import Rig, partition, running

PARTITIONS = 1000
OPEN_FILES = 16


def stored_partitions(rig: Rig) -> int:
    return sum(
        status.uploaded_offset == rig.logs[one].log_end_offset > 0 for one, status in rig.manager.status().items()
    )


async def test_a_thousand_partitions_are_stored_with_few_open_files(tmp_path: Path) -> None:
    most = 0
    async with running(tmp_path, open_files=OPEN_FILES, queue_items=PARTITIONS, queue_bytes=2**24) as rig:

        def segment_uploaded(segment: UploadedSegment) -> None:
            nonlocal most
            most = max(most, rig.manager.load().open_files)

        rig.listener.segment_uploaded = segment_uploaded  # type: ignore[method-assign]
        for number in range(PARTITIONS):
            rig.log(number).append(1)
        rig.assign(*range(PARTITIONS))
        await rig.until(lambda: stored_partitions(rig) == PARTITIONS, "all are stored", timeout_s=60, look_s=0.1)
        for number in range(0, PARTITIONS, 10):
            rig.log(number).append(1)
        await rig.until(lambda: stored_partitions(rig) == PARTITIONS, "more is stored", timeout_s=60, look_s=0.1)
    assert 0 < most <= OPEN_FILES


async def test_without_descriptors_other_segment_files_are_closed_for_those_that_are_read(tmp_path: Path) -> None:
    async with running(tmp_path, open_files=64) as rig:
        for number in range(20):
            rig.log(number).append(1)
        rig.assign(*range(10))
        await rig.until(lambda: stored_partitions(rig) == 10)
        with few_left(0):
            rig.assign(*range(20))
            await rig.until(lambda: stored_partitions(rig) == 20)
        assert metric_value(rig.metrics.read_failures) > 0, "it is told"


async def test_without_any_descriptor_reads_fail_and_are_counted_until_there_are_some_again(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.log(0).append(1)
        rig.assign(0)
        await rig.all_stored(0)
        rig.manager.led()[partition(0)].task.close()
        rig.log(1).append(3)
        with none_left():
            rig.assign(0, 1)
            await rig.until(lambda: bool(metric_value(rig.metrics.read_failures)))
            assert not rig.manager.upload_expected(partition(1), 0)
        await rig.all_stored(1)
