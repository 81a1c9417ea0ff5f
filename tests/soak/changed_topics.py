"""Topics of which records go away by order or by age: deleted, expired and compacted ones, a topic that is deleted and
made again, and one without a second replica. One producer for each writes numbers, and nobody reads them meanwhile.

At rest the segments of every replica are held against what was acknowledged: it must be there, unless the order or the
age that a topic is for has taken it.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from kafka_cluster.flushing import flush
from kafka_log.plain_records import PlainFile
from kafka_log.segment_files import list_segments, log_file_name
from kafka_log.topic_partition import TopicId
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import CLIENT_CONFIG, LINKED_AND_KEPT, REQUEST_TIMEOUT_S, set_topics
from local_cluster.polling import wait_until
from metadata_topic.settings.settings_topic import known_id
from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.settings.wal_retention import NO_LIMIT
from plugin.wall_clock import wall_ms

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

DELETED, EXPIRED, REMADE, SINGLE, COMPACTED = (
    f"soak-{name}" for name in ("deleted", "expired", "remade", "single", "compacted")
)
COMPARABLE = (DELETED, EXPIRED, REMADE, SINGLE)
"""Their replicas must be equal. The replicas of a compacted topic are cleaned one by one."""
REPLICATED = (DELETED, EXPIRED, REMADE, COMPACTED)
KEYS = 48
_PARTITIONS = 3
_RETENTION_MS = 120_000
_VALUE_BYTES = 500
_TICK_S = 0.25
_RECORDS_PER_TICK = 3
_DELIVERY_S = 1800.0
"""Longer than a recovery takes on a full machine: a producer whose records expire in flight writes the rest of their
batch once more, under the next epoch."""
_FLUSH_S = 120.0
_ORDER_S = 300.0
_SHOWN = 5
_SEGMENTS = {"segment.bytes": "1048576", "segment.ms": "20000"}
_KEPT = {**_SEGMENTS, "retention.ms": "-1"}
_CONFIG: Mapping[str, dict[str, str]] = {
    DELETED: _KEPT,
    EXPIRED: {**_SEGMENTS, "retention.ms": str(_RETENTION_MS)},
    REMADE: {**_KEPT, "min.insync.replicas": "2"},
    SINGLE: _KEPT,
    COMPACTED: {**_SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
}


class TopicAccount:
    """What was acknowledged of one topic, and what of it may be gone. Thread-safe."""

    def __init__(self, topic: str, *, retention_ms: int | None = None, is_compacted: bool = False) -> None:
        self.topic = topic
        self.sent = 0
        self._retention_ms = retention_ms
        self._is_compacted = is_compacted
        self._acknowledged: dict[int, dict[int, tuple[int, int]]] = {}
        """Number and timestamp, by partition and offset."""
        self._may_be_deleted: dict[int, int] = {}
        self._is_deleted: dict[int, int] = {}
        self._lock = threading.Lock()

    @property
    def acknowledged(self) -> int:
        """How many records must be there, or have gone by the topic's own rules."""
        with self._lock:
            return sum(map(len, self._acknowledged.values()))

    def acknowledge(self, partition: int, offset: int, number: int, timestamp_ms: int) -> None:
        with self._lock:
            self._acknowledged.setdefault(partition, {})[offset] = number, timestamp_ms

    def forget(self, partition: int, from_offset: int = 0) -> int:
        """Drop what was acknowledged of this log from this offset on. Returns how many records that are."""
        with self._lock:
            known = self._acknowledged.pop(partition, {})
            self._acknowledged[partition] = {at: record for at, record in known.items() if at < from_offset}
            return len(known) - len(self._acknowledged[partition])

    def next_deletion(self) -> dict[int, int]:
        """Return below which offset of each partition to delete: half of what is there. From now on it may be gone."""
        with self._lock:
            for partition, known in self._acknowledged.items():
                self._may_be_deleted[partition] = (self._may_be_deleted.get(partition, 0) + max(known, default=0)) // 2
            return dict(self._may_be_deleted)

    def deleted(self, partition: int, offset: int) -> None:
        """Note that a broker has confirmed a deletion."""
        with self._lock:
            self._is_deleted[partition] = max(self._is_deleted.get(partition, 0), offset)

    def findings(
        self, partition: int, log_start: int, records: Sequence[tuple[int, int]], now_ms: int
    ) -> Iterator[str]:
        """What is wrong with a replica; `records` are its offsets and numbers, in order."""
        with self._lock:
            known, deleted = dict(self._acknowledged.get(partition, {})), self._is_deleted.get(partition, 0)
        if any(number >= following for (_, number), (_, following) in pairwise(records)):
            yield "records are doubled or out of order"
        if log_start < deleted:
            yield f"the log starts at {log_start}, and what is below {deleted} was deleted"
        found = {offset: number for offset, number in records if offset >= log_start}
        if self._is_compacted:
            newest = {number % KEYS: number for number in found.values()}
            latest = {number % KEYS: (offset, number) for offset, (number, _) in sorted(known.items())}
            lost = [one for key, one in latest.items() if newest.get(key, -1) < one[1]]
        else:
            lost = [
                (offset, number)
                for offset, (number, timestamp_ms) in known.items()
                if found.get(offset) != number
                and not (offset < log_start and self._may_be_gone(partition, offset, timestamp_ms, now_ms))
            ]
        if lost:
            some = ", ".join(f"{offset} (number {number})" for offset, number in sorted(lost)[:_SHOWN])
            yield f"{len(lost)} acknowledged records are not there, of a log from {log_start}: offsets {some}"

    def _may_be_gone(self, partition: int, offset: int, timestamp_ms: int, now_ms: int) -> bool:
        is_expired = self._retention_ms is not None and timestamp_ms <= now_ms - self._retention_ms
        return is_expired or offset < self._may_be_deleted.get(partition, 0)


