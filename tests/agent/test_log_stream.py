"""The log costs the agent nothing but lines: whoever reads it, or does not, and however often somebody causes one."""

import os
from collections.abc import Iterator

import pytest
import structlog

from agent import log_stream
from agent.log_stream import EVENTS_PER_S, LogStream, RepeatedEvents, lost_lines
from local_cluster.polling import wait_until
from tests.metric_values import metric_value


@pytest.fixture
def pipe() -> Iterator[list[int]]:
    """Its read end and its write end; a test may close the first."""
    ends = list(os.pipe())
    yield ends
    for end in ends:
        os.close(end)


def test_lines_are_written_in_order(pipe: list[int]) -> None:
    stream = LogStream(pipe[1], lost_lines())
    for number in range(100):
        stream.write(f"{number}\n")
    stream.drain()
    assert os.read(pipe[0], 10_000).decode().splitlines() == [str(number) for number in range(100)]


@pytest.mark.parametrize("gone", ["reader", "disk"])
def test_a_line_that_cannot_be_written_is_counted(pipe: list[int], gone: str) -> None:
    if gone == "reader":
        os.close(pipe.pop(0))
    descriptor = pipe[-1] if gone == "reader" else os.open("/dev/full", os.O_WRONLY)
    lost = lost_lines()
    stream = LogStream(descriptor, lost)
    for _ in range(3):
        stream.write("a line\n")
    wait_until(lambda: metric_value(lost.labels("unwritable")) == 3, "all are counted", 10)
    if gone == "disk":
        os.close(descriptor)


def test_a_reader_that_stands_still_holds_nobody_up(pipe: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_stream, "LINES_MAX", 10)
    lost = lost_lines()
    stream = LogStream(pipe[1], lost)
    for _ in range(1000):
        stream.write("x" * 10_000)
    assert metric_value(lost.labels("slow")) > 900
    read = 0
    while read < 10_000:
        read += len(os.read(pipe[0], 1 << 20))


def test_one_event_fills_no_log() -> None:
    now_s, lost = 0.0, lost_lines()
    bounded = RepeatedEvents(lost, lambda: now_s)

    def passes(event: str) -> bool:
        try:
            shown = bounded(None, "", {"event": event})
        except structlog.DropEvent:
            return False
        assert shown.get("left_out_before", 0) == (100 - EVENTS_PER_S if now_s and event == "peer_refused" else 0)
        return True

    assert sum(passes("peer_refused") for _ in range(100)) == EVENTS_PER_S
    assert metric_value(lost.labels("repeated")) == 100 - EVENTS_PER_S
    assert passes("agent_started")
    now_s = 1.0
    assert passes("peer_refused")
