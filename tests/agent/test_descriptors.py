"""File descriptors are taken as far as they may be, and told when they run out."""

import resource
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from agent.descriptors import DescriptorWatch, bounded_open_files, raise_limit
from tests.descriptors import none_left


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    """(soft, hard); as they were, afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_is_raised_to_what_may_be_had(limits: tuple[int, int]) -> None:
    _, hard = limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    assert raise_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 1024
    assert raise_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_segment_files_leave_half_of_all_descriptors_to_others_and_that_is_told() -> None:
    with capture_logs() as told:
        assert bounded_open_files(65_536) == 1024
        assert told == []
        assert bounded_open_files(1000) == 500
    assert [event["event"] for event in told] == ["open_files_bounded"]


def test_running_out_is_told_once_counted_and_told_when_over() -> None:
    registry = CollectorRegistry()
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = [limit - 65, limit - 10, limit - 10, limit - 200]
    watch = DescriptorWatch(registry, lambda: used.pop(0))
    reasons = []
    with capture_logs() as told:
        for _ in range(4):
            watch.look()
            reasons.append(watch.shortage)
    assert reasons == ["", *[f"file descriptors run out: {limit - 10} of {limit} are in use"] * 2, ""]
    assert [event["event"] for event in told] == ["descriptors_run_out", "descriptors_suffice"]
    assert registry.get_sample_value("remote_wal_descriptor_shortages_total") == 1


def test_it_looks_even_when_there_is_not_one_left() -> None:
    watch = DescriptorWatch(CollectorRegistry())
    watch.look()
    assert watch.shortage == ""
    with none_left():
        watch.look()
    assert watch.shortage
    watch.look()
    assert watch.shortage == ""
