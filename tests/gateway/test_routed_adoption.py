"""What the log of a leader wants of a gateway's objects stays, over real sockets, and all else goes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from gateway.broker_pipe import tell_outcomes
from gateway.produce.produce_frame import ProduceRequestView, scan_produce_request
from gateway.produce.router_channel import KEEP_S
from gateway.router_uploads import KnownNames
from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.adopted_records import AdoptedBatch, AdoptedRecords
from plugin.router_object_id import EPOCH_MS
from plugin.segment_metadata import CombinedSegmentId
from replication.wire.framed_connection import FramedConnection
from rlm.write_path.uploads.adoptable_records import AdoptableRecords, AdoptionLimits
from rlm.write_path.uploads.segment_queue import MetaQueueItem
from tests.gateway.produce.produce_frames import produce, records
from tests.gateway.routed_rig import RoutedRig, answered, started

PARTITION = TopicIdPartition(TopicId(bytes(16)), 0)
SEGMENT = CombinedSegmentId(1, 2, 3)
OUTCOMES = "adoption outcomes"
HOUR_MS = int(KEEP_S * 1000) + 2 * EPOCH_MS


def nothing_unpublished(_since_ms: int) -> list[int]:
    return []


class AdoptingRig(RoutedRig):
    log: AdoptableRecords

    async def produced_one(self) -> FramedConnection:
        client = await self.connect()
        client.write_frame(frame_of(1))
        assert await answered(client) == 1
        return client

    async def forget_client(self, client: FramedConnection) -> None:
        """Its connection ends, and its objects get old enough for a sweep."""
        client.close()
        await self.until(lambda: self.channel.objects == 0)
        self.store.now_ms += HOUR_MS

    def appended(self, frame: bytes, offset: int) -> MetaQueueItem:
        """The first partition's batch, as the broker's log has it."""
        view = scan_produce_request(frame)
        assert isinstance(view, ProduceRequestView)
        raw = bytearray(frame[view.fields[0].records_start : view.fields[0].records_end])
        raw[0:8], raw[12:16] = offset.to_bytes(8), (4).to_bytes(4)
        return MetaQueueItem(PARTITION, tuple(scan_batches(raw, 0, len(raw))), memoryview(raw), 0.0, 0.0)

    def upload(self, *items: MetaQueueItem) -> list[AdoptedBatch]:
        found, adoption = self.log.adopt(items, self.wall_ms)
        adoption.stored(lambda: False)
        return [batch for one in found if isinstance(one, AdoptedRecords) for batch in one.batches]


@asynccontextmanager
async def adopting(wait_max_s: float = 30.0) -> AsyncIterator[AdoptingRig]:
    log = AdoptableRecords(AdoptionLimits(1 << 20, wait_max_s, 60.0))
    rig = AdoptingRig(adoptable=log)
    rig.log = log
    async with started(rig):
        rig.parts.start(OUTCOMES, partial(tell_outcomes, log))
        yield rig
        assert not rig.errors


def frame_of(number: int) -> bytes:
    return produce({0: records(3000)}, correlation_id=number, acks=-1)


async def test_what_a_log_wants_stays_where_it_says_it_is() -> None:
    async with adopting() as rig:
        await rig.produced_one()
        (batch,) = rig.upload(rig.appended(rig.produced[0], 70))
        await rig.until(lambda: rig.channel.objects == 0)
        stored = rig.store.blobs[batch.source.object_id.blob_name][batch.source_start :][: batch.length]
        assert stored[16:] == bytes(rig.appended(rig.produced[0], 70).records)[16:]
        assert batch.source.custom_metadata == b"zone"
        assert rig.count("produce_requests", way="adopted") == 1
        assert rig.budget.used == 0


async def test_what_no_log_wants_goes_once_that_is_known() -> None:
    async with adopting(wait_max_s=0.0) as rig:
        await rig.produced_one()
        await rig.until(lambda: rig.store.blobs == {} and rig.channel.objects == 0)


async def test_after_a_defect_outcomes_are_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    look_again, looks = AdoptableRecords.look_again, 0

    def fail_once(log: AdoptableRecords, now_s: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise KeyError((770, 1))
        look_again(log, now_s)

    monkeypatch.setattr(AdoptableRecords, "look_again", fail_once)
    async with adopting(wait_max_s=0.0) as rig:
        await rig.until_restarted(OUTCOMES)
        await rig.produced_one()
        await rig.until(lambda: rig.channel.objects == 0)


@pytest.mark.parametrize(
    "known",
    [
        KnownNames(lambda _source: [], nothing_unpublished, lambda: False, str),
        KnownNames(lambda _source: [], nothing_unpublished, lambda: True, lambda: "another topic"),
    ],
)
async def test_a_topic_that_is_not_read_or_is_doubted_tells_of_nothing_unwanted(known: KnownNames) -> None:
    async with adopting() as rig:
        await rig.forget_client(await rig.produced_one())
        rig.wanted.arrived(known)
        await rig.uploads.sweep()
        assert len(rig.store.blobs) == 1


async def test_what_is_named_has_nobody_look_for_what_is_not_told() -> None:
    def untold(_since_ms: int) -> list[int]:
        raise AssertionError("the store is listed for nothing")

    async with adopting() as rig:
        await rig.forget_client(await rig.produced_one())
        rig.wanted.arrived(KnownNames(lambda _source: [SEGMENT], untold, lambda: True, str))
        await rig.uploads.sweep()
        assert len(rig.store.blobs) == 1


async def test_more_than_can_be_compared_is_not_kept() -> None:
    async with adopting() as rig:
        client = await rig.connect()
        client.write_frame(produce({0: records((1 << 20) + 1)}, correlation_id=1, acks=-1))
        assert await answered(client) == 1
        await rig.until(lambda: rig.store.blobs == {} and rig.channel.objects == 0)
