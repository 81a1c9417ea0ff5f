"""Following a topic from its beginning, or from where a snapshot ends: all partitions, no group, one thread.

Theory. The follower owns where it stands (`positions`: the offset to be read next, per partition). Batches
are handed to `take`, in order per partition, and the positions move when `take` returns; when the consumer
fails it is made anew and goes on from there. It is caught up when every partition has reached the end that it
had when the follower began.

Caught up once is not up to date now: `read_to_end` waits for the latter (`metadata_topic.read_barrier`).

Where it was told to begin may be gone: retention has cut the topic beyond it, which is a gap (counted, and
logged with its size), or the topic ends before it, so that it is another topic, made anew. Then whoever reads
must forget what he took for its content, and all is read from the beginning.

It is built to cost next to nothing when idle: brokers hold a fetch for up to a second, and batches are
gathered for as long. What is read is therefore up to about two seconds old.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import structlog

from metadata_topic.client_config import LIBRDKAFKA_LOGGER, ConfluentValue, KafkaClientConfig
from metadata_topic.errors import MetadataTopicError
from metadata_topic.read_barrier import ReadBarriers

log = structlog.get_logger(__name__)


class TopicRecord(NamedTuple):
    """One record as it was read."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class MessageLike(Protocol):
    """What is used of confluent_kafka.Message."""

    def error(self) -> Any: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...


class ConsumerLike(Protocol):
    """What is used of a consumer; `confluent_reader` adapts confluent_kafka.Consumer to it."""

    def partition_count(self, topic: str, timeout_s: float) -> int:
        """0 when the topic does not exist, and only then."""

    def begin_offset(self, topic: str, partition: int, timeout_s: float) -> int: ...

    def end_offset(self, topic: str, partition: int, timeout_s: float) -> int: ...

    def assign(self, topic: str, positions: dict[int, int]) -> None:
        """Read these partitions from these offsets on."""

    def consume(self, num_messages: int, timeout: float) -> list[MessageLike]: ...

    def close(self) -> None: ...


ConsumerFactory = Callable[[dict[str, ConfluentValue | logging.Logger]], ConsumerLike]


@dataclass(frozen=True, slots=True)
class FollowSettings:
    """How eagerly to read."""

    batch_records: int = 500
    batch_wait_ms: int = 1000
    fetch_wait_ms: int = 1000
    fetch_min_bytes: int = 64 * 1024
    retry_pause_ms: int = 1000
    request_timeout_ms: int = 10_000
    new_partitions_check_ms: int = 60_000
    absence_check_ms: int | None = None
    """For a topic that need not exist: how often to look whether it does. None: its absence is a fault."""


DEFAULT_SETTINGS = FollowSettings()


class _ConfluentReader:
    """confluent_kafka.Consumer, assigned by hand."""

    def __init__(self, config: dict[str, ConfluentValue | logging.Logger]) -> None:
        from confluent_kafka import Consumer

        self._consumer = Consumer(config)

    def partition_count(self, topic: str, timeout_s: float) -> int:
        from confluent_kafka import KafkaError, KafkaException

        metadata = self._consumer.list_topics(topic, timeout=timeout_s).topics.get(topic)
        if metadata is None or (
            metadata.error is not None and metadata.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        ):
            return 0
        if metadata.error is not None:
            raise KafkaException(metadata.error)
        return len(metadata.partitions)

    def begin_offset(self, topic: str, partition: int, timeout_s: float) -> int:
        from confluent_kafka import TopicPartition

        low, _high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout_s)
        return int(low)

    def end_offset(self, topic: str, partition: int, timeout_s: float) -> int:
        from confluent_kafka import TopicPartition

        # Transaction markers and compaction leave holes, but never at the end offset's own place.
        _low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout_s)
        return int(high)

    def assign(self, topic: str, positions: dict[int, int]) -> None:
        from confluent_kafka import TopicPartition

        self._consumer.assign([TopicPartition(topic, *position) for position in positions.items()])

    def consume(self, num_messages: int, timeout: float) -> list[MessageLike]:
        return cast(list[MessageLike], self._consumer.consume(num_messages, timeout))

    def close(self) -> None:
        self._consumer.close()


def confluent_reader(config: dict[str, ConfluentValue | logging.Logger]) -> ConsumerLike:
    """The real consumer."""
    return _ConfluentReader(config)


