"""Following a topic from its beginning, or from where a snapshot ends: all partitions, no group, one thread.

Theory. The follower owns where it stands (`positions`: the offset to be read next, per partition). Batches
are handed to `take`, in order per partition, and the positions move when `take` returns; when the consumer
fails it is made anew and goes on from there. It is caught up when every partition has reached the end that it
had when the follower began.

Caught up once is not up to date now: `read_to_end` waits for the latter (`metadata_topic.topic.read_barrier`). A
consumer that reads nothing more, though there is more, is made anew (`metadata_topic.topic.stall_watch`).

Where it was told to begin may be gone: retention has cut the topic beyond it, which is a gap (counted, and
logged with its size), or the topic ends before it or has another id, so that it is another topic, made anew, or one
that lost its tail. Then all is read from the beginning. What follows from it is
`metadata_topic.store.topic_continuity`'s.

It is built to cost next to nothing when idle: brokers hold a fetch for up to a second, and batches are
gathered for as long. What is read is therefore up to about two seconds old.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import structlog

from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.store.topic_continuity import TopicContinuity, TopicDoubt
from metadata_topic.topic.client_config import LIBRDKAFKA_LOGGER, ConfluentValue, KafkaClientConfig
from metadata_topic.topic.cluster_descriptions import ClusterDescriptions
from metadata_topic.topic.read_barrier import ReadBarriers
from metadata_topic.topic.stall_watch import StallWatch
from metadata_topic.topic.topic_consumer import ConsumerFactory, ConsumerLike, MessageLike, confluent_reader

log = structlog.get_logger(__name__)


class TopicRecord(NamedTuple):
    """One record as it was read."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class FollowSettings:
    """How eagerly to read."""

    batch_records: int = 500
    batch_wait_ms: int = 1000
    fetch_wait_ms: int = 1000
    fetch_min_bytes: int = 64 * 1024
    retry_pause_ms: int = 1000
    request_timeout_ms: int = 10_000
    end_offset_timeout_ms: int = 3000
    """For questions while reading goes on: a partition whose broker just died has no leader for seconds, and all others
    are not read meanwhile."""
    new_partitions_check_ms: int = 60_000
    stall_check_ms: int = 20_000
    """A consumer that stands still between two looks, short of where the topic ended at the first, is made anew."""
    absence_check_ms: int | None = None
    """For a topic that need not exist: how often to look whether it does. None: its absence is a fault."""


DEFAULT_SETTINGS = FollowSettings()


