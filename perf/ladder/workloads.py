"""The loads of the ladder, driven by Kafka's own perf tools, each the same against every cluster."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum

from local_cluster.kafka_tools import KafkaTools, ProducerPerformance
from perf.ladder.small_requests import PARTITIONS, figures_of, librdkafka_latencies

Figures = Mapping[str, float]
RECORD_BYTES = 1000
_SIX = 6
_LIBRDKAFKA_S = 10.0


class Comparison(Enum):
    """The comparison of a rung with stock in the same round."""

    RATIO = "ratio"
    """rung / stock: throughput."""
    ADDED_MS = "added ms"
    """rung - stock: latency."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One load. `run(tools, topic, scale)` returns its figures; `compared` names those that count, and the
    comparison.
    """

    name: str
    title: str
    partitions: int
    compared: Mapping[str, Comparison]
    run: Callable[[KafkaTools, str, float], Figures]


def produced(
    tools: KafkaTools, topic: str, producers: int, records: int, config: Mapping[str, str], records_per_s: int = -1
) -> Figures:
    """Run Kafka's producers with these records together, each at this rate (-1: as fast as it can)."""

    def one(_: int) -> ProducerPerformance:
        each = records // producers
        return tools.produce(topic, records=each, record_bytes=RECORD_BYTES, records_per_s=records_per_s, config=config)

    with ThreadPoolExecutor(producers) as pool:
        runs = list(pool.map(one, range(producers)))
    return {
        "MB/s": sum(run.records_per_s for run in runs) * RECORD_BYTES / 1e6,
        "p50 ms": max(run.p50_ms for run in runs),
        "p99 ms": max(run.p99_ms for run in runs),
    }


def _acks_1(tools: KafkaTools, topic: str, scale: float) -> Figures:
    return produced(tools, topic, 1, int(500_000 * scale), {"acks": "1"})


def _acks_all_one(tools: KafkaTools, topic: str, scale: float) -> Figures:
    return produced(tools, topic, 1, int(150_000 * scale), {"acks": "all"})


def _acks_all_six(tools: KafkaTools, topic: str, scale: float) -> Figures:
    return produced(tools, topic, _SIX, int(300_000 * scale), {"acks": "all"})


def _acks_all_six_large_batches(tools: KafkaTools, topic: str, scale: float) -> Figures:
    return produced(tools, topic, _SIX, int(600_000 * scale), {"acks": "all", "batch.size": "131072"})


def _paced(tools: KafkaTools, topic: str, records: int, records_per_s: int, config: Mapping[str, str]) -> Figures:
    run = tools.produce(
        topic,
        records=records,
        record_bytes=RECORD_BYTES,
        records_per_s=records_per_s,
        config=config,
        warmup_records=records // 5,
    )
    return {"p50 ms": run.p50_ms, "p95 ms": run.p95_ms, "p99 ms": run.p99_ms, "MB/s": run.mib_per_s * 1.048576}


def _one_in_flight(tools: KafkaTools, topic: str, scale: float) -> Figures:
    # At 50/s a record is acknowledged before the next is due, so none waits for another.
    config = {"acks": "all", "max.in.flight.requests.per.connection": "1", "linger.ms": "0"}
    return _paced(tools, topic, int(1_500 * scale), 50, config)


def _small_load(tools: KafkaTools, topic: str, scale: float) -> Figures:
    config = {"acks": "all", "max.in.flight.requests.per.connection": "1"}
    return _paced(tools, topic, int(40_000 * scale), 2_000, config)


def _end_to_end(tools: KafkaTools, topic: str, scale: float) -> Figures:
    run = tools.end_to_end_latency(topic, records=int(1_000 * scale), acks="all", record_bytes=RECORD_BYTES)
    return {"p50 ms": run.p50_ms, "p99 ms": run.p99_ms}


def _steady(tools: KafkaTools, topic: str, scale: float) -> Figures:
    return _paced(tools, topic, int(500_000 * scale), 25_000, {"acks": "1"})


def librdkafka(records_per_s: int, *, linger: bool) -> Workload:
    """Return a load of a producer with librdkafka's defaults, or of one that sends each record at once."""

    def run(tools: KafkaTools, topic: str, scale: float) -> Figures:
        config = {} if linger else {"linger.ms": 0}
        seconds = _LIBRDKAFKA_S * scale
        return figures_of(librdkafka_latencies(tools.bootstrap_servers, topic, records_per_s, seconds, config))

    name = f"librdkafka-{records_per_s}{'' if linger else '-no-linger'}"
    title = f"librdkafka, {'default settings' if linger else 'linger.ms 0'}, {records_per_s:,} records/s of 1 KB"
    return Workload(name, title, PARTITIONS, LATENCY, run)


THROUGHPUT = {"MB/s": Comparison.RATIO}
LATENCY = {"p50 ms": Comparison.ADDED_MS, "p99 ms": Comparison.ADDED_MS}

WORKLOADS = (
    Workload("acks-1", "acks=1, one producer, saturated", 12, THROUGHPUT, _acks_1),
    Workload("acks-all-one", "acks=all, one producer with default settings, saturated", 12, THROUGHPUT, _acks_all_one),
    Workload("acks-all-six", "acks=all, six producers with default settings, saturated", 12, THROUGHPUT, _acks_all_six),
    Workload(
        "acks-all-six-128k",
        "acks=all, six producers with batch.size 128 KB, saturated",
        12,
        THROUGHPUT,
        _acks_all_six_large_batches,
    ),
    Workload("one-in-flight", "acks=all, one record in flight, 50/s", 3, LATENCY, _one_in_flight),
    Workload("small-load", "acks=all, 2,000 records/s of 1 KB, one request in flight", 3, LATENCY, _small_load),
    Workload("end-to-end", "produce to consume, one record in flight", 1, LATENCY, _end_to_end),
    Workload("steady", "25 MB/s, acks=1", 12, {"p50 ms": Comparison.ADDED_MS}, _steady),
    *(librdkafka(rate, linger=linger) for linger in (True, False) for rate in (50, 200, 1000, 5000)),
)
