"""The loads of KIP-1176's own appendix: two replicas in two zones, acks=1, a consumer in the follower's zone.

Its end-to-end test sends 100 records of 1.6 KB in batches of up to 32 KB, and takes each record's time from when it is
made to when the consumer, which reads from the follower, has it. The two others are Kafka's own tools.
"""

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from local_cluster.cluster_admin import CLIENT_CONFIG
from local_cluster.kafka_tools import KafkaToolError, KafkaTools
from local_cluster.polling import wait_until

REPLICAS: Final = 2
BROKER_SETTINGS: Final = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
PUBLISHED: Final = {
    "end to end, mean ms": (708.97, 919.72),
    "producer MiB/s": (39.18, 39.62),
    "consumer MiB/s": (44.56, 40.83),
}
"""By the KIP: its topic that is replicated as in stock, and the one by object storage."""
_FOLLOWERS_ZONE: Final = "az2"
_BURSTS: Final = 10
"""Where the KIP had one: that tells at which phase of a wait it came."""
_BURST_RECORDS, _BURST_RECORD_BYTES = 100, 1600
_FETCH_WAIT_S, _PAUSE_S, _GOLDEN = 0.5, 0.3, 0.618
_ARRIVAL_S: Final = 60.0
_TOOLS_RECORDS, _TOOLS_RECORD_BYTES = 100_000, 2000
_TOOLS_PRODUCER: Final = {
    "acks": "1",
    "retries": "2",
    "linger.ms": "20",
    "delivery.timeout.ms": "300000",
    "request.timeout.ms": "30000",
}


def kip_1176(tools: KafkaTools, topic: str, scale: float) -> dict[str, float]:
    """The three tests, one after the other. Raises KafkaToolError, WaitTimeoutError."""
    records = max(1, round(_TOOLS_RECORDS * scale))
    figures = end_to_end(tools.bootstrap_servers, topic, max(1, round(_BURSTS * scale)))
    produced = tools.produce(topic, records=records, record_bytes=_TOOLS_RECORD_BYTES, config=_TOOLS_PRODUCER)
    consumed = tools.consume(topic, records=records, config={"client.rack": _FOLLOWERS_ZONE}, idle_timeout_s=240)
    return {
        **figures,
        "producer MiB/s": produced.mib_per_s,
        "producer mean ms": produced.average_ms,
        "producer p50 ms": produced.p50_ms,
        "producer p99 ms": produced.p99_ms,
        "consumer MiB/s": consumed.mib_per_s,
        "consumer fetch MiB/s": consumed.fetch_mib_per_s,
        "consumer rebalance ms": consumed.rebalance_ms,
    }


def end_to_end(
    bootstrap_servers: str, topic: str, bursts: int, *, follower_within_s: float | None = _ARRIVAL_S
) -> dict[str, float]:
    """The time that records take, and the clients' own metrics. Raises KafkaToolError, WaitTimeoutError.

    A consumer that is not sent to the follower in that time gives no figures; None: it may read anywhere.
    """
    from confluent_kafka import Consumer, Producer, TopicPartition

    both = {"bootstrap.servers": bootstrap_servers, "statistics.interval.ms": 100}
    sending, receiving = ClientStatistics(topic), ClientStatistics(topic)
    # Batches of the KIP's producer held 20 records and were 10 ms old at most.
    batches = {"acks": 1, "batch.size": 32_768, "linger.ms": 10}
    place = {"client.rack": _FOLLOWERS_ZONE, "group.id": topic, "enable.auto.commit": False}
    producer = Producer({**CLIENT_CONFIG, **both, **batches, "stats_cb": sending.told})
    consumer = Consumer({**CLIENT_CONFIG, **both, **place, "stats_cb": receiving.told})
    try:
        partition = TopicPartition(topic, 0)
        _, end = consumer.get_watermark_offsets(partition, timeout=_ARRIVAL_S)
        consumer.assign([TopicPartition(topic, 0, end)])

        def is_at_the_follower() -> bool:
            consumer.poll(0.1)
            return receiving.is_at_a_follower

        if follower_within_s is not None:
            wait_until(is_at_the_follower, "the consumer is sent to the follower", follower_within_s)
        taken_ms = []
        for number in range(bursts):
            # Spread over the phases of a fetch that waits, or each burst would meet the phase that the one before left.
            consumer.poll(_PAUSE_S + number * _GOLDEN % 1 * _FETCH_WAIT_S)
            taken_ms += _burst(producer, consumer, topic)
        producer.flush(_ARRIVAL_S)
        producer.poll(0.3)  # for the last statistics
        consumer.poll(0.3)
    finally:
        consumer.close()
    cuts = statistics.quantiles(taken_ms, n=100, method="inclusive")
    times = {"mean": statistics.fmean(taken_ms), "min": min(taken_ms), "max": max(taken_ms), "p50": cuts[49]}
    times |= {"p75": cuts[74], "p90": cuts[89], "p99": cuts[98]}
    return (
        {f"end to end, {name} ms": value for name, value in times.items()}
        | sending.of_producer()
        | receiving.of_consumer()
    )


