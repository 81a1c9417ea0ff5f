"""What is hurried is uploaded at once, whatever the intervals say."""

from dataclasses import replace
from pathlib import Path

from metadata_topic.settings.topic_settings import LinkPolicy
from tests.rlm.manager_rig import LIMITS, partition, running


async def test_a_hurried_partition_does_not_wait_for_the_archive_interval(tmp_path: Path) -> None:
    async with running(tmp_path, commit=replace(LIMITS.commit, archive_interval_s=3600.0)) as rig:
        log = rig.log(0)
        log.append(3)
        rig.manager.assign([replace(rig.assignment(0), link_policy=LinkPolicy.COST)])
        await rig.all_stored(0)  # the first upload waits for none before it
        log.append(3)
        await rig.until(lambda: rig.manager.status()[partition(0)].lag_age_ms > 0, "noticed, and left waiting")
        assert rig.manager.uploaded_offset(partition(0)) == 3
        rig.manager.hurry(partition(0))
        await rig.all_stored(0)
        await rig.until(lambda: rig.manager.uploaded_offset(partition(0)) == 6)


async def test_what_is_not_hurried_any_more_waits_again(tmp_path: Path) -> None:
    async with running(tmp_path, commit=replace(LIMITS.commit, archive_interval_s=3600.0)) as rig:
        log = rig.log(0)
        log.append(1)
        rig.manager.assign([replace(rig.assignment(0), link_policy=LinkPolicy.COST)])
        await rig.all_stored(0)
        rig.manager.hurry(partition(0))
        rig.manager.hurry(partition(0), hurried=False)
        log.append(1)
        await rig.until(lambda: rig.manager.status()[partition(0)].lag_age_ms > 0, "noticed, and left waiting")
        assert rig.manager.uploaded_offset(partition(0)) == 1


async def test_who_does_not_lead_hurries_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.manager.hurry(partition(9))
        assert rig.manager.uploaded_offset(partition(9)) is None
        rig.log(0).append(1)
        rig.assign(0)
        await rig.all_stored(0)


async def test_that_nothing_was_left_to_upload_is_told(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.log(0).append(1)
        rig.assign(0)
        await rig.all_stored(0)
        rig.manager.hurry(partition(0))
        await rig.until(lambda: bool(rig.owner.settled))
        assert rig.owner.settled == [partition(0)]
