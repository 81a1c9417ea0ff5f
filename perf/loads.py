"""The loads that Kafka's own tools and librdkafka put on a topic, and what their clients saw.

A broker answers one Produce request of a connection at a time, so with acks=all each small one waits for a round of
replication by itself. Kafka's own tool cannot show that: the Java client has at most five requests in flight.
librdkafka with its defaults sends what a few milliseconds collect, and up to a million requests ahead.
"""

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Final

from kafka_cluster.flushing import flush
from local_cluster.cluster_admin import CLIENT_CONFIG
from local_cluster.kafka_tools import KafkaToolError, KafkaTools, ProducerPerformance
from local_cluster.workload.json_events import json_event

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
    """Return a load of Kafka's own producers: `records` of 1 KB together, each producer at this rate (-1: as fast as it
    can).

    `warm_up` is how many of them latencies do not count.
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
            "p99 ms": max(run.p99_ms for run in runs),
        }

    return run


def fleet(
    producers: int,
    mb_per_s: float,
    config: Mapping[str, str | int],
    *,
    topics: int = 1,
    is_json: bool = False,
    seconds: float = 1.0,
) -> Run:
    """Return a load of librdkafka producers at this rate together, in turns, for this many seconds times its scale.

    With `topics`, each writes to so many topics in turns: the given one, and others with suffixes. Records are random
    bytes, which nothing can pack, or JSON.
    """
    values = [record(number, is_json=is_json) for number in range(1000)]

    def run(tools: KafkaTools, topic: str, scale: float) -> Figures:
        names = [topic, *(f"{topic}-{number}" for number in range(2, topics + 1))]
        return _Fleet(tools.bootstrap_servers, producers, config, names, values).run(
            mb_per_s * 1e6 / RECORD_BYTES, seconds * scale
        )

    return run


def beside(run: Run, other: Run) -> Run:
    """Let another load write to the topic with a suffix meanwhile. The figures are the first one's."""

    def both(tools: KafkaTools, topic: str, scale: float) -> Figures:
        with ThreadPoolExecutor(1) as pool:
            others = pool.submit(other, tools, f"{topic}-2", scale)
            figures = run(tools, topic, scale)
            others.result()
        return figures

    return both


class _Fleet:
    """Some librdkafka producers, which take turns."""

    def __init__(
        self, servers: str, producers: int, config: Mapping[str, str | int], topics: list[str], values: list[bytes]
    ) -> None:
        from confluent_kafka import Producer

        given = {"bootstrap.servers": servers, "queue.buffering.max.kbytes": 8192, **config}
        self._producers = [Producer({**CLIENT_CONFIG, **given}) for _ in range(producers)]
        self._topics, self._values = topics, values
        self._taken_ms, self._refused = list[float](), list[object]()
        self._counts_from_s = 0.0

    def run(self, records_per_s: float, seconds: float) -> Figures:
        """Write at this rate; the first part does not count. Raises KafkaToolError."""
        self._counts_from_s = time.perf_counter() + _WARM_UP * seconds
        with _polled(*self._producers):
            for number in paced(round(records_per_s * seconds), records_per_s):
                self._send(number)
            acknowledged, ends_s = len(self._taken_ms), time.perf_counter()
            left = sum(flush(one, _FLUSH_S) for one in self._producers)
        if self._refused or left:
            for one in self._producers:
                one.purge()  # otherwise they would continue during the next load
            raise KafkaToolError(f"{len(self._refused)} records were refused, {left} not acknowledged")
        mb_per_s = acknowledged * RECORD_BYTES / 1e6 / (ends_s - self._counts_from_s)
        return {"MB/s": mb_per_s, **_quantiles(self._taken_ms)}

    def _send(self, number: int) -> None:
        producer = self._producers[number % len(self._producers)]
        topic = self._topics[number // len(self._producers) % len(self._topics)]
        sent_s = time.perf_counter()

        def acknowledged(error: object, _message: object) -> None:
            if error is not None:
                self._refused.append(error)
            elif sent_s >= self._counts_from_s:
                self._taken_ms.append((time.perf_counter() - sent_s) * 1000)

        while True:
            try:
                producer.produce(topic, self._values[number % len(self._values)], on_delivery=acknowledged)
                return
            except BufferError:
                producer.poll(0.005)


def record(number: int, *, is_json: bool) -> bytes:
    """Return a record, which is the same each time: of random bytes, or of events in JSON."""
    source = Random(number)  # noqa: S311 (to be the same each time)
    if not is_json:
        return source.randbytes(RECORD_BYTES)
    return b" ".join(json_event(source, number) for _ in range(3))[:RECORD_BYTES]


@contextmanager
def _polled(*producers: "Producer") -> Iterator[None]:
    """Poll for acknowledgements on another thread, so that this one can keep the pace."""
    is_over = threading.Event()

    def poll() -> None:
        while not is_over.wait(0.002):
            for producer in producers:
                producer.poll(0)

    polling = threading.Thread(target=poll, name="acknowledgements", daemon=True)
    polling.start()
    try:
        yield
    finally:
        is_over.set()
        polling.join()


def paced(records: int, records_per_s: float) -> Iterator[int]:
    """Yield record numbers, each when it is due; one that is late comes at once."""
    pause, begun_s = threading.Event().wait, time.monotonic()
    for number in range(records):
        if (early_s := begun_s + number / records_per_s - time.monotonic()) > 0:
            pause(early_s)
        yield number


def _quantiles(taken_ms: list[float]) -> Figures:
    """Return p50 and p99 of these times in ms."""
    cuts = statistics.quantiles(taken_ms, n=100, method="inclusive")
    return {"p50 ms": cuts[49], "p99 ms": cuts[98]}
