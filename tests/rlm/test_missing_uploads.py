"""What an agent leaves behind when it stops or dies, and how the next one takes it up: by the manager as a whole."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry, RemoteLogSegmentState
from rlm.lifecycle.gap_declarations import GapDeclarations
from rlm.lifecycle.release import Tiers
from rlm.write_path.assignment import Assignment
from rlm.write_path.core import write_path_core
from rlm.write_path.reading.resume_point import ResumePoint, ResumeUnknownError, resume_point
from tests.metric_values import metric_value
from tests.rlm.manager_rig import LIMITS, Rig, partition, running
from tests.rlm.memory_storage import FAIL_AFTER, FAIL_BEFORE, MemoryPublisher

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
EPOCH_0 = LeaderEpochs([(0, 0)])


def topic_of(rig: Rig) -> RemoteWalMetadataStore:
    """What everybody knows once the rig's records were read."""
    store = RemoteWalMetadataStore()
    for record in rig.publisher.published:
        store.apply(record)
    return store


def told(rig: Rig) -> list[tuple[int, int]]:
    return topic_of(rig).stored_ranges(partition(0), EPOCH_0)


async def second_stored_and_first_under_way(rig: Rig) -> asyncio.Event:
    """Two uploads of ten records each."""
    rig.storage.hold_copies(0)
    rig.log().append(10)
    rig.assign(0)
    assert await asyncio.to_thread(rig.storage.copy_begun[0].wait, 10)
    rig.log().append(10, payload=b"later")
    await rig.until(lambda: len(rig.storage.objects) == 1, "the second is stored")
    assert rig.storage.copies_held is not None
    return rig.storage.copies_held[0]  # type: ignore[return-value]


async def test_a_stop_uploads_what_failed_before_and_fails_meanwhile(tmp_path: Path) -> None:
    rig = Rig(tmp_path, LIMITS)
    rig.manager.start()
    first = await second_stored_and_first_under_way(rig)
    rig.storage.copy_faults = [FAIL_BEFORE, FAIL_AFTER, FAIL_BEFORE]
    with capture_logs() as logs:
        stopping = asyncio.create_task(rig.manager.stop(10.0))
        first.set()
        await stopping
    assert told(rig) == [(0, 20)]
    sequences = rig.publisher.sequences(FINISHED)
    assert sequences == sorted(sequences)
    assert not [entry for entry in logs if entry["event"] == "uploads_unfinished"]


async def test_a_stop_ends_in_time_and_tells_what_is_not_stored_and_publishes_what_is(tmp_path: Path) -> None:
    rig = Rig(tmp_path, LIMITS)
    rig.manager.start()
    first = await second_stored_and_first_under_way(rig)
    assert told(rig) == [], "metadata goes out in order"
    with capture_logs() as logs:
        async with asyncio.timeout(60):
            await rig.manager.stop(0.05)
    [unfinished] = [entry for entry in logs if entry["event"] == "uploads_unfinished"]
    assert unfinished["from_offsets"] == {"t-0": 0}
    assert told(rig) == [(10, 20)]
    first.set()


async def test_a_partition_is_not_taken_on_until_it_is_known_where_to_go_on(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        is_known = False

        def resume(_assignment: Assignment) -> ResumePoint:
            if not is_known:
                raise ResumeUnknownError("the metadata topic is not read")
            return ResumePoint(0)

        rig.owner.resume = resume
        rig.log().append(3)
        rig.assign(0, 1)
        assert set(rig.manager.put_off.values()) == {"the metadata topic is not read"}
        assert not rig.manager.status()
        assert rig.manager.find(partition(0).topic_id, 0) is None
        rig.assign(0)
        assert set(rig.manager.put_off) == {partition(0)}
        is_known = True
        rig.assign(0)
        assert not rig.manager.put_off
        await rig.all_stored()


async def test_it_is_asked_once_however_many_partitions_wait_to_be_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_path_core, "_LOOK_AGAIN_S", 0.01)
    async with running(tmp_path) as rig:
        asked: list[None] = []

        def resume(_assignment: Assignment) -> ResumePoint:
            raise ResumeUnknownError("the metadata topic is not read")

        rig.owner.resume = resume
        rig.owner.look_again = lambda: asked.append(None)
        rig.assign(*range(5))
        await rig.until(lambda: bool(asked))
        rig.assign(*range(4))
        await rig.until(lambda: len(asked) > 1)
        assert len(asked) == 2


class HeldTier:
    """A long-term tier that holds these offsets."""

    def __init__(self, *held: tuple[int, int]) -> None:
        self._held = held

    def holds(self, entry: RemoteLogSegmentMetadataEntry, /) -> bool:
        return any(begin <= entry.first_offset and entry.last_offset < end for begin, end in self._held)

    def waits_for(self, _topic_id: object, /) -> bool:
        return False


