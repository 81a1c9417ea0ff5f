"""A follower that is far behind, where archive objects play a part beside combined segments."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from plugin.format.archive_object_id import StoredObjectId
from replication.leader.link_planner import PassThrough, SendLinked
from replication.wire.peer_protocol import PeerCapabilities
from tests.kafka_log.batches import batches
from tests.replication.catch_up_rig import OWN, Connection, Rig, joined
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
    rig.shared.found.uploaded(OWN)

    records = {0: joined(filled[0]), 1: newest}
    follower, planner = rig.follower()
    verdict = await rig.answer({number: records[number] for number in order}, (follower, planner))
    assert isinstance(verdict, SendLinked)
    assert {link.object_id for link in verdict.response.links} == {archived, OWN}
    assert rig.sent(verdict, follower)
    await rig.has_read()
    assert list(follower.plan.ahead_bytes) == [partition(0)]
    assert {named for named, _ in rig.announced} == {archived}
    follower.close()


async def test_a_run_that_the_log_does_not_prove_is_read_once_and_what_lies_behind_it_is_linked(rig: Rig) -> None:
    written = [batch for filled in rig.fill(4) for batch in filled]  # 16 batches
    committed = rig.log.write_archive(written, run_bytes=8 * len(written[0].raw))
    refused, proved = committed.runs
    rig.log.archived.apply(replace(committed, runs=(replace(refused, crc32c=refused.crc32c ^ 1), proved)))
    for segment in list(rig.log.storage.objects):
        rig.log.start_deletion(segment)
    rig.logs.offsets.clear()

    for batch in written[:8]:
        assert isinstance(await rig.answer({0: batch.raw}), PassThrough)
    assert rig.logs.offsets == [0]
    sent = await rig.links(written[8:])
    assert rig.linked_bytes(sent) == joined(written[8:])
    assert rig.logs.offsets == [0, written[8].base_offset]


async def test_a_run_that_the_log_does_not_prove_is_not_read_again_when_it_was_met_while_reading_ahead(
    rig: Rig,
) -> None:
    first = rig.fill(1)[0]
    second = [rig.log.writer.append(2, payload=b"2" * 200) for _ in range(4)]
    rig.log.upload([replace(second[0], raw=second[1].raw), *second[1:]])
    third = rig.fill(1)[0]
    rig.logs.offsets.clear()
    await rig.links(first)
    await rig.has_read()
    for batch in second:
        assert isinstance(await rig.answer({0: batch.raw}), PassThrough)
    assert rig.logs.offsets == [0]
    assert rig.linked_bytes(await rig.links(third)) == joined(third)


async def answer_object_ids(rig: Rig, to: Connection, records: bytes) -> set[StoredObjectId]:
    """What the links of a response with these records name; nothing when it goes inline."""
    verdict = await rig.answer({0: records}, to)
    if isinstance(verdict, SendLinked):
        rig.sent(verdict, to[0])
    await rig.has_read()
    return {link.object_id for link in verdict.response.links} if isinstance(verdict, SendLinked) else set()


async def test_what_is_in_both_stores_stays_linked_for_who_understands_combined_segments_alone(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "t-0", read_bytes=100_000)
    first, second, third = rig.fill(3)
    segments = list(rig.log.storage.objects)
    committed = rig.log.write_archive(rig.log.writer.batches, run_bytes=100_000)
    rig.log.archived.apply(committed)
    rig.log.start_deletion(segments[0])
    older, newer = rig.follower(~PeerCapabilities.ARCHIVE_LINKS), (rig.catch_up, rig.planner)
    assert await answer_object_ids(rig, older, joined(second)) == {segments[1]}
    assert await answer_object_ids(rig, newer, joined(first)) == {committed.object_id}  # a run over all three
    assert await answer_object_ids(rig, older, joined(third)) == {segments[2]}
    assert await answer_object_ids(rig, newer, joined(third)) == {segments[2]}
    older[0].close()
    newer[0].close()
    rig.shared.close()


async def test_a_combined_segment_that_is_to_be_deleted_does_not_stand_before_the_archive_object(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path / "t-0", read_bytes=100_000)
    first, second, third = rig.fill(3)
    older, newer = rig.follower(~PeerCapabilities.ARCHIVE_LINKS), rig.follower()
    assert len(await answer_object_ids(rig, older, joined(second))) == 1
    archived = rig.log.archive_all(rig.log.writer.batches, run_bytes=100_000)
    rig.now_s += 1
    assert await answer_object_ids(rig, newer, joined(first)) == {archived}
    assert await answer_object_ids(rig, newer, joined(third)) == {archived}
    older[0].close()
    newer[0].close()
    rig.shared.close()
