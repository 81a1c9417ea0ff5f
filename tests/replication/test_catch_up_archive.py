"""A follower that is far behind, where archive objects play a part beside combined segments."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from replication.link_planner import SendLinked
from tests.kafka_log.batches import batches
from tests.replication.catch_up_rig import OWN, Rig, joined
from tests.replication.fake_led import store
from tests.replication.fetch_frames import partition


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path / "t-0")
    yield made
    made.catch_up.close()
    made.shared.close()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_a_response_with_one_old_link_is_one_to_a_follower_far_behind_wherever_the_link_stands(
    rig: Rig, order: tuple[int, int]
) -> None:
    filled = rig.fill(6)
    archived = rig.log.archive_all(rig.log.writer.batches)
    await rig.links(filled[0])  # found for another follower
    await rig.has_read()
    rig.announced.clear()
    newest = batches(2, payload=b"n" * 100)
    store(rig.index, partition(1), newest, OWN)
    rig.shared.uploaded(OWN)

    records = {0: joined(filled[0]), 1: newest}
    follower, planner = rig.follower()
    verdict = await rig.answer({number: records[number] for number in order}, planner)
    assert isinstance(verdict, SendLinked)
    assert {link.object_id for link in verdict.response.links} == {archived, OWN}
    assert follower.sent(verdict)
    await rig.has_read()
    assert list(follower._windows) == [partition(0)]
    assert {named for named, _ in rig.announced} == {archived}
    follower.close()
