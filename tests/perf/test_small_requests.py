"""The loads of librdkafka: what of them is told."""

import signal
from types import FrameType

import pytest

from local_cluster.kafka_tools import KafkaToolError
from perf.ladder.command import WORKLOADS
from perf.loads import librdkafka_latencies, quantiles


def test_quantiles_are_those_of_the_records() -> None:
    told = quantiles([float(number) for number in range(101)])
    assert told == {"p50 ms": 50.0, "p95 ms": 95.0, "p99 ms": pytest.approx(99.0)}


def test_there_is_each_rate_with_and_without_linger() -> None:
    names = {one.name for one in WORKLOADS if one.name.startswith("librdkafka")}
    rates = ("50", "200", "1000", "5000")
    assert names == {f"librdkafka-{rate}{linger}" for rate in rates for linger in ("", "-no-linger")}


def test_each_record_but_the_first_is_told_once_it_is_acknowledged() -> None:
    mock = {"test.mock.num.brokers": 1, "allow.auto.create.topics": True, "linger.ms": 0}
    taken_ms = librdkafka_latencies("", "orders", 500, 0.2, mock, partitions=4)
    assert len(taken_ms) == 80
    assert min(taken_ms) > 0


def test_records_that_nobody_acknowledges_are_no_figures() -> None:
    with pytest.raises(KafkaToolError, match="10 records were not acknowledged"):
        librdkafka_latencies("127.0.0.1:1", "orders", 500, 0.02, {"message.timeout.ms": 100}, 1)


def test_records_that_are_late_end_the_load_in_bounded_time() -> None:
    with pytest.raises(TimeoutError, match=r"10 of 10 records were not acknowledged 0\.3 s after"):
        librdkafka_latencies("127.0.0.1:1", "orders", 500, 0.02, {}, 1, flush_s=0.3)


def test_a_signal_is_heeded_while_records_are_waited_for() -> None:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def load() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        # In one flush the signal would be heeded after the hour.
        librdkafka_latencies("127.0.0.1:1", "orders", 500, 0.02, {"message.timeout.ms": 3_600_000}, 1, flush_s=3600.0)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            load()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
