"""What writes and reads: Kafka's producer performance, and a heartbeat that times acknowledgements."""

import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from demo.plan import ALL_TOPICS, LEDGER_TOPIC, PROBE_TOPIC, PerformanceRun
from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import CLIENT_CONFIG, set_topics
from local_cluster.kafka_tools import KafkaTools, ProducerPerformance
from local_cluster.polling import wait_until
from local_cluster.workload.json_events import json_event
from local_cluster.workload.ledger import MAX_INFLIGHT_RECORDS
from metadata_topic.settings.settings_topic import read_settings
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

_DISTINCT_EVENTS = 40_000
"""So many that packing seldom sees one twice within its window."""
_HEARTBEAT_INTERVAL_S = 0.02
_DELIVERY_TIMEOUT_S = 90.0


def prepare_topics(cluster: LocalCluster) -> None:
    """Create the demo's topics, and enable them as `remote-wal topics enable` does.

    Raises ClusterAdminError, MetadataTopicError, WaitTimeoutError.
    """
    brokers = cluster.broker_ids
    for topic, partitions in ALL_TOPICS.items():
        replicas = [
            [brokers[(first + step) % len(brokers)] for step in range(len(brokers))] for first in range(partitions)
        ]
        cluster.admin.create_topic(topic, assignment=replicas)
    set_topics(cluster.bootstrap_servers, ALL_TOPICS)
    # What is checked record by record goes by links all the time, so that faults strike links.
    set_topics(cluster.bootstrap_servers, [LEDGER_TOPIC], TopicSettings(enable=True, link_policy=LinkPolicy.ALWAYS))
    client = KafkaClientConfig(cluster.bootstrap_servers, {"log_level": 0})

    def known() -> bool:
        settings = read_settings(client).topics
        return all(topic in settings and settings[topic].enable for topic in ALL_TOPICS)

    wait_until(known, "the topics are switched on", 30.0)


def produce(runs: Sequence[PerformanceRun], direct: KafkaTools, by_agents: KafkaTools) -> list[ProducerPerformance]:
    """Run Kafka's producer performance tool for each run, one after the other, with events in JSON. Raises
    KafkaToolError."""
    source = random.Random(1)  # noqa: S311 (runs are to be alike)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(b"\n".join(json_event(source, number) for number in range(_DISTINCT_EVENTS)))
        file.flush()
        return [
            (by_agents if run.way.by_agents else direct).produce(
                run.way.topic,
                records=run.records,
                records_per_s=run.records_per_s,
                config={"acks": run.way.acks, **run.config},
                payload_file=Path(file.name),
            )
            for run in runs
        ]


def read_back(runs: Sequence[PerformanceRun], tools: KafkaTools) -> int:
    """Consume the runs' topics with Kafka's consumer performance tool, and return how many records it read."""
    written: Counter[str] = Counter()
    for run in runs:
        written[run.way.topic] += run.records
    return sum(tools.consume(topic, records=count) for topic, count in written.items())


class Heartbeat:
    """Writes a record at each interval to partition 0, and times each acknowledgement."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._answers: list[tuple[float, float]] = []  # when a record was sent, and when it was acknowledged
        self._unanswered = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def abandon(self) -> None:
        """Tell the heartbeat to end, without waiting."""
        self._stop.set()

    def finish(self) -> None:
        """Send no more heartbeats, and wait until all are acknowledged."""
        self._stop.set()
        self._thread.join(_DELIVERY_TIMEOUT_S + 5)

    def longest_wait_s(self, from_s: float, to_s: float) -> float | None:
        """Return the longest wait of a heartbeat sent in that time; None when there was none."""
        waits = (acknowledged - sent for sent, acknowledged in list(self._answers) if from_s <= sent <= to_s)
        return max(waits, default=None)

    def resumed_after_s(self, from_s: float) -> float | None:
        """Return how long after `from_s` a heartbeat that was sent since was acknowledged."""
        waits = (acknowledged - from_s for sent, acknowledged in list(self._answers) if from_s <= sent)
        return min(waits, default=None)

    def _run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                **CLIENT_CONFIG,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "delivery.timeout.ms": int(_DELIVERY_TIMEOUT_S * 1000),
            }
        )
        while not self._stop.is_set():
            if self._unanswered < MAX_INFLIGHT_RECORDS:
                self._beat(producer)
            due = time.monotonic() + _HEARTBEAT_INTERVAL_S
            while (left := due - time.monotonic()) > 0:
                producer.poll(left)
        producer.flush(_DELIVERY_TIMEOUT_S)

    def _beat(self, producer: "Producer") -> None:
        sent_s = time.monotonic()

        def answered(error: "KafkaError | None", _message: "Message") -> None:
            self._unanswered -= 1
            if error is None:
                self._answers.append((sent_s, time.monotonic()))

        self._unanswered += 1
        producer.produce(PROBE_TOPIC, b"heartbeat", partition=0, on_delivery=answered)
