"""Scrapes cannot tell the event loop's own metrics from those of prometheus_client."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from plugin.hot_path.loop_metrics import LoopCounter, LoopHistogram

_BOUNDS = (0.0002, 0.01, 0.5, 2.0)
_STAGES = ("queued", "uploaded")


def _scraped(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return sorted(line for line in lines if "_created" not in line)


@given(st.lists(st.tuples(st.sampled_from(_STAGES), st.integers(0, 1 << 40))))
def test_a_counter_is_scraped_as_prometheus_own(added: list[tuple[str, int]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counter = LoopCounter("remote_wal_bytes", "Bytes", ["path"], registry=ours)
    other = Counter("remote_wal_bytes", "Bytes", ["path"], registry=theirs)
    for path, amount in added:
        counter.labels(path).inc(amount)
        other.labels(path).inc(amount)
    assert _scraped(ours) == _scraped(theirs)


@given(st.lists(st.integers(0, 1 << 40)))
def test_a_counter_without_labels_is_there_before_anything_is_counted(added: list[int]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counter = LoopCounter("remote_wal_segments", "Segments", registry=ours)
    other = Counter("remote_wal_segments", "Segments", registry=theirs)
    for amount in added:
        counter.inc(amount)
        other.inc(amount)
    assert _scraped(ours) == _scraped(theirs)


@given(st.lists(st.tuples(st.sampled_from(_STAGES), st.sampled_from((0.0, *_BOUNDS, 0.3, 7.0)) | st.floats(0, 10))))
def test_a_histogram_is_scraped_as_prometheus_own(seen: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = LoopHistogram("remote_wal_seconds", "Times", "stage", buckets=_BOUNDS, registry=ours)
    other = Histogram("remote_wal_seconds", "Times", ["stage"], buckets=_BOUNDS, registry=theirs)
    for stage, seconds in seen:
        histogram.observe(stage, seconds)
        other.labels(stage).observe(seconds)
    assert _scraped(ours) == _scraped(theirs)


def test_a_name_is_taken_once() -> None:
    registry = CollectorRegistry()
    LoopCounter("remote_wal_bytes", "Bytes", registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Counter("remote_wal_bytes", "Bytes", registry=registry)
