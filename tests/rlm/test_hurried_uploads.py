"""Whoever hurries a log is told when nothing is left to upload."""

from pathlib import Path

from tests.rlm.manager_rig import partition, running


async def test_that_nothing_was_left_to_upload_is_told(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.log(0).append(1)
        rig.assign(0)
        await rig.all_stored(0)
        rig.manager.hurry(partition(0))
        await rig.until(lambda: bool(rig.owner.settled))
        assert rig.owner.settled == [partition(0)]
