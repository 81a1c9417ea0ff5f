"""Asks all agents and one broker once a second, in a thread of its own, and remembers what they said."""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from demo.measurement import AgentAccounts, Moment
from demo.plan import ALL_TOPICS
from local_cluster.agent_metrics import scrape
from metadata_topic.topic.topic import METADATA_TOPIC, SETTINGS_TOPIC

if TYPE_CHECKING:
    from local_cluster.cluster import LocalCluster

INTERVAL_S = 1.0
_OFFSETS_TIMEOUT_S = 2.0


class Sampler:
    """`now` may be called from any thread; `listener` is called on the sampler's, after each round."""

    def __init__(
        self,
        cluster: "LocalCluster",
        listener: Callable[[Moment], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._listener = listener
        self._clock = clock
        self._accounts = AgentAccounts()
        self._records = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop after the round under way."""
        self._stop.set()
        self._thread.join(10.0)

    def now(self) -> Moment:
        """Ask all agents now. One that does not answer counts with what it said last."""
        with self._lock:
            for broker_id in self._cluster.broker_ids:
                self._ask(broker_id)
            self._records = self._records_in_logs() or self._records
            return Moment(
                self._clock(),
                self._accounts.totals(),
                self._metadata_log_bytes(),
                self._records,
                sum(self._accounts.gauge("remote_wal_upload_lag_bytes")),
                max(self._accounts.gauge("remote_wal_oldest_unstored_seconds"), default=0.0),
            )

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._listener(self.now())

    def _ask(self, broker_id: int) -> None:
        agent = self._cluster.agent(broker_id)
        process = agent.pid
        if process is None:
            return
        try:
            found = scrape(self._cluster, broker_id)
        except (OSError, ValueError):
            return
        # Another process may have taken the port meanwhile.
        if agent.pid == process:
            self._accounts.observe(broker_id, process, found)

    def _metadata_log_bytes(self) -> int:
        """Of each partition the longest replica: followers may lag."""
        sizes: dict[str, int] = {}
        for broker_id in self._cluster.broker_ids:
            for log_directory in self._cluster.files.log_directories(broker_id):
                for topic in (METADATA_TOPIC, SETTINGS_TOPIC):
                    for partition in log_directory.glob(f"{topic}-*"):
                        size = sum(path.stat().st_size for path in partition.glob("*.log"))
                        sizes[partition.name] = max(sizes.get(partition.name, 0), size)
        return sum(sizes.values())

    def _records_in_logs(self) -> int | None:
        """None while a partition has no leader."""
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        wanted = {
            TopicPartition(topic.name, number): OffsetSpec.latest()
            for topic in ALL_TOPICS
            for number in range(topic.partitions)
        }
        try:
            futures = self._cluster.admin.client.list_offsets(wanted, request_timeout=_OFFSETS_TIMEOUT_S)
            return sum(int(future.result(_OFFSETS_TIMEOUT_S + 1).offset) for future in futures.values())
        except (KafkaException, TimeoutError):
            # The client goes on asking the leaders of old until it is told of the new ones.
            self._cluster.admin.registered_brokers(_OFFSETS_TIMEOUT_S)
            return None
