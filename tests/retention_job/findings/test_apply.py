"""What is handed over is published once each, and told when it is not."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from kafka_log.topic_partition import TopicId
from metadata_topic.records import serde
from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.records import PublishableRecord, RemoteWalTopicRebuilt
from metadata_topic.records.states import DELETING
from plugin.segment_metadata import CombinedSegmentId, RemoteWalCombinedLogSegmentMetadata
from retention_job.errors import RetentionJobError
from retention_job.findings import apply
from retention_job.findings.apply import is_doubtful, publish_deletions
from retention_job.settings import LifeTimes
from retention_job.sources.decoding import OTHER_ROW, QUARANTINE_ROW
from retention_job.tables.history import History

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


@pytest.mark.parametrize(
    ("whole_ms", "rebuilt", "lacks_records"),
    [
        (9, [], False),
        (5, [], True),
        (5, [(b"m" * 16, 5)], True),
        (5, [(b"m" * 16, 6)], False),
        (5, [(b"n" * 16, 6)], True),  # of another topic
    ],
)
def test_what_the_topic_lost_is_unknown_until_it_is_rebuilt(
    whole_ms: int, rebuilt: list[tuple[bytes, int]], lacks_records: bool
) -> None:
    records = [RemoteWalTopicRebuilt(TopicId(topic_id), at_ms) for topic_id, at_ms in rebuilt]
    rows = [SimpleNamespace(key=serde.key_of(one), value=serde.encode(one)) for one in records]
    found = SimpleNamespace(collect=lambda: rows)
    found.filter = found.select = lambda *_columns: found
    topic = SimpleNamespace(topic_id=b"m" * 16)
    history = SimpleNamespace(
        read=SimpleNamespace(whole_ms=whole_ms, now_ms=9),
        staged=lambda _row: found,
        cluster=SimpleNamespace(metadata_topic=topic),
    )
    assert vars(History)["lacks_records"].func(history) == lacks_records


@pytest.mark.parametrize("unread", [None, ("run-2", QUARANTINE_ROW), ("run-1", QUARANTINE_ROW), ("run-1", OTHER_ROW)])
def test_records_that_were_not_understood_may_tell_of_any_object(
    unread: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Staged(SimpleNamespace):
        def filter(self, condition: str) -> "Staged":
            assert condition in ("true", "reason = 'record_type'")
            return self

        def isEmpty(self) -> bool:
            return bool(self.place != unread)

    monkeypatch.setattr(apply, "metadata_is_doubtful", lambda *_: None)
    history = SimpleNamespace(
        run_id="run-2",
        _entry_runs={"run-1": 1},
        staged=lambda row, run: Staged(place=(run, row)),
        lacks_records=False,
    )
    history.is_wholly_read = cast(property, History.is_wholly_read).fget(history)  # type: ignore[misc]
    assert is_doubtful(cast(History, history), LifeTimes()) == (unread is not None)