class ChangedTopics:
    """These topics of a cluster, and their producers."""

    def __init__(self, cluster: LocalCluster, bootstrap_servers: str, *, is_durable: bool) -> None:
        """Make the topics. `bootstrap_servers` are the producers'; `is_durable`: of the topic that is made again."""
        self.accounts = {
            topic: TopicAccount(
                topic,
                retention_ms=_RETENTION_MS if topic == EXPIRED else None,
                is_compacted=topic == COMPACTED,
            )
            for topic in _CONFIG
        }
        self._cluster = cluster
        self._config: dict[str, Any] = {
            "bootstrap.servers": bootstrap_servers,
            **CLIENT_CONFIG,
            "enable.idempotence": True,
            "max.in.flight.requests.per.connection": 1,
            "delivery.timeout.ms": int(_DELIVERY_S * 1000),
        }
        self._settings = dict.fromkeys(_CONFIG, LINKED_AND_KEPT) | {
            COMPACTED: replace(LINKED_AND_KEPT, wal_retention_ms=NO_LIMIT),
            REMADE: replace(LINKED_AND_KEPT, durable=is_durable),
        }
        self._producers: dict[str, Producer] = {}
        self._former_id: TopicId | None = None
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._produce_guarded, name="changed topics", daemon=True)
        alone = [[broker_id] for broker_id in cluster.broker_ids]
        for topic, config in _CONFIG.items():
            assignment = alone if topic == SINGLE else None
            cluster.admin.create_topic(topic, _PARTITIONS, config=config, assignment=assignment)
            self._set(topic, self._settings[topic])

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Stop writing, and wait until each record is acknowledged or given up."""
        self.abandon()
        self._thread.join()

    def abandon(self) -> None:
        """Stop writing, without waiting."""
        self._stop.set()

    # Faults.

    def delete_records(self) -> None:
        """Delete records; the order may be refused, and nobody waits for its answer."""
        from confluent_kafka import TopicPartition

        account = self.accounts[DELETED]
        asked = [TopicPartition(DELETED, *one) for one in account.next_deletion().items()]
        for partition, future in self._cluster.admin.client.delete_records(asked).items():
            future.add_done_callback(_confirming(account, partition.partition, partition.offset))

    def delete_topic(self) -> None:
        from confluent_kafka import KafkaError

        self._former_id = wait_until(self._topic_id, f"{REMADE} has an id", _ORDER_S)
        self._order(
            lambda: self._cluster.admin.client.delete_topics([REMADE]), KafkaError.UNKNOWN_TOPIC_OR_PART, "deleted"
        )

    def make_topic_again(self) -> None:
        """Under its name and with its settings; what the former one acknowledged does not count any more.

        Raises WaitTimeoutError, MetadataTopicError.
        """
        from confluent_kafka import KafkaError
        from confluent_kafka.admin import NewTopic

        for partition in range(_PARTITIONS):
            self.accounts[REMADE].forget(partition)
        topic = NewTopic(REMADE, _PARTITIONS, len(self._cluster.broker_ids), config=_CONFIG[REMADE])
        self._order(
            lambda: self._cluster.admin.client.create_topics([topic]), KafkaError.TOPIC_ALREADY_EXISTS, "made again"
        )
        topic_id = wait_until(self._topic_id, f"{REMADE} has another id", _ORDER_S)
        self._set(REMADE, replace(self._settings[REMADE], topic_id=topic_id))

    def lose_single(self, broker_id: int, end_offset: int) -> int:
        """Note where the log without a second replica ends after this broker has lost its disk. Returns how many
        acknowledged records are gone.
        """
        return self.accounts[SINGLE].forget(self.partition_at(broker_id), end_offset)

    def partition_at(self, broker_id: int) -> int:
        """Return the partition without a second replica that is there."""
        return self._cluster.broker_ids.index(broker_id)

    # The verdict.

    def findings(self) -> Iterator[str]:
        """What is wrong with the replicas, now that nobody writes. Raises WaitTimeoutError."""
        if self._failure is not None:
            yield f"the producers of changed topics have failed: {self._failure!r}"
        for topic, account in self.accounts.items():
            states = self._cluster.admin.wait_for_full_isr(topic, partitions=_PARTITIONS, timeout_s=_ORDER_S)
            for state in states:
                for broker_id in state.replicas:
                    directory = self._cluster.layout.partition_directory(broker_id, topic, state.partition)
                    name = f"{topic}-{state.partition} on broker {broker_id}"
                    if directory is None:
                        yield f"{name} is not there"
                        continue
                    first, records = _read(directory)
                    log_start = max(first, self._log_start(topic, state.partition))
                    yield from (
                        f"{name}: {found}" for found in account.findings(state.partition, log_start, records, wall_ms())
                    )

    def figures(self) -> dict[str, object]:
        """How much was acknowledged of each topic, and where its logs begin."""
        return {
            topic: {
                "acknowledged": account.acknowledged,
                "log_starts": [self._log_start(topic, partition) for partition in range(_PARTITIONS)],
            }
            for topic, account in self.accounts.items()
        }

    def _log_start(self, topic: str, partition: int) -> int:
        from confluent_kafka import Consumer, TopicPartition

        reader = Consumer(
            {"bootstrap.servers": self._cluster.bootstrap_servers, **CLIENT_CONFIG, "group.id": "soak-log-start"}
        )
        try:
            start: int = reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=REQUEST_TIMEOUT_S)[0]
        finally:
            reader.close()
        return start

    def _topic_id(self) -> TopicId | None:
        """Return the id of the topic that is made again; None if it is the former one's, or no broker tells it now."""
        asked = KafkaCluster(KafkaClientConfig(self._cluster.bootstrap_servers), "soak", REQUEST_TIMEOUT_S)
        try:
            found = known_id(asked.topics([REMADE])[0])
        except KafkaClusterError:
            return None
        return None if found == self._former_id else found

    def _set(self, topic: str, settings: TopicSettings) -> None:
        if self._cluster.layout.has_agents:
            set_topics(self._cluster.bootstrap_servers, [topic], settings)

    def _order(self, ask: "Callable[[], Mapping[Any, Future[Any]]]", done: int, what: str) -> None:
        """Ask until it took effect; `done` is the answer if it has done so before."""
        from confluent_kafka import KafkaException

        def is_done() -> bool:
            try:
                for future in ask().values():
                    future.result(REQUEST_TIMEOUT_S)
            except KafkaException as error:
                return bool(error.args[0].code() == done)
            return True

        wait_until(is_done, f"{REMADE} is {what}", _ORDER_S, interval_s=0.5)

    # The producers.

    def _produce_guarded(self) -> None:
        try:
            self._produce()
        except BaseException as error:  # told by the verdict
            self._failure = error

    def _produce(self) -> None:
        for topic in self.accounts:
            self._connect(topic)
        while not self._stop.wait(_TICK_S):
            for account in self.accounts.values():
                self._send_some(account)
        ends_s = time.monotonic() + _FLUSH_S
        for producer in self._producers.values():
            flush(producer, max(ends_s - time.monotonic(), 1.0))

    def _connect(self, topic: str) -> None:
        from confluent_kafka import Producer

        self._producers[topic] = Producer(self._config)

    def _send_some(self, account: TopicAccount) -> None:
        """A producer whose acknowledged records went with their only disk ends, as Kafka has it: make another."""
        from confluent_kafka import KafkaException

        try:
            for _ in range(_RECORDS_PER_TICK):
                self._send(account)
            self._producers[account.topic].poll(0)
        except KafkaException as error:
            if error.args[0].fatal():
                self._connect(account.topic)

    def _send(self, account: TopicAccount) -> None:
        number = account.sent
        account.sent += 1

        def answered(error: "KafkaError | None", message: "Message") -> None:
            if error is None and message.offset() >= 0:  # it is not told when a retry finds the record there
                account.acknowledge(message.partition(), message.offset(), number, message.timestamp()[1])

        key, value, partition = b"%d" % (number % KEYS), b"%0*d" % (_VALUE_BYTES, number), number % _PARTITIONS
        with contextlib.suppress(BufferError):
            self._producers[account.topic].produce(account.topic, value, key, partition, on_delivery=answered)


def _confirming(account: TopicAccount, partition: int, offset: int) -> "Callable[[Future[Any]], None]":
    def confirm(future: "Future[Any]") -> None:
        if future.exception() is None:
            account.deleted(partition, offset)

    return confirm


def _read(directory: Path) -> tuple[int, list[tuple[int, int]]]:
    """Return the first segment's base offset, and the offsets and numbers of all records."""
    segments = list_segments(directory)
    try:
        return segments[0], list(_records(directory / log_file_name(base) for base in segments))
    except FileNotFoundError:  # the broker deletes or cleans it just now
        return _read(directory)


def _records(paths: Iterable[Path]) -> Iterator[tuple[int, int]]:
    for path in paths:
        segment = PlainFile(path)
        for batch in segment.batches:
            for record in segment.records(batch):
                yield record.offset, int(record.value or b"-1")
