"""RLMWalCombineTask: uploads run at once, metadata goes out in order, and none of it is lost."""

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest
from prometheus_client import CollectorRegistry

import rlm.write_path.uploads.combine_task
from kafka_log.batch_digests import batch_digests, records_digest
from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState, RemoteWalCombinedLogSegmentMetadata
from plugin.wall_clock import Clocks
from rlm.write_path.metrics import WriteMetrics
from rlm.write_path.uploads.combine_task import PretendedUploads, RLMWalCombineTask
from rlm.write_path.uploads.segment_queue import MetaQueueItem
from tests.kafka_log.batches import batches
from tests.metric_values import metric_value
from tests.rlm.memory_storage import MemoryPublisher, MemoryStorage

PARTITION = TopicIdPartition(TopicId(b"c" * 16), 3)
STARTED, FINISHED = RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class Rig:
    def __init__(
        self,
        threads: int = 4,
        timeout_s: float = 60.0,
        digests: bool = False,
        task: type[RLMWalCombineTask] = RLMWalCombineTask,
    ) -> None:
        self.storage, self.publisher = MemoryStorage(), MemoryPublisher()
        self.metrics = WriteMetrics(CollectorRegistry())
        self.task = task(
            self.storage,
            self.publisher,
            CombinedSegmentId(1, 77, 0),
            self.metrics,
            Clocks(lambda: 5.0, lambda: 1_700_000_000_000),
            timeout_s=timeout_s,
            digests=digests,
        )


async def test_a_pretended_upload_stores_and_publishes_nothing() -> None:
    rig = Rig(task=PretendedUploads)
    stored = await rig.task.combine([item(0), item(2)])
    assert stored is not None
    assert (len(stored.items), len(stored.entries)) == (2, 2)
    assert stored.size_bytes == 2 * len(item(0).records)
    assert (rig.storage.objects, rig.publisher.published) == ({}, [])
    rig.task.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.task.close()


def item(first_offset: int, leader_epoch: int = 2) -> MetaQueueItem:
    raw = batches(2, first_offset, 5, leader_epoch)
    return MetaQueueItem(PARTITION, tuple(scan_batches(raw, 0, len(raw))), memoryview(raw), 0.0, 0.0)


async def begun(rig: Rig, sequence: int) -> None:
    assert await asyncio.to_thread(rig.storage.copy_begun[sequence].wait, 10)


async def test_a_full_backlog_of_publications_loses_no_finished_record_and_stops_uploads(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rlm.write_path.uploads.combine_task, "_PUBLISH_AGAIN_S", 3600.0)
    rig.storage.hold_copies(0, 1)
    held = rig.storage.copies_held
    assert held is not None
    uploads = [asyncio.create_task(rig.task.combine([item(10 * sequence)])) for sequence in range(2)]
    await begun(rig, 0)
    await begun(rig, 1)
    rig.publisher.is_full = True
    held[1].set()
    assert await uploads[1] is not None
    held[0].set()
    assert await uploads[0] is not None
    assert rig.publisher.sequences(FINISHED) == []
    assert rig.task.unpublished == 2
    told: list[int] = []
    for sequence in (1, 0):
        rig.task.when_published(CombinedSegmentId(1, 77, sequence), partial(told.append, sequence))
    assert told == []

    puts = len(rig.storage.objects)
    assert await rig.task.combine([item(20)]) is None
    assert len(rig.storage.objects) == puts
    assert metric_value(rig.metrics.upload_failures.labels("publication_backlog")) == 1

    rig.publisher.is_full = False
    assert await rig.task.combine([item(20)]) is not None
    assert rig.publisher.sequences(FINISHED) == [0, 1, 2]
    assert told == [0, 1]


async def test_a_held_up_record_goes_out_by_itself_when_no_further_upload_comes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rlm.write_path.uploads.combine_task, "_PUBLISH_AGAIN_S", 0.001)
    taken = asyncio.Event()
    publish, attempts = rig.publisher.publish, 0

    def publish_and_tell(record: RemoteWalCombinedLogSegmentMetadata) -> None:
        nonlocal attempts
        attempts += 1
        rig.publisher.is_full = 2 <= attempts < 5
        publish(record)
        if attempts >= 5:
            taken.set()

    monkeypatch.setattr(rig.publisher, "publish", publish_and_tell)
    assert await rig.task.combine([item(0)]) is not None
    assert rig.task.unpublished == 1
    await asyncio.wait_for(taken.wait(), 60)
    assert rig.publisher.sequences(FINISHED) == [0]
    assert rig.task.unpublished == 0


async def test_when_not_even_the_start_can_be_published_nothing_is_uploaded(rig: Rig) -> None:
    rig.publisher.is_full = True
    assert await rig.task.combine([item(0)]) is None
    assert rig.storage.objects == {}
    assert rig.task.unpublished == 0


async def test_an_upload_that_hangs_for_ever_is_given_up() -> None:
    rig = Rig(timeout_s=0.5)
    rig.storage.hold_copies(0)
    assert await rig.task.combine([item(0)]) is None
    assert metric_value(rig.metrics.upload_failures.labels("hung")) == 1
    while (stored := await rig.task.combine([item(0)])) is None:
        pass  # a busy machine may need longer than that as well
    assert stored.combined_segment_id.sequence > 0
    assert rig.publisher.sequences(FINISHED) == [stored.combined_segment_id.sequence]
    assert rig.storage.copies_held is not None
    rig.storage.copies_held[0].set()
    rig.task.close()


async def test_metadata_that_can_never_be_published_holds_up_none_behind_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = rig.publisher.publish

    def refuse_the_first_end(record: RemoteWalCombinedLogSegmentMetadata) -> None:
        if record.state is FINISHED and record.combined_segment_id.sequence == 0:
            raise ValueError("cannot be encoded")
        publish(record)

    monkeypatch.setattr(rig.publisher, "publish", refuse_the_first_end)
    assert await rig.task.combine([item(0)]) is not None
    assert await rig.task.combine([item(10)]) is not None
    assert rig.publisher.sequences(FINISHED) == [1]
    assert metric_value(rig.metrics.upload_failures.labels("not_publishable")) == 1


async def test_metadata_and_listeners_are_given_the_digests_where_they_are_taken_and_the_object_is_not() -> None:
    rig = Rig(digests=True)
    stored = await rig.task.combine([item(0)])
    assert stored is not None
    made = stored.items[0]
    assert stored.digests == (batch_digests(made.records, made.batches),)
    assert [entry.sha256 for entry in stored.entries] == [records_digest(made.records)]
    assert rig.publisher.entries(FINISHED)[0].sha256 == records_digest(made.records)
    assert records_digest(made.records) not in rig.storage.objects[stored.combined_segment_id]
    rig.task.close()
