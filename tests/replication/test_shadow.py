"""What an agent in shadow counts: links by what the write path stores, inline bytes by what it leaves out."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from kafka_log.record_batch import BatchSpan
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.inline_reason import InlineReason
from plugin.segment_metadata import CombinedSegmentId
from replication.leader.shadow import Shadow
from rlm.write_path.assignment import Assignment
from rlm.write_path.core.led_partition import LedPartition
from rlm.write_path.uploads.segment_queue import MetaQueueItem, UploadedSegment
from tests.kafka_log.log_writer import LogWriter
from tests.rlm.plain_log import PlainLog, PlainTask

HERE, THERE, ALONE = (TopicIdPartition(TopicId(b"s" * 16), number) for number in range(3))
WAIT_S = 0.5
ONE_ZONE = {2: "az2", 3: "az2"}
"""Two brokers that read together."""


class Rig:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        zones = {one: ONE_ZONE.get(one, one) for one in range(10)}
        self.shadow = Shadow(
            self.registry, WAIT_S, lambda brokers: {one: zones[one] for one in brokers}, lambda: 1000.0
        )
        followers = {HERE: frozenset({2, 3}), THERE: frozenset({4}), ALONE: frozenset[int]()}
        self.led = {
            one: Assignment(one, "t", Path("t"), LinkPolicy.COST, 20, remote_followers=its)
            for one, its in followers.items()
        }
        self.reason = InlineReason.NOT_ENABLED
        """Why bytes go inline."""
        self.shadow.set_led(self.led.values(), lambda _partition: self.reason)

    def stored(self, *items: MetaQueueItem, at_s: float = 100.1) -> None:
        size = sum(len(one.records) for one in items)
        entries = tuple(one.metadata_entry() for one in items)
        self.shadow.segment_uploaded(UploadedSegment(CombinedSegmentId(1, 1, 0), items, entries, size, at_s))

    def moved(self) -> dict[str, int]:
        return dict(self.shadow.traffic.recent_of_all.moved(60, 1000.0))


def item(partition: TopicIdPartition, size: int, seen_s: float = 100.0) -> MetaQueueItem:
    return MetaQueueItem(partition, (BatchSpan(0, 0, 0, 0, 0, size),), memoryview(bytes(size)), seen_s, seen_s)


def test_what_is_stored_would_be_linked_for_each_follower_and_read_once_for_each_reader() -> None:
    rig = Rig()
    rig.stored(item(HERE, 1000), item(THERE, 300), item(ALONE, 50))
    assert rig.moved() == {"linked": 2 * 1000 + 300}
    requests = rig.shadow.requests
    assert (requests.put, requests.put_bytes) == (1, 1350)
    assert (requests.get, requests.get_bytes) == (2, 1000 + 300)
    assert rig.shadow.traffic.by_partition[HERE].linked_bytes == 2000
    followers = rig.shadow.traffic.by_follower
    assert {one: (its.stock_bytes, its.peer_bytes) for one, its in followers.items()} == {
        2: (1000, 0), 3: (1000, 0), 4: (300, 0),
    }  # fmt: skip


def test_what_is_stored_after_followers_gave_up_would_have_gone_inline_and_is_read_by_nobody() -> None:
    rig = Rig()
    rig.stored(item(HERE, 1000, seen_s=100.1 - WAIT_S - 0.01), item(THERE, 300))
    assert rig.moved() == {"wait_timeout": 2000, "linked": 300}
    assert (rig.shadow.requests.get, rig.shadow.requests.get_bytes) == (1, 300)
    assert rig.shadow.traffic.by_follower[2].peer_bytes == 1000
    assert rig.shadow.traffic.by_partition[HERE].unsaved_bytes == 2000


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (InlineReason.NEVER_PAYS, "never_pays"),
        (InlineReason.LOAD, "load"),
        (InlineReason.LOOK, "load"),  # links begin with what comes next
    ],
)
def test_what_is_left_out_goes_inline_by_its_reason(reason: InlineReason, told: str) -> None:
    rig = Rig()
    rig.reason = reason
    rig.shadow.bytes_left_out(rig.led[HERE], 10)
    rig.shadow.bytes_left_out(rig.led[ALONE], 10)
    assert rig.moved() == {told: 20}
    counted = rig.registry.get_sample_value("remote_wal_shadow_record_bytes_total", {"path": told})
    assert counted == 20
    assert rig.shadow.requests.put == 0


async def test_after_an_outage_it_goes_on_where_followers_would_be(tmp_path: Path) -> None:
    rig, log, far_bytes = Rig(), LogWriter(tmp_path / "t-0"), 1000
    log.append(records=8)
    assignment = Assignment(HERE, "t", log.path, LinkPolicy.COST, 20)
    led = LedPartition(assignment, PlainTask(PlainLog(0), begin=3), backlog_bytes=far_bytes)
    await rig.shadow.follow({HERE: led}, far_bytes)
    assert (led.followers_offset, rig.moved()) == (-1, {})
    led.backlog_bytes = far_bytes + 1
    for _ in range(2):  # it is counted once
        await rig.shadow.follow({HERE: led}, far_bytes)
        assert (led.followers_offset, rig.moved()) == (8, {"not_stored": 2 * (far_bytes + 1)})
