"""What there is of combined segments, by owner and state."""

import pytest

from agent.metrics.agent_metrics import object_summary
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records import records
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
ENTRY = RemoteLogSegmentMetadataEntry(TopicIdPartition(TopicId(b"orders".ljust(16)), 0), 0, 0, 9, 112, 812, 7)
NOW_MS = 1_000_000


def store_of(*segments: tuple[CombinedSegmentId, RemoteLogSegmentState, int, int]) -> RemoteWalMetadataStore:
    """Of (id, state, time, size)."""
    store = RemoteWalMetadataStore()
    for segment_id, state, at_ms, size in segments:
        entries = (ENTRY,) if state is FINISHED else ()
        store.apply(RemoteWalCombinedLogSegmentMetadata(segment_id, entries, state, at_ms, size))
    return store


def test_segments_are_counted_by_owner_and_state_over_all_incarnations() -> None:
    store = store_of(
        (CombinedSegmentId(1, 1, 0), FINISHED, 400_000, 100),
        (CombinedSegmentId(1, 2, 0), FINISHED, 900_000, 50),
        (CombinedSegmentId(1, 2, 1), STARTED, 990_000, -1),
        (CombinedSegmentId(1, 2, 2), DELETED, 990_000, -1),
        (CombinedSegmentId(3, 1, 0), DELETING, 100_000, 7),
    )
    store.apply(RemoteWalNodeRegistration(3, 1, 1, 0))
    summary = object_summary(store, NOW_MS)
    columns = ("broker_id", "caretaker_broker_id", "state", "segments", "bytes", "oldest_age_ms", "newest_age_ms")
    assert [tuple(row[column] for column in columns) for row in summary["objects"]] == [
        (1, 1, "COPY_SEGMENT_STARTED", 1, 0, 10_000, 10_000),
        (1, 1, "COPY_SEGMENT_FINISHED", 2, 150, 600_000, 100_000),
        (3, 1, "DELETE_SEGMENT_STARTED", 1, 7, 900_000, 900_000),
    ]
    totals = {total["state"]: (total["segments"], total["bytes"]) for total in summary["totals"]}
    assert totals["COPY_SEGMENT_FINISHED"] == (2, 150)
    assert totals["DELETE_SEGMENT_FINISHED"] == (1, 0)


def test_a_clock_that_is_ahead_makes_no_negative_age() -> None:
    [row] = object_summary(store_of((CombinedSegmentId(1, 1, 0), FINISHED, NOW_MS + 5, 1)), NOW_MS)["objects"]
    assert (row["oldest_age_ms"], row["newest_age_ms"]) == (0, 0)


def test_no_entry_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of((CombinedSegmentId(1, 1, 0), FINISHED, 0, 1))

    def refuse(_block: object) -> None:
        raise AssertionError("an entry block was decoded")

    monkeypatch.setattr(records, "decode_entries", refuse)
    with pytest.raises(AssertionError):
        _ = [one.metadata for one in store.published_segments()]
    assert object_summary(store, NOW_MS)["objects"]
