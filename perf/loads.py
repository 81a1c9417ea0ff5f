"""The loads that Kafka's own producer and librdkafka put on a topic, and what their clients saw.

A broker answers one Produce request of a connection at a time, so with acks=all each small one waits for a round of
replication by itself. Kafka's own tool cannot show that: the Java client has at most five requests in flight.
librdkafka with its defaults sends what a few milliseconds collect, and up to a million requests ahead.
"""

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kafka_cluster.flushing import flush
from local_cluster.cluster_admin import CLIENT_CONFIG
from local_cluster.kafka_tools import KafkaToolError, KafkaTools, ProducerPerformance

if TYPE_CHECKING:
    from confluent_kafka import Producer

Figures = Mapping[str, float]
Run = Callable[[KafkaTools, str, float], Figures]
"""Runs a load against a topic, so many times as large, and returns what clients saw."""
RECORD_BYTES: Final = 1000
_WARM_UP: Final = 0.2
_FLUSH_S: Final = 60.0
"""The maximum wait for a load after all of it was sent."""


def kafka(
    records: int, config: Mapping[str, str], *, producers: int = 1, records_per_s: int = -1, warm_up: float = 0.0
) -> Run:
    """Let Kafka's producers write so many records of 1 KB together, each producer at this rate (-1: as fast as it can).

    `warm_up` is the part of them that latencies do not count.
    """

    def run(tools: KafkaTools, topic: str, scale: float) -> Figures:
        each = int(records * scale) // producers

        def one(_: int) -> ProducerPerformance:
            return tools.produce(
                topic,
                records=each,
                record_bytes=RECORD_BYTES,
                records_per_s=records_per_s,
                config=config,
                warmup_records=int(each * warm_up),
            )

        with ThreadPoolExecutor(producers) as pool:
            runs = list(pool.map(one, range(producers)))
        return {
            "MB/s": sum(run.records_per_s for run in runs) * RECORD_BYTES / 1e6,
            "p50 ms": max(run.p50_ms for run in runs),
            "p95 ms": max(run.p95_ms for run in runs),
            "p99 ms": max(run.p99_ms for run in runs),
        }

    return run


def librdkafka(records_per_s: int, config: Mapping[str, str | int], *, partitions: int, seconds: float = 1.0) -> Run:
    """Let one librdkafka producer write at this rate with acks=all."""

    def run(tools: KafkaTools, topic: str, scale: float) -> Figures:
        servers = tools.bootstrap_servers
        taken_ms = librdkafka_latencies(servers, topic, records_per_s, seconds * scale, config, partitions)
        return {"MB/s": records_per_s * RECORD_BYTES / 1e6, **quantiles(taken_ms)}

    return run


def librdkafka_latencies(
    bootstrap_servers: str,
    topic: str,
    records_per_s: int,
    seconds: float,
    config: Mapping[str, str | int],
    partitions: int,
    flush_s: float = _FLUSH_S,
    values: Sequence[bytes] = (bytes(RECORD_BYTES),),
) -> list[float]:
    """Return ms from send to acknowledgement, of all but the first records. Raises TimeoutError, KafkaToolError.

    `values` are the records, in turn.
    """
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap_servers, **CLIENT_CONFIG, **config})
    records, taken_ms, refused = round(records_per_s * seconds), list[float](), list[object]()

    def send(number: int) -> None:
        sent_s, counts = time.perf_counter(), number >= records * _WARM_UP

        def acknowledged(error: object, _message: object) -> None:
            if error is not None:
                refused.append(error)
            elif counts:
                taken_ms.append((time.perf_counter() - sent_s) * 1000)

        producer.produce(topic, values[number % len(values)], partition=number % partitions, on_delivery=acknowledged)

    with _polled(producer):
        for number in paced(records, records_per_s):
            send(number)
    if left := flush(producer, flush_s):
        producer.purge()  # otherwise they would continue during the next load
        raise TimeoutError(f"{left} of {records} records were not acknowledged {flush_s:g} s after the last was sent")
    if refused:
        raise KafkaToolError(f"{len(refused)} records were not acknowledged: {refused[0]}")
    return taken_ms


@contextmanager
def _polled(producer: "Producer") -> Iterator[None]:
    """Poll for acknowledgements on another thread, so that this one can keep the pace."""
    is_over = threading.Event()

    def poll() -> None:
        while not is_over.is_set():
            producer.poll(0.05)

    polling = threading.Thread(target=poll, name="acknowledgements", daemon=True)
    polling.start()
    try:
        yield
    finally:
        is_over.set()
        polling.join()


def paced(records: int, records_per_s: float) -> Iterator[int]:
    """Count records, each when it is due; one that is late is due at once."""
    pause, begun_s = threading.Event().wait, time.monotonic()
    for number in range(records):
        if (early_s := begun_s + number / records_per_s - time.monotonic()) > 0:
            pause(early_s)
        yield number


def quantiles(taken_ms: list[float]) -> Figures:
    """Return p50, p95 and p99."""
    cuts = statistics.quantiles(taken_ms, n=100, method="inclusive")
    return {"p50 ms": cuts[49], "p95 ms": cuts[94], "p99 ms": cuts[98]}
