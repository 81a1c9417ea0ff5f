"""What those who hold answers know of the write path, and learn from it."""

from collections.abc import Callable
from pathlib import Path

from agent.wiring.durable_uploads import DurableUploads, KnownTopics
from gateway.durable.durable_logs import DurableLogs, Verdict
from kafka_log.tail_events import Gap
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.assignment import Assignment
from rlm.write_path.reading.gap_listener import NO_GAPS

LOG = TopicIdPartition(TopicId(b"t" * 16), 0)
LED = Assignment(LOG, "orders", Path("orders-0"), LinkPolicy.COST, 20, is_durable=True)
TOPICS = KnownTopics(frozenset({"orders"}), {LOG.topic_id: "orders"})


class WritePath:
    def __init__(self) -> None:
        self.uploaded: int | None = -1
        self.hurried: list[TopicIdPartition] = []

    def hurry(self, partition: TopicIdPartition, *, hurried: bool = True) -> None:
        self.hurried.append(partition)

    def uploaded_offset(self, _partition: TopicIdPartition) -> int | None:
        return self.uploaded

    def when_published(self, _segment_id: CombinedSegmentId, tell: Callable[[], object]) -> None:
        tell()


def made() -> tuple[WritePath, DurableLogs, DurableUploads]:
    path, logs = WritePath(), DurableLogs()
    durable = DurableUploads(path, logs)
    durable.assigned([LED], TOPICS)
    durable.arrived()
    return path, logs, durable


def test_a_log_that_was_not_looked_at_yet_is_read_to_its_end_once_somebody_waits() -> None:
    path, logs, durable = made()
    held = logs.hold("orders", 0, 100, lambda: None)
    assert held is not None
    assert path.hurried == [LOG]
    path.uploaded = 100  # by the agent before this one: no upload tells of it
    durable.settled(LOG)
    assert held.verdict is Verdict.STORED


def test_when_the_write_path_ends_nobody_waits_for_it() -> None:
    path, logs, durable = made()
    path.uploaded = 50
    held = logs.hold(LOG.topic_id, 0, 100, lambda: None)
    assert held is not None
    durable.left([LED])
    assert held.verdict is Verdict.NOT_LED


def test_what_cannot_be_read_does_not_count_as_stored_and_what_retention_took_does() -> None:
    path, logs, durable = made()
    path.uploaded = 300
    durable.told_of_gaps(NO_GAPS).found(LED, [Gap(0, 50), Gap(100, 200, is_unreadable=True)])
    assert logs.hold("orders", 0, 50, lambda: None) is None
    assert logs.hold("orders", 0, 150, lambda: None) is not None
    assert logs.hold("orders", 0, 201, lambda: None) is None


def test_topics_that_are_known_before_what_is_led_keep_others_from_waiting() -> None:
    logs = DurableLogs()
    durable = DurableUploads(WritePath(), logs)
    assert logs.hold("others", 0, 1, lambda: None) is not None
    durable.topics_known(TOPICS)
    assert logs.hold("others", 0, 1, lambda: None) is None