def declarations(rig: Rig, publisher: MemoryPublisher, tier: Tiers) -> GapDeclarations:
    first, known = CombinedSegmentId(1, 5, 0), RemoteWalMetadataStore().apply
    return GapDeclarations(first, publisher, known, tier, rig.metrics, lambda: 7)  # type: ignore[arg-type]


def declared(records: Iterable[object]) -> list[DeclaredGap]:
    return [gap for record in records if isinstance(record, RemoteWalGapDeclaration) for gap in record.gaps]


async def test_what_retention_removed_before_it_was_stored_is_declared_but_for_what_the_tier_holds(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as rig:
        published = MemoryPublisher()
        tier = Tiers([HeldTier((10, 20))])
        rig.owner.gaps = gaps = declarations(rig, published, tier)
        log = rig.log()
        for epoch in (0, 1, 1, 2, 2):
            log.append(10, leader_epoch=epoch)
            log.roll()
        log.remove_oldest()
        log.remove_oldest()
        log.remove_oldest()
        log.append(10, leader_epoch=2)
        # Kafka keeps the epochs of what is on the tier.
        log.epochs = [(0, 0), (1, 10), (2, 30)]
        log.write_checkpoint()
        rig.owner.resume = lambda _assignment: ResumePoint(45, ((5, 12), (20, 25)), LeaderEpochs(log.epochs))
        rig.assign(0)
        await rig.until(lambda: told(rig) != [] or bool(rig.storage.objects))
        await rig.until(lambda: len(declared(published.published)) == 2)
        assert declared(published.published) == [
            DeclaredGap(partition(0), 5, 10, 2, GapReason.RETENTION),
            DeclaredGap(partition(0), 20, 25, 2, GapReason.RETENTION),
        ]
        assert metric_value(rig.metrics.gap_offsets) == 10
        assert metric_value(rig.metrics.declared_gaps.labels("retention")) == 2
        gaps.close()


async def test_what_compaction_took_before_it_was_read_is_told_as_no_loss(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        published = MemoryPublisher()
        rig.owner.gaps = gaps = declarations(rig, published, Tiers())
        log = rig.log()
        for _ in range(4):
            log.append(10, leader_epoch=1)
        log.roll()
        log.append(10, leader_epoch=1)
        log.compact(0)  # 10 to 19 and 30 to 39 are left
        epochs = LeaderEpochs(((1, 0),))
        rig.owner.resume = lambda _assignment: ResumePoint(40, ((0, 15), (20, 30)), epochs)
        rig.assign(0)
        await rig.until(lambda: len(declared(published.published)) == 2)
        assert declared(published.published) == [
            DeclaredGap(partition(0), begin, end, 1, GapReason.COMPACTED) for begin, end in ((0, 10), (20, 30))
        ]
        assert metric_value(rig.metrics.gap_offsets) == 0
        gaps.close()


async def test_a_first_upload_declares_where_it_begins_and_waits_for_the_publisher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlm.lifecycle.gap_declarations._PUBLISH_AGAIN_S", 0.001)
    async with running(tmp_path) as rig:
        published = MemoryPublisher()
        published.is_full = True
        rig.owner.gaps = declarations(rig, published, Tiers())
        rig.owner.resume = lambda assignment: resume_point(RemoteWalMetadataStore(), ArchiveStore(), assignment)
        for number in (0, 1):
            rig.log(number).append(4)
        rig.log(1).roll()
        rig.log(1).append(4)
        rig.assign(0, 1)
        await rig.all_stored()
        assert not published.published
        published.is_full = False
        await rig.until(lambda: bool(published.published))
        [record] = published.published
        assert declared([record]) == [
            DeclaredGap(partition(0), 0, 0, 0, GapReason.BEFORE_UPLOAD),
            DeclaredGap(partition(1), 0, 4, 0, GapReason.BEFORE_UPLOAD),
        ]


async def test_many_partitions_are_taken_on_without_holding_up_the_event_loop(tmp_path: Path) -> None:
    """Relaying shares the loop, and a broker may lead thousands."""
    async with running(tmp_path) as rig:
        turns, found = 0, []

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        def resume(_assignment: Assignment) -> ResumePoint:
            found.append(turns)
            return ResumePoint(0)

        rig.owner.resume = resume
        counting = asyncio.create_task(count_turns())
        rig.assign(*range(200))
        await rig.until(lambda: len(rig.manager.status()) == 200)
        counting.cancel()
        assert max(found.count(turn) for turn in found) < 100
        rig.assign(3, 4)
        assert set(rig.manager.status()) == {partition(3), partition(4)}