class TopicFollower:
    """Feeds `take` with every record of a topic. See the module's theory."""

    def __init__(
        self,
        client_config: KafkaClientConfig,
        topic: str,
        take: Callable[[Sequence[TopicRecord]], None],
        settings: FollowSettings = DEFAULT_SETTINGS,
        rack: str | None = None,
        consumer_factory: ConsumerFactory | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`take` runs on the follower's thread and must not raise. `rack` lets it read from a broker in its
        zone. Without a factory, real consumers are made.
        """
        self._client_config = client_config
        self._topic = topic
        self._take = take
        self._settings = settings
        self._rack = rack
        descriptions = ClusterDescriptions(client_config, f"follow-{topic}", settings.request_timeout_ms / 1000)
        self._consumer_factory = consumer_factory or partial(confluent_reader, descriptions=descriptions)
        self._clock = clock

        self._stop = threading.Event()
        self._caught_up = False
        self._settled = threading.Event()  # Caught up, dead, or without a topic that need not be there.
        self._is_there: bool | None = None
        self._positions: dict[int, int] = {}
        self._prepare: Callable[[], Mapping[int, int]] | None = None
        self._start_over: Callable[[], None] | None = None
        self._continuity: TopicContinuity | None = None
        self._goals: dict[int, int] | None = None
        self._barriers = ReadBarriers()
        self._counters: Counter[str] = Counter()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"follow-{topic}", daemon=True)

    def start(
        self,
        prepare: Callable[[], Mapping[int, int]] | None = None,
        start_over: Callable[[], None] | None = None,
        continuity: TopicContinuity | None = None,
    ) -> None:
        """Begin reading.

        `prepare` is called once on the follower's thread and returns where to begin: the next offset per
        partition, 0 for those that it leaves out. It must not raise. `start_over` is called on that thread
        when the topic turns out to be another one than was read so far. `continuity` is told what the brokers say of
        the topic as a whole, before anything is read of it, and before `read_to_end` is answered.
        """
        self._prepare = prepare
        self._start_over = start_over
        self._continuity = continuity
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

        False when time ran out, or the brokers do not tell where the topic ends.
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
        """`records`, `batches`, `errors`, `consumer_restarts`, `stalls`; `gaps` and `gap_records` that retention cut
        away unread, `started_over` when the topic was another one.
        """
        return dict(self._counters)

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

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
        finally:
            self._barriers.give_up()

    def _follow(self) -> None:
        """Read until stopped, or until more partitions may be there."""
        consumer = self._consumer_factory(self._config())
        try:
            if not self._find_topic(consumer):
                return
            self._take_up(consumer)
            checks = max(1, self._settings.new_partitions_check_ms // self._settings.batch_wait_ms)
            idle = 0
            stall_watch = StallWatch(self._settings.stall_check_ms / 1000, self._clock())
            while not self._stop.is_set():
                messages = consumer.consume(self._settings.batch_records, self._batch_wait_s)
                self._hand_over(messages)
                self._barriers.serve(lambda: self._ends_of_the_same(consumer), self._positions)
                # A full batch says that more was waiting: then a partition may have to wait for its turn.
                if len(messages) < self._settings.batch_records and stall_watch.is_due(now_s := self._clock()):
                    self._look_for_stalls(consumer, stall_watch, now_s)
                idle += 1
                if idle >= checks:
                    idle = 0
                    if consumer.partition_count(self._topic, self._timeout_s) > len(self._positions):
                        self._take_up(consumer)
                    self._ends_of_the_same(consumer)
        finally:
            consumer.close()

    def _look_for_stalls(self, consumer: ConsumerLike, watch: StallWatch, now_s: float) -> None:
        """Raises MetadataTopicError when the consumer is to be made anew."""
        stalled = watch.stalled(self._positions, self._end_offsets_if_told(consumer) or {}, now_s)
        if stalled is not None:
            self._counters["stalls"] += 1
            raise MetadataTopicError(
                "follow", f"{self._topic}-{stalled}", f"nothing was read beyond offset {self._positions[stalled]}"
            )

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
            self._goals = self._end_offsets(consumer, self._timeout_s)
        for partition in range(count):
            self._positions.setdefault(partition, 0)
        if self._goes_on(consumer):
            self._check_positions(consumer, count)
        else:
            self._begin_anew(consumer, count, "its id is another one")
        consumer.assign(self._topic, self._positions)
        self._check_caught_up()

    def _goes_on(self, consumer: ConsumerLike) -> bool:
        """False when it is another topic than the one that was read so far."""
        if self._continuity is None:
            return True
        ends = self._end_offsets(consumer, self._timeout_s)
        goes_on = self._continuity.reads(consumer.topic_id(self._topic), ends)
        if doubts := self._continuity.doubts:
            log.error("metadata_topic_in_doubt", topic=self._topic, doubts=doubts, hint="remote-wal metadata rebuild")
        return goes_on

    def _begin_anew(self, consumer: ConsumerLike, count: int, found: str) -> None:
        log.error("metadata_topic_is_another_one", topic=self._topic, found=found, positions=self._positions)
        self._counters["started_over"] += 1
        if self._start_over is not None:
            self._start_over()
        self._positions = dict.fromkeys(range(count), 0)
        if not self._caught_up:
            self._goals = self._end_offsets(consumer, self._timeout_s)

    def _ends_of_the_same(self, consumer: ConsumerLike) -> dict[int, int] | None:
        """The end offsets; None when they are not told. Raises MetadataTopicError, so that the topic is taken up anew,
        unless it is the one that is read.
        """
        ends = self._end_offsets_if_told(consumer)
        if ends is None or self._continuity is None:
            return ends
        try:
            topic_id = consumer.topic_id(self._topic)
        except MetadataTopicError as error:
            log.info("metadata_topic_id_not_told", topic=self._topic, error=str(error))
            return None
        is_shorter = any(end < self._positions.get(partition, 0) for partition, end in ends.items())
        if is_shorter or topic_id not in (None, self._continuity.topic_id):
            raise MetadataTopicError("follow", self._topic, "it is another topic than was read so far, or lost its end")
        return ends

    def _end_offsets(self, consumer: ConsumerLike, timeout_s: float) -> dict[int, int]:
        """Of every partition there is now, by what the brokers say now."""
        count = consumer.partition_count(self._topic, timeout_s)
        if count == 0:
            raise MetadataTopicError("follow", self._topic, "the topic is gone", "an agent makes it when it starts")
        return consumer.end_offsets(self._topic, range(count), timeout_s)

    def _end_offsets_if_told(self, consumer: ConsumerLike) -> dict[int, int] | None:
        from confluent_kafka import KafkaException

        try:
            return self._end_offsets(consumer, self._settings.end_offset_timeout_ms / 1000)
        except (KafkaException, MetadataTopicError) as error:
            log.info("metadata_topic_end_not_told", topic=self._topic, error=str(error))
            return None

    def _check_positions(self, consumer: ConsumerLike, count: int) -> None:
        """Whether the topic still has, or ever had, the offsets where reading is to go on."""
        read = [partition for partition, position in self._positions.items() if position]
        still_there = [partition for partition in read if partition < count]
        ends = consumer.end_offsets(self._topic, still_there, self._timeout_s)
        for partition in read:
            position, end = self._positions[partition], ends.get(partition, 0)
            if position > end:
                found = f"partition {partition} ends at offset {end}, it was read up to {position}"
                if self._continuity is not None:
                    self._continuity.doubted(TopicDoubt.SHORTER, found)
                self._begin_anew(consumer, count, found)
                return
        for partition, begin in consumer.begin_offsets(self._topic, read, self._timeout_s).items():
            position = self._positions[partition]
            if begin > position:
                log.error(
                    "metadata_topic_gap", topic=self._topic, partition=partition, position=position, begin_offset=begin,
                    hint="the topic's retention is shorter than the time for which nobody read it",
                )  # fmt: skip
                if self._continuity is not None:
                    found = f"partition {partition} begins at offset {begin}, it was read up to {position}"
                    self._continuity.doubted(TopicDoubt.GAP, found)
                self._counters["gaps"] += 1
                self._counters["gap_records"] += begin - position
                self._positions[partition] = begin

    def _hand_over(self, messages: list[MessageLike]) -> None:
        records = []
        ends: dict[int, int] = {}
        for message in messages:
            error = message.error()
            if error is None:
                if message.offset() < self._positions.get(message.partition(), 0):
                    # librdkafka goes back by itself where the topic was cut off, or made anew.
                    raise MetadataTopicError("follow", self._topic, f"it went back to offset {message.offset()}")
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
        # A topic that is just being made may have got more partitions between two questions; they are taken up later.
        if goals is not None and all(self._positions.get(partition, 0) >= goal for partition, goal in goals.items()):
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
