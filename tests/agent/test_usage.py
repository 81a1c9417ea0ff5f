"""When usage is published, and what it holds."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agent.identity import AgentIdentity
from agent.metrics.usage import UsageReport
from gateway.metrics import ClientTraffic
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.publishable import encoded
from metadata_topic.records.usage_record import (
    ClientZoneUsage,
    FollowerUsage,
    RouterUsage,
    StoreUsage,
    TopicUsage,
    UsageRecord,
)
from metadata_topic.topic.publication_queue import DEFAULT_SETTINGS
from plugin.inline_reason import InlineReason
from plugin.remote_wal_storage_manager import RequestCounts
from replication.wire.metrics import PartitionTraffic, PeerByteCount, ReplicationMetrics
from replication.wire.packed_message import PackedTopic

ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 0)
OTHER = TopicIdPartition(TopicId(b"other".ljust(16)), 0)
MORE_ORDERS = TopicIdPartition(ORDERS.topic_id, 1)


class _Publisher:
    def __init__(self) -> None:
        self.records: list[UsageRecord] = []
        self.is_full = False

    def publish(self, record: UsageRecord) -> None:
        if self.is_full:
            raise PublicationBacklogFullError("publish", "usage", "full")
        self.records.append(record)


class _Connection:
    bytes_sent = 0
    bytes_received = 0


class _Parts:
    def __init__(self, start_ms: int = 1_000_000, traffic: ClientTraffic | None = None) -> None:
        self.now_ms = start_ms
        self.metrics = ReplicationMetrics(CollectorRegistry())
        self.counts = RequestCounts()
        self.publisher = _Publisher()
        self.led: set[TopicIdPartition] = set()
        settings: Any = SimpleNamespace(storage=SimpleNamespace(price_section="s3_express"))
        relaying: Any = SimpleNamespace(
            metrics=self.metrics,
            storage=SimpleNamespace(request_counts=self.counts),
            gateway=SimpleNamespace(traffic=traffic) if traffic is not None else None,
            write_path=SimpleNamespace(find=lambda *one: one if one in self.led else None),
        )
        identity = AgentIdentity("cluster", 1, 5, "zone-a", start_ms)
        around: Any = SimpleNamespace(
            identity=identity,
            settings=settings,
            relaying=relaying,
            publisher=self.publisher,
            clocks=SimpleNamespace(wall_ms=lambda: self.now_ms),
        )
        self.report = UsageReport(around, lambda: None)


async def _run(parts: _Parts, sleeps: int, drift_ms: int = 0) -> None:
    """Let the report sleep so many times; the clock moves by what was slept for, and by the drift."""
    left = sleeps

    async def sleep(seconds: float) -> None:
        nonlocal left
        if left == 0:
            raise asyncio.CancelledError
        left -= 1
        parts.now_ms += round(seconds * 1000) + drift_ms

    try:
        await parts.report.publish_when_due(sleep)
    except asyncio.CancelledError:
        return


async def test_a_record_is_published_at_the_start_and_at_each_multiple_of_the_interval() -> None:
    parts = _Parts(start_ms=1_000_000)
    await _run(parts, 3)
    assert [record.event_timestamp_ms for record in parts.publisher.records] == [
        1_000_000, 1_200_000, 1_800_000, 2_400_000,
    ]  # fmt: skip
    assert [record.sequence for record in parts.publisher.records] == [0, 1, 2, 3]
    assert {record.since_ms for record in parts.publisher.records} == {1_000_000}


async def test_a_clock_that_is_set_back_does_not_stop_the_records() -> None:
    parts = _Parts(start_ms=1_000_000)
    parts_before = parts.now_ms
    parts.report.publish()
    parts.now_ms -= 3_600_000_000
    await _run(parts, 2)
    assert len(parts.publisher.records) == 4
    assert parts.now_ms < parts_before


def test_a_record_holds_what_was_counted() -> None:
    parts = _Parts()
    parts.counts.put, parts.counts.get, parts.counts.put_bytes = 3, 4, 999
    connection = _Connection()
    count = PeerByteCount(parts.metrics, "leader", connection)
    connection.bytes_sent, connection.bytes_received = 100, 20
    count.update(2)
    count.update(2)
    parts.metrics.relayed("response", 5000, 2)
    parts.metrics.relayed("request", 60, 2)
    parts.metrics.linked(ORDERS, 4000, 2, 1.0)
    parts.metrics.linked(MORE_ORDERS, 500, 2, 1.0)
    parts.metrics.inline(ORDERS, 300, 3, InlineReason.LOAD, 1.0)
    parts.metrics.packed([PackedTopic(ORDERS.topic_id, 200, 120)], 3)
    parts.metrics.inline(None, 77, 3, InlineReason.NOT_ENABLED, 1.0)

    record = parts.report.record()

    assert record.stores == (StoreUsage("s3_express", 3, 4, 0, 0, 0, 999, 0),)
    assert record.followers == (FollowerUsage(2, 120, 5060),)
    assert record.topics == (TopicUsage(ORDERS.topic_id, 2, 4500, 0, 0), TopicUsage(ORDERS.topic_id, 3, 0, 220, 300))
    assert (record.broker_id, record.incarnation, record.rack) == (1, 5, "zone-a")


def test_a_record_that_is_not_taken_leaves_no_hole_in_the_sequence() -> None:
    parts = _Parts()
    parts.publisher.is_full = True
    parts.report.publish()
    parts.publisher.is_full = False
    parts.report.publish()
    assert [record.sequence for record in parts.publisher.records] == [0]


def test_no_number_of_topics_is_too_many() -> None:
    parts, topics = _Parts(), [TopicId(number.to_bytes(16)) for number in range(13_000)]
    parts.metrics.traffic.by_topic |= {(one, 2**31 - 1): PartitionTraffic(2**63, 2**63, 0, 0, 2**63) for one in topics}
    parts.report.publish()
    assert max(len(encoded(record)[1]) for record in parts.publisher.records) < DEFAULT_SETTINGS.max_record_bytes
    assert [row.topic_id for record in parts.publisher.records for row in record.topics] == topics
    told = [(record.sequence, len(record.stores), record.is_rest) for record in parts.publisher.records]
    assert told == [(0, 1, False), (0, 0, True), (0, 0, True)]


def test_each_record_has_what_went_by_the_gateway() -> None:
    traffic = ClientTraffic("zone-a")
    parts = _Parts(traffic=traffic)
    parts.report.publish()
    traffic.own.sent_bytes, traffic.own.sent_crossed_bytes = 900, 30
    traffic.own.given_bytes, traffic.own.given_crossed_bytes, traffic.own.untold_bytes = 800, 70, 60
    traffic.fetched("zone-b", 5, True)
    traffic.fetched("zone-b", 6, None)
    traffic.fetched("zone-b", 7, False)
    traffic.router.put, traffic.router.get, traffic.router.put_bytes, traffic.router.get_bytes = 1, 2, 3, 4
    parts.report.publish()

    first, second = (record.clients for record in parts.publisher.records)
    assert first is not None
    assert second is not None
    assert (first.router, [one.sent_bytes for one in first.zones]) == (RouterUsage(), [])
    assert (second.zone, second.prices) == ("zone-a", "s3_express")
    assert second.router == RouterUsage(1, 2, 3, 4)
    assert second.zones == (
        ClientZoneUsage("zone-a", 900, 30, 800, 70, 60, 0),
        ClientZoneUsage("zone-b", untold_bytes=6, near_bytes=5),
    )


def test_a_topic_that_is_gone_is_told_of_once_more_as_zero_and_then_left_out() -> None:
    parts = _Parts()
    parts.metrics.linked(ORDERS, 4000, 2, 1.0)
    parts.report.publish()
    parts.metrics.linked(OTHER, 10, 2, 3700.0)
    parts.led.add(ORDERS)
    parts.report.publish()
    parts.led.clear()
    for _ in range(3):
        parts.report.publish()
    traffic = parts.metrics.traffic
    assert set(traffic.recent) == {OTHER.topic_id}, "orders moved nothing for an hour"
    assert set(traffic.by_partition) == {OTHER}
    parts.metrics.linked(ORDERS, 5000, 2, 3800.0)
    parts.report.publish()

    told = [{row.topic_id: row.linked_bytes for row in record.topics} for record in parts.publisher.records]
    other = {OTHER.topic_id: 10}
    assert told == [
        {ORDERS.topic_id: 4000},
        {ORDERS.topic_id: 4000} | other,  # it is led here
        {ORDERS.topic_id: 4000} | other,
        {ORDERS.topic_id: 0} | other,  # so that readers do not take a part of 5000 for the 4000
        other,
        {ORDERS.topic_id: 5000} | other,
    ]


def test_a_topic_that_is_gone_is_kept_until_a_record_has_told_of_it() -> None:
    parts = _Parts()
    parts.metrics.linked(ORDERS, 4000, 2, 1.0)
    parts.metrics.linked(OTHER, 10, 2, 3700.0)
    parts.publisher.is_full = True
    parts.report.publish()
    parts.publisher.is_full = False
    parts.report.publish()
    assert parts.publisher.records[0].topics[0] == TopicUsage(ORDERS.topic_id, 2, 4000, 0, 0)


async def test_the_last_record_comes_when_the_agent_stops() -> None:
    parts = _Parts()
    running = asyncio.create_task(parts.report.run())
    await asyncio.sleep(0)
    parts.counts.put = 8
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [record.stores[0].put for record in parts.publisher.records] == [0, 8]
