"""The end-to-end test of the KIP's appendix: every record is told, and clients' metrics go by the KIP's names."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from local_cluster.polling import WaitTimeoutError
from perf.ladder.kip_1176 import ClientStatistics, end_to_end

NOBODY = {"cnt": 0, "sum": 0, "max": 0}


@pytest.fixture
def broker() -> Iterator[str]:
    """A mock broker, with the topic; as long as its client is there."""
    host = Producer({"test.mock.num.brokers": 1, "allow.auto.create.topics": True, "bootstrap.servers": "unused"})
    host.produce("orders", b"first", partition=0)
    assert host.flush(10) == 0
    (one,) = host.list_topics(timeout=10).brokers.values()
    yield f"{one.host}:{one.port}"
    host.purge()


def told(*, at: int, trips: int, longest_us: int) -> str:
    trip = {"cnt": trips, "sum": trips * 1000, "max": longest_us}
    broker = {"nodeid": 2, "rtt": trip, "int_latency": NOBODY, "req": {"Fetch": 7}}
    bootstrap = {"nodeid": -1, "rtt": trip, "int_latency": NOBODY, "req": {}}
    partitions = {"0": {"broker": at, "leader": 1}}
    topic = {"batchsize": NOBODY, "batchcnt": NOBODY, "partitions": partitions}
    return json.dumps({"brokers": {"a": broker, "b": bootstrap}, "topics": {"orders": topic}, "rxmsgs": 5})


def test_windows_are_put_together_and_bootstrap_connections_left_out() -> None:
    statistics = ClientStatistics("orders")
    seen = []
    for at, trips, longest_us in ((1, 3, 4000), (2, 1, 2000)):
        statistics.told(told(at=at, trips=trips, longest_us=longest_us))
        seen.append(statistics.is_at_a_follower)
    assert seen == [False, True]
    figures = statistics.of_consumer()
    assert (figures["fetch-latency-avg"], figures["fetch-latency-max"], figures["fetch-total"]) == (1.0, 4.0, 7)
    assert figures["records-consumed-total"] == 5


def test_without_a_follower_that_is_read_from_there_are_no_figures(broker: str) -> None:
    with pytest.raises(WaitTimeoutError, match="sent to the follower"):
        end_to_end(broker, "orders", 1, follower_within_s=0.3)


def test_each_record_of_each_burst_is_told(broker: str) -> None:
    figures = end_to_end(broker, "orders", 2, follower_within_s=None)
    assert figures["record-send-total"] == figures["records-consumed-total"] == 200
    assert 0 < figures["end to end, min ms"] <= figures["end to end, p50 ms"] <= figures["end to end, max ms"]
    assert figures["batch-size-max"] <= 32_768
