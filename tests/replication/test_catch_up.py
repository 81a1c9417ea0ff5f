"""A follower that is far behind: what the link index does not hold is found, ahead of it, and never wrongly."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from plugin.format.archive_object_id import StoredObjectId
from plugin.segment_metadata import CombinedSegmentId
from replication.leader.link_planner import SendLinked, WaitForUploads
from replication.leader.read_ahead import WantedRead
from replication.wire.link import InlineBytes
from replication.wire.peer_protocol import PeerCapabilities
from rlm.write_path.commit.link_policy import LinkMode
from tests.kafka_log.batches import batches
from tests.metric_values import metric_value
from tests.replication.catch_up_rig import OWN, Connection, Rig, joined
from tests.replication.fake_led import store
from tests.replication.fetch_frames import partition


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path / "t-0")
    yield made
    made.catch_up.close()
    made.shared.close()


async def test_where_inline_is_cheaper_what_was_stored_is_looked_for_if_the_response_may_be_worth_it(rig: Rig) -> None:
    (written,) = rig.fill(1)
    raw = joined(written)
    for more, is_linked in ((0, True), (1, False)):
        to = rig.follower(mode=LinkMode.INLINE, break_even_bytes=len(raw) + more)
        assert isinstance(await rig.answer({0: raw}, to), SendLinked) is is_linked
    assert rig.logs.offsets == [0]
    # What no object holds is not waited for: nobody uploads it for links.
    unstored = joined([rig.log.writer.append(2, payload=b"u" * 2000)])
    assert rig.begin_with({0: unstored}, rig.follower(mode=LinkMode.INLINE)) is None


async def test_what_will_come_next_is_announced_before_it_is_asked_for_up_to_the_bytes_ahead(rig: Rig) -> None:
    filled = rig.fill(30)
    size = sum(len(written.raw) for written in filled[0])
    await rig.links(filled[0])
    await rig.has_read()
    assert 10_000 <= rig.announced_bytes - size < 10_000 + size
    announced = rig.announced_sequences
    assert announced == list(range(len(announced)))
    for written in filled[1:]:
        sent = await rig.links(written)
        assert rig.linked_bytes(sent) == b"".join(each.raw for each in written)
        await rig.has_read()
    announced = rig.announced_sequences
    assert announced == sorted(set(announced))
    assert len(announced) >= 25


async def test_what_is_in_no_object_goes_inline_without_a_further_wait_and_what_follows_is_linked(rig: Rig) -> None:
    before = rig.fill(1)[0]
    missing = [rig.log.writer.append(2), rig.log.writer.append(2)]
    after = rig.fill(1)[0]
    sent = await rig.links(before + missing)
    assert [part for cut in sent.response.cuts for part in cut.parts if isinstance(part, InlineBytes)] == []
    await rig.has_read()
    assert rig.begin(missing) is None
    assert rig.linked_bytes(await rig.links(after)) == b"".join(written.raw for written in after)


async def test_a_follower_at_the_end_of_the_log_is_not_behind(rig: Rig) -> None:
    rig.fill(1)
    newest = [rig.log.writer.append(1)]  # not uploaded
    assert rig.begin(newest) is None
    assert not rig.catch_up.plan.ahead_bytes
    assert rig.announced == []


async def test_an_object_whose_deletion_was_started_after_it_was_found_is_not_linked(rig: Rig) -> None:
    first, second = rig.fill(2)
    await rig.links(first)
    await rig.has_read()
    rig.log.start_deletion(CombinedSegmentId(7, 3, 1))
    assert rig.begin(second) is None


async def test_a_deletion_is_seen_after_a_second_even_inside_of_one_object(rig: Rig) -> None:
    (written,) = rig.fill(1, batches_each=6)
    await rig.links(written[:3])
    rig.log.start_deletion(CombinedSegmentId(7, 3, 0))
    rig.now_s += 1.0
    assert rig.begin(written[3:]) is None


async def test_bytes_that_differ_from_the_responses_are_not_linked(rig: Rig) -> None:
    """The log was truncated and written anew between the response and the read, in both directions."""
    (written,) = rig.fill(1)
    await rig.links(written)
    other = batches(4, 0, 2, leader_epoch=1, payload=b"B" * 200)
    assert isinstance(rig.begin_with({0: other}, (rig.catch_up, rig.planner)), WaitForUploads)
    await rig.has_read()
    assert rig.shared.found.find(partition(0), 0) is not None
    assert rig.planner.decide(rig.now_s) is None


async def test_batches_of_a_log_that_was_truncated_or_released_are_forgotten(rig: Rig) -> None:
    rig.fill(2)
    stored_log = rig.log.stored_log(partition(0))
    assert stored_log is not None
    await rig.shared.read(WantedRead(stored_log, 0, archive=True))
    assert rig.shared.found.find(partition(0), 8) is not None
    rig.shared.found.drop_from(partition(0), 8)
    assert rig.shared.found.find(partition(0), 8) is None
    assert rig.shared.found.find(partition(0), 6) is not None
    rig.shared.found.drop(partition(0))
    assert rig.shared.found.find(partition(0), 6) is None


async def test_a_log_that_cannot_be_read_lets_the_bytes_go_inline(rig: Rig) -> None:
    (written,) = rig.fill(1)
    (rig.log.writer.path / "leader-epoch-checkpoint").write_text("no checkpoint")
    assert isinstance(rig.begin(written), WaitForUploads)
    await rig.told.wait()
    assert rig.planner.decide(rig.now_s) is None
    assert metric_value(rig.metrics.faults.labels("catch_up_log_unreadable")) == 1


async def test_a_defect_lets_the_bytes_go_inline_and_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    (written,) = rig.fill(1)

    def broken(*_: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(rig.log.store, "entries_covering", broken)
    assert isinstance(rig.begin(written), WaitForUploads)
    await rig.told.wait()
    assert rig.planner.decide(rig.now_s) is None
    await rig.has_read()
    assert metric_value(rig.metrics.faults.labels("catch_up_defect")) == 1


async def test_a_follower_with_its_links_in_old_objects_of_the_index_is_read_ahead_for_too(rig: Rig) -> None:
    filled = rig.fill(6)
    for written in filled:  # by this agent, long ago
        raw = b"".join(each.raw for each in written)
        store(rig.index, partition(0), raw, OWN._replace(sequence=written[0].base_offset))
    rig.shared.found.uploaded(OWN)
    verdict = rig.begin(filled[0])
    assert isinstance(verdict, SendLinked)
    assert rig.sent(verdict)
    await rig.has_read()
    assert rig.announced_sequences == [1, 2, 3, 4, 5]


async def test_with_links_to_the_newest_objects_nothing_is_read_ahead(rig: Rig) -> None:
    first, second = rig.fill(2)
    for number, written in enumerate((first, second)):
        raw = b"".join(each.raw for each in written)
        store(rig.index, partition(0), raw, OWN._replace(sequence=OWN.sequence - 39 + number))
    rig.shared.found.uploaded(OWN)
    verdict = rig.begin(first)
    assert isinstance(verdict, SendLinked)
    assert not rig.sent(verdict)
    assert not rig.catch_up.plan.ahead_bytes


async def test_when_the_follower_has_come_to_the_newest_objects_reading_ahead_ends(rig: Rig) -> None:
    first, second = rig.fill(2)
    raw = b"".join(each.raw for each in second)
    store(rig.index, partition(0), raw, OWN)
    rig.shared.found.uploaded(OWN)
    await rig.links(first)
    await rig.has_read()
    assert not rig.catch_up.plan.ahead_bytes
    assert rig.announced_sequences == [0, 1]


async def test_a_follower_with_links_to_archive_objects_is_far_behind_and_reads_with_restraint(rig: Rig) -> None:
    filled = rig.fill(2)
    rig.log.archive_all(rig.log.writer.batches)
    rig.shared.found.uploaded(OWN)
    verdict = rig.begin(filled[0])
    assert isinstance(verdict, WaitForUploads)
    await rig.has_read()
    verdict = rig.planner.decide(rig.now_s)
    assert isinstance(verdict, SendLinked)
    assert rig.sent(verdict)


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
        assert await rig.answer({0: batch.raw}) is None
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
        assert await rig.answer({0: batch.raw}) is None
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
