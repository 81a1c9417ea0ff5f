"""What is handed over is published once each, and told when it is not."""

from collections.abc import Iterator

import pytest

from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.records import PublishableRecord
from metadata_topic.records.states import DELETING
from plugin.segment_metadata import CombinedSegmentId, RemoteWalCombinedLogSegmentMetadata
from retention_job.errors import RetentionJobError
from retention_job.findings.apply import publish_deletions

IDS = [CombinedSegmentId(1, 2, number) for number in range(5)]


class Topic:
    """Takes two records until it is flushed."""

    def __init__(self, is_reachable: bool = True) -> None:
        self.published: list[PublishableRecord] = []
        self._waiting = 0
        self._is_reachable = is_reachable

    def publish(self, record: PublishableRecord, /) -> None:
        if self._waiting == 2:
            raise PublicationBacklogFullError("publish", "topic", "full")
        self.published.append(record)
        self._waiting += 1

    def flush(self, timeout_s: float, /) -> bool:
        self._waiting = 0
        return self._is_reachable


def segments() -> Iterator[tuple[CombinedSegmentId, int]]:
    return ((segment_id, 100) for segment_id in IDS)


def test_each_segments_deletion_is_started_however_little_may_wait() -> None:
    topic = Topic()
    assert publish_deletions(segments(), topic, 7) == 5
    assert topic.published == [
        RemoteWalCombinedLogSegmentMetadata(segment_id, (), DELETING, 7, 100) for segment_id in IDS
    ]


def test_records_that_the_topic_did_not_take_are_told() -> None:
    with pytest.raises(RetentionJobError, match="run it again"):
        publish_deletions(segments(), Topic(is_reachable=False), 7)