class TopicFollower:
    """Feeds `take` with every record of a topic. See the module's theory."""

    def __init__(
        self,
        client_config: KafkaClientConfig,
        topic: str,
        take: Callable[[Sequence[TopicRecord]], None],
        settings: FollowSettings = DEFAULT_SETTINGS,
        rack: str | None = None,
        consumer_factory: ConsumerFactory = confluent_reader,
    ) -> None:
        """`take` runs on the follower's thread and must not raise. `rack` lets it read from a broker in its
        zone.
        """
        self._client_config = client_config
        self._topic = topic
        self._take = take
        self._settings = settings
        self._rack = rack
        self._consumer_factory = consumer_factory

        self._stop = threading.Event()
        self._caught_up = False
        self._settled = threading.Event()  # Caught up, dead, or without a topic that need not be there.
        self._is_there: bool | None = None
        self._positions: dict[int, int] = {}
        self._prepare: Callable[[], Mapping[int, int]] | None = None
        self._start_over: Callable[[], None] | None = None
        self._goals: dict[int, int] | None = None
        self._barriers = ReadBarriers()
        self._counters: Counter[str] = Counter()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"follow-{topic}", daemon=True)

    def start(
        self,
        prepare: Callable[[], Mapping[int, int]] | None = None,
        start_over: Callable[[], None] | None = None,
    ) -> None:
        """Begin reading.

        `prepare` is called once on the follower's thread and returns where to begin: the next offset per
        partition, 0 for those that it leaves out. It must not raise. `start_over` is called on that thread
        when the topic turns out to be another one than was read so far.
        """
        self._prepare = prepare
        self._start_over = start_over
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Caught up once, and still reading."""
        return self._caught_up and self._failure is None

    @property
    def is_there(self) -> bool | None:
        """Whether the topic exists; None until a broker has said so."""
        return self._is_there

    def wait_until_ready(self, timeout_s: float) -> bool:
        """False when the time ran out first, the thread died, or a topic that need not be there is not."""
        return self._settled.wait(timeout_s) and self.ready

    def read_to_end(self, timeout_s: float) -> bool:
        """Blocks until `take` was given all that was in the topic when this was called.

        False when time ran out, the brokers do not tell where the topic ends, or reading has ended.
        """
        return self._barriers.wait(timeout_s)

    @property
    def failure(self) -> BaseException | None:
        """What ended the thread for good: a defect, as everything else is tried again."""
        return self._failure

    @property
    def positions(self) -> dict[int, int]:
        """The offset to be read next, per partition."""
        return dict(self._positions)

    @property
    def counters(self) -> dict[str, int]:
        """`records`, `batches`, `errors`, `consumer_restarts`; `gaps` and `gap_records` that retention cut
        away unread, `started_over` when the topic was another one.
        """
        return dict(self._counters)

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._barriers.close()

    def _run(self) -> None:
        from confluent_kafka import KafkaException

        try:
            if self._prepare is not None:
                self._positions.update(self._prepare())
            while not self._stop.is_set():
                try:
                    self._follow()
                except (KafkaException, MetadataTopicError) as error:
                    self._counters["consumer_restarts"] += 1
                    log.warning("metadata_topic_read_failed", topic=self._topic, error=str(error))
                    self._stop.wait(self._settings.retry_pause_ms / 1000)
        except BaseException as failure:
            self._failure = failure
            self._settled.set()
            log.exception("metadata_topic_follower_died", topic=self._topic)

    def _follow(self) -> None:
        """Read until stopped, or until more partitions may be there."""
        consumer = self._consumer_factory(self._config())
        try:
            if not self._find_topic(consumer):
                return
            self._take_up(consumer)
            checks = max(1, self._settings.new_partitions_check_ms // self._settings.batch_wait_ms)
            idle = 0
            while not self._stop.is_set():
                messages = consumer.consume(self._settings.batch_records, self._batch_wait_s)
                self._hand_over(messages)
                self._barriers.serve(lambda: self._end_offsets_if_told(consumer), self._positions)
                idle += 1
                if idle >= checks:
                    idle = 0
                    if consumer.partition_count(self._topic, self._timeout_s) > len(self._positions):
                        self._take_up(consumer)
        finally:
            consumer.close()

    def _find_topic(self, consumer: ConsumerLike) -> bool:
        """Wait for the topic if it need not be there; False when stopped meanwhile. Raises MetadataTopicError."""
        while not self._stop.is_set():
            if consumer.partition_count(self._topic, self._timeout_s) > 0:
                if self._is_there is False:
                    self._settled.clear()
                self._is_there = True
                return True
            self._is_there = False
            if self._settings.absence_check_ms is None:
                raise MetadataTopicError(
                    "follow", self._topic, "the topic does not exist", "an agent makes it when it starts"
                )
            self._settled.set()
            self._stop.wait(self._settings.absence_check_ms / 1000)
        return False

    def _take_up(self, consumer: ConsumerLike) -> None:
        """Assign every partition there is, each from where we stand."""
        count = consumer.partition_count(self._topic, self._timeout_s)
        if self._goals is None:
            self._goals = self._end_offsets(consumer)
        for partition in range(count):
            self._positions.setdefault(partition, 0)
        self._check_positions(consumer, count)
        consumer.assign(self._topic, self._positions)
        self._check_caught_up()

    def _end_offsets(self, consumer: ConsumerLike) -> dict[int, int]:
        """Of every partition there is now, by what the brokers say now."""
        count = consumer.partition_count(self._topic, self._timeout_s)
        if count == 0:
            raise MetadataTopicError("follow", self._topic, "the topic is gone", "an agent makes it when it starts")
        return {p: consumer.end_offset(self._topic, p, self._timeout_s) for p in range(count)}

    def _end_offsets_if_told(self, consumer: ConsumerLike) -> dict[int, int] | None:
        from confluent_kafka import KafkaException

        try:
            return self._end_offsets(consumer)
        except (KafkaException, MetadataTopicError) as error:
            log.info("metadata_topic_end_not_told", topic=self._topic, error=str(error))
            return None

    def _check_positions(self, consumer: ConsumerLike, count: int) -> None:
        """Whether the topic still has, or ever had, the offsets where reading is to go on."""
        for partition, position in self._positions.items():
            if position == 0:
                continue
            end = consumer.end_offset(self._topic, partition, self._timeout_s) if partition < count else 0
            if position > end:
                log.error("metadata_topic_is_another_one", topic=self._topic, partition=partition,
                          position=position, end_offset=end)  # fmt: skip
                self._counters["started_over"] += 1
                if self._start_over is not None:
                    self._start_over()
                self._positions = dict.fromkeys(range(count), 0)
                return
        for partition, position in self._positions.items():
            begin = consumer.begin_offset(self._topic, partition, self._timeout_s) if position else 0
            if begin > position:
                log.error(
                    "metadata_topic_gap", topic=self._topic, partition=partition, position=position, begin_offset=begin,
                    hint="the topic's retention is shorter than the time for which nobody read it",
                )  # fmt: skip
                self._counters["gaps"] += 1
                self._counters["gap_records"] += begin - position
                self._positions[partition] = begin

    def _hand_over(self, messages: list[MessageLike]) -> None:
        records = []
        ends: dict[int, int] = {}
        for message in messages:
            error = message.error()
            if error is None:
                records.append(TopicRecord(message.partition(), message.offset(), message.key(), message.value()))
                ends[message.partition()] = message.offset() + 1
            elif error.name() == "_PARTITION_EOF":
                ends[message.partition()] = message.offset()
            else:
                self._counters["errors"] += 1
                log.warning("metadata_topic_error", topic=self._topic, error=str(error))
                if error.fatal():
                    raise MetadataTopicError("follow", self._topic, str(error))
        if records:
            self._counters["records"] += len(records)
            self._counters["batches"] += 1
            self._take(records)
        self._positions.update(ends)
        if ends:
            self._check_caught_up()

    def _check_caught_up(self) -> None:
        goals = self._goals
        if goals is not None and all(self._positions[partition] >= goal for partition, goal in goals.items()):
            self._caught_up = True
            self._settled.set()

    @property
    def _batch_wait_s(self) -> float:
        # Whoever waits until it is ready should not wait for the last batch to fill as well.
        wait_s = self._settings.batch_wait_ms / 1000
        return wait_s if self._caught_up else min(wait_s, 0.1)

    @property
    def _timeout_s(self) -> float:
        return self._settings.request_timeout_ms / 1000

    def _config(self) -> dict[str, ConfluentValue | logging.Logger]:
        overrides: dict[str, ConfluentValue] = {"client_rack": self._rack} if self._rack else {}
        return {
            **self._client_config.for_confluent(
                # librdkafka asks for a group, though nothing is ever committed to it.
                group_id=f"remote-wal-follower-{self._topic}",
                enable_auto_commit=False,
                enable_auto_offset_store=False,
                enable_partition_eof=True,
                auto_offset_reset="earliest",
                fetch_wait_max_ms=self._settings.fetch_wait_ms,
                fetch_min_bytes=self._settings.fetch_min_bytes,
                queued_max_messages_kbytes=16 * 1024,
                **overrides,
            ),
            "logger": logging.getLogger(LIBRDKAFKA_LOGGER),
        }
