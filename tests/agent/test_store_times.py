"""How long the store took, by what came of it."""

import pytest
from prometheus_client import CollectorRegistry

from agent.metrics.store_times import StoreTimes
from plugin.errors import RemoteStorageError
from plugin.segment_metadata import CombinedSegmentId
from plugin.store_loop import ask
from plugin.wrappers.guarded_storage import GuardedStorageManager
from tests.rlm.memory_storage import MemoryStorage

SEGMENT = CombinedSegmentId(1, 2, 3)


def test_calls_that_reach_the_store_are_timed_by_their_kind_and_by_what_came_of_them() -> None:
    registry, now_s = CollectorRegistry(), iter((1.0, 1.5, 2.0, 2.25, 3.0, 3.125))
    guarded, real = GuardedStorageManager(timed=StoreTimes(registry, lambda: next(now_s)).time_call), MemoryStorage()
    with pytest.raises(RemoteStorageError):
        ask(guarded.fetch_log_segment(SEGMENT, 2, 5))  # it is not there yet, so nothing is timed
    guarded.arrived(real)
    real.objects[SEGMENT] = b"0123456789"
    ask(guarded.fetch_log_segment(SEGMENT, 2, 5))
    ask(guarded.delete_log_segment_data(SEGMENT))
    with pytest.raises(RemoteStorageError):
        ask(guarded.fetch_log_segment(SEGMENT, 2, 5))
    sums = {
        (one.labels["operation"], one.labels["result"]): one.value
        for family in registry.collect()
        for one in family.samples
        if one.name == "remote_wal_store_seconds_sum"
    }
    assert sums == {("get", "ok"): 0.5, ("delete", "ok"): 0.25, ("get", "not_found"): 0.125}