def _burst(producer: Any, consumer: Any, topic: str) -> list[float]:
    """Milliseconds from when a record was made to when it is read."""
    made_s: dict[bytes, float] = {}
    for number in range(_BURST_RECORDS):
        key = b"%d" % number
        made_s[key] = time.perf_counter()
        producer.produce(topic, bytes(_BURST_RECORD_BYTES), key, partition=0)
    taken_ms, until_s = [], time.monotonic() + _ARRIVAL_S
    while made_s:
        if time.monotonic() > until_s:
            raise KafkaToolError(f"{len(made_s)} records did not come within {_ARRIVAL_S:.0f} s")
        message = consumer.poll(0.1)
        producer.poll(0)
        if message is None:
            continue
        if message.error() is not None:
            raise KafkaToolError(f"the consumer failed: {message.error()}")
        taken_ms.append((time.perf_counter() - made_s.pop(message.key())) * 1000)
    return taken_ms


@dataclass(slots=True)
class _Window:
    count: int = 0
    total: float = 0.0
    most: float = 0.0

    def add(self, told: Mapping[str, float], unit: float = 1.0) -> None:
        self.count += int(told["cnt"])
        self.total += told["sum"] / unit
        self.most = max(self.most, told["max"] / unit)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0


@dataclass(slots=True)
class ClientStatistics:
    """What a client of librdkafka tells of itself, under the names of the KIP's tables."""

    topic: str
    is_at_a_follower: bool = False
    _windows: defaultdict[str, _Window] = field(default_factory=lambda: defaultdict(_Window))
    _last: dict[str, Any] = field(default_factory=dict)

    def told(self, text: str) -> None:
        """Each statement tells what was since the one before it, and some totals."""
        self._last = json.loads(text)
        for broker in self._last["brokers"].values():
            if broker["nodeid"] >= 0:
                self._windows["round trip"].add(broker["rtt"], 1000)
                self._windows["queued"].add(broker["int_latency"], 1000)
        if (topic := self._last["topics"].get(self.topic)) is not None:
            self._windows["batch bytes"].add(topic["batchsize"])
            self._windows["batch records"].add(topic["batchcnt"])
            one = topic["partitions"].get("0", {})
            self.is_at_a_follower = one.get("broker", -1) not in (-1, one.get("leader", -1))

    def of_producer(self) -> dict[str, float]:
        """The KIP's producer metrics."""
        batch, queued, trip = (self._windows[name] for name in ("batch bytes", "queued", "round trip"))
        return {
            "batch-size-avg": batch.mean,
            "batch-size-max": batch.most,
            "record-queue-time-avg": queued.mean,
            "record-queue-time-max": queued.most,
            "record-send-total": self._last.get("txmsgs", 0),
            "producer records-per-request-avg": self._windows["batch records"].mean,
            "request-latency-avg": trip.mean,
            "request-latency-max": trip.most,
        }

    def of_consumer(self) -> dict[str, float]:
        """The KIP's consumer metrics."""
        trip = self._windows["round trip"]
        fetches = sum(one["req"].get("Fetch", 0) for one in self._last.get("brokers", {}).values())
        return {
            "fetch-latency-avg": trip.mean,
            "fetch-latency-max": trip.most,
            "fetch-total": fetches,
            "records-consumed-total": self._last.get("rxmsgs", 0),
            "bytes-consumed-total": self._last.get("rxmsg_bytes", 0),
        }
