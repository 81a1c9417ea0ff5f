"""A librdkafka producer with its defaults:

it sends what a few milliseconds collect, and up to a million requests ahead.

A broker answers one Produce request of a connection at a time, so with acks=all each small one waits for a round of
replication by itself. Kafka's own tool cannot show that: the Java client has at most five requests in flight.
"""

import statistics
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from local_cluster.cluster_admin import CLIENT_CONFIG
from local_cluster.kafka_tools import KafkaToolError

PARTITIONS: Final = 6
_RECORD_BYTES: Final = 1000
_WARM_UP: Final = 0.2
FLUSH_S: Final = 60.0
"""The maximum wait for a load after all of it was sent."""
_FLUSH_BIT_S: Final = 0.2


def librdkafka_latencies(
    bootstrap_servers: str,
    topic: str,
    records_per_s: int,
    seconds: float,
    config: Mapping[str, str | int],
    partitions: int = PARTITIONS,
    flush_s: float = FLUSH_S,
) -> list[float]:
    """Milliseconds from send to acknowledgement, of all but the first records. Raises TimeoutError, KafkaToolError."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap_servers, **CLIENT_CONFIG, **config})
    records, value, taken_ms = round(records_per_s * seconds), bytes(_RECORD_BYTES), list[float]()
    refused = list[object]()

    def send(number: int) -> None:
        sent_s, counts = time.perf_counter(), number >= records * _WARM_UP

        def acknowledged(error: object, _message: object) -> None:
            if error is not None:
                refused.append(error)
            elif counts:
                taken_ms.append((time.perf_counter() - sent_s) * 1000)

        producer.produce(topic, value, partition=number % partitions, on_delivery=acknowledged)

    polling = _Polling(producer.poll)
    polling.start()
    try:
        pause, begun_s = threading.Event().wait, time.monotonic()
        for number in range(records):
            if (early_s := begun_s + number / records_per_s - time.monotonic()) > 0:
                pause(early_s)
            send(number)
    finally:
        polling.end()
    # In short steps, because a signal during a long flush is handled only at its end.
    until_s = time.monotonic() + flush_s
    while (left := producer.flush(min(_FLUSH_BIT_S, flush_s))) and time.monotonic() < until_s:
        pass
    if left:
        producer.purge()  # otherwise they would continue during the next load
        raise TimeoutError(f"{left} of {records} records were not acknowledged {flush_s:g} s after the last was sent")
    if refused:
        raise KafkaToolError(f"{len(refused)} records were not acknowledged: {refused[0]}")
    return taken_ms


class _Polling(threading.Thread):
    """Polls for acknowledgements, so that another thread can keep the pace."""

    def __init__(self, poll: Callable[[float], int]) -> None:
        super().__init__(name="acknowledgements", daemon=True)
        self._poll = poll
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.is_set():
            self._poll(0.05)

    def end(self) -> None:
        self._ended.set()
        self.join()


def figures_of(taken_ms: list[float]) -> dict[str, float]:
    """Return quantiles."""
    cuts = statistics.quantiles(taken_ms, n=100, method="inclusive")
    return {"p50 ms": cuts[49], "p95 ms": cuts[94], "p99 ms": cuts[98]}
