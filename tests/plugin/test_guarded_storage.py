"""Until object storage is there, every call fails as if it were down."""

from collections.abc import AsyncIterator, Callable

import pytest

from plugin.errors import RemoteStorageError
from plugin.remote_wal_storage_manager import RequestCounts, StorageContext, StoredSegment
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState, RemoteWalCombinedLogSegmentMetadata
from plugin.store_loop import ask, ask_each
from plugin.wrappers.guarded_storage import GuardedStorageManager
from tests.rlm.memory_storage import MemoryStorage

SEGMENT = CombinedSegmentId(1, 2, 3)
METADATA = RemoteWalCombinedLogSegmentMetadata(SEGMENT, (), RemoteLogSegmentState.COPY_SEGMENT_STARTED, 0)


def test_before_it_arrived_every_call_fails_and_says_retry() -> None:
    guarded = GuardedStorageManager()
    calls: list[Callable[[], object]] = [
        lambda: ask(guarded.copy_log_segment_data(METADATA, [])),
        lambda: ask(guarded.fetch_log_segment(SEGMENT, 0, 1)),
        lambda: ask(guarded.fetch_segment_metadata(StoredSegment(SEGMENT, "key", 1, 1))),
        lambda: ask(guarded.delete_log_segment_data(SEGMENT)),
        lambda: list(ask_each(guarded.list_log_segments())),
    ]
    for call in calls:
        with pytest.raises(RemoteStorageError, match="has not answered") as caught:
            call()
        assert caught.value.retriable
    assert not guarded.is_there
    assert guarded.request_counts == RequestCounts()
    guarded.configure({}, StorageContext("cluster", 1))
    guarded.close()


def test_once_it_arrived_every_call_goes_there() -> None:
    guarded, real = GuardedStorageManager(), MemoryStorage()
    guarded.arrived(real)
    assert guarded.is_there
    real.objects[SEGMENT] = b"0123456789"
    assert ask(guarded.fetch_log_segment(SEGMENT, 2, 5)) == b"234"
    assert guarded.request_counts == real.request_counts
    ask(guarded.delete_log_segment_data(SEGMENT))
    assert real.objects == {}
    assert list(ask_each(guarded.list_log_segments())) == []


def test_whatever_the_real_one_raises_is_a_failure_of_that_call(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded, real = GuardedStorageManager(), MemoryStorage()
    guarded.arrived(real)

    def broken(*_: object) -> None:
        raise KeyError("a record's bytes")

    async def broken_on_the_way(*_: object) -> AsyncIterator[list[StoredSegment]]:
        yield [StoredSegment(SEGMENT, "key", 1, 1)]
        raise KeyError("a record's bytes")

    for name in ("copy_log_segment_data", "fetch_log_segment", "fetch_segment_metadata", "delete_log_segment_data"):
        monkeypatch.setattr(real, name, broken)
    monkeypatch.setattr(real, "list_log_segments", broken_on_the_way)
    calls: list[Callable[[], object]] = [
        lambda: ask(guarded.copy_log_segment_data(METADATA, [])),
        lambda: ask(guarded.fetch_log_segment(SEGMENT, 0, 1)),
        lambda: ask(guarded.fetch_segment_metadata(StoredSegment(SEGMENT, "key", 1, 1))),
        lambda: ask(guarded.delete_log_segment_data(SEGMENT)),
        lambda: list(ask_each(guarded.list_log_segments())),
    ]
    for call in calls:
        with pytest.raises(RemoteStorageError, match=r"KeyError at plugin/test_guarded_storage\.py") as caught:
            call()
        assert caught.value.label == "defect"
        assert "record" not in str(caught.value)
