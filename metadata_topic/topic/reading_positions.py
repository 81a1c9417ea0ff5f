"""A topic reader's positions, checked against what the brokers say of the topic. `topic_follower` has the theory."""

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import structlog

from kafka_cluster.errors import KafkaClusterError
from kafka_log.topic_partition import TopicId
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.records.topic_doubt import TopicDoubt
from metadata_topic.topic.topic_consumer import ConsumerLike

log = structlog.get_logger(__name__)


class Continuity(Protocol):
    """Judges whether the topic is the one that was read before, and whole (`TopicContinuity`, `SettingsMemory`)."""

    awaits_snapshot: bool

    @property
    def topic_id(self) -> TopicId | None: ...

    @property
    def doubts(self) -> Mapping[TopicDoubt, str]: ...

    def reads(self, topic_id: TopicId | None, ends: Mapping[int, int], /) -> bool: ...

    def doubted(self, doubt: TopicDoubt, found: str, /) -> None: ...


class SameTopic:
    """The continuity of a topic that is read from its beginning whenever it is another one."""

    awaits_snapshot = False
    doubts: Mapping[TopicDoubt, str] = MappingProxyType({})
    topic_id: TopicId | None = None

    def reads(self, topic_id: TopicId | None, _ends: Mapping[int, int]) -> bool:
        """Return whether this is still the topic that was read; brokers that do not tell its id say nothing."""
        before, self.topic_id = self.topic_id, topic_id or self.topic_id
        return None in (before, topic_id) or before == topic_id

    def doubted(self, _doubt: TopicDoubt, _found: str) -> None: ...


class ReadingPositions:
    """The next offset to read of each partition. For the reading thread."""

    def __init__(self, topic: str, timeout_s: float, end_timeout_s: float) -> None:
        """`end_timeout_s` is for questions while reading continues."""
        self._topic = topic
        self._timeout_s = timeout_s
        self._end_timeout_s = end_timeout_s
        self.positions: dict[int, int] = {}
        self.start_over: Callable[[], None] = lambda: None
        """Called when the topic is another one than was read so far."""
        self.continuity: Continuity | None = None
        """Gets what the brokers say of the topic as a whole."""
        self.is_caught_up = False
        """Whether every partition has reached the end that it had at the start."""
        self._goals: dict[int, int] | None = None
        self.counters: Counter[str] = Counter()

    def take_up(self, consumer: ConsumerLike) -> None:
        """Assign every existing partition, each from its position."""
        count = consumer.partition_count(self._topic, self._timeout_s)
        if self._goals is None:
            self._goals = self._end_offsets(consumer, self._timeout_s)
        for partition in range(count):
            self.positions.setdefault(partition, 0)
        if self._goes_on(consumer):
            self._check_positions(consumer, count)
        else:
            self._begin_anew(consumer, count, "its id is another one")
        consumer.assign(self._topic, self.positions)
        self._look_whether_caught_up()

    def _goes_on(self, consumer: ConsumerLike) -> bool:
        """Whether the topic is the one that was read so far."""
        if self.continuity is None:
            return True
        ends = self._end_offsets(consumer, self._timeout_s)
        goes_on = self.continuity.reads(consumer.topic_id(self._topic), ends)
        if doubts := self.continuity.doubts:
            log.error("metadata_topic_in_doubt", topic=self._topic, doubts=doubts, hint="remote-wal metadata rebuild")
        return goes_on

    def _begin_anew(self, consumer: ConsumerLike, count: int, found: str) -> None:
        log.error("metadata_topic_is_another_one", topic=self._topic, found=found, positions=self.positions)
        self.counters["started_over"] += 1
        self.start_over()
        self.positions = dict.fromkeys(range(count), 0)
        self._goals = self._end_offsets(consumer, self._timeout_s)

    def _check_positions(self, consumer: ConsumerLike, count: int) -> None:
        """Check whether the topic has, or ever had, the offsets where reading continues."""
        read = [partition for partition, position in self.positions.items() if position]
        still_there = [partition for partition in read if partition < count]
        ends = consumer.end_offsets(self._topic, still_there, self._timeout_s)
        for partition in read:
            position, end = self.positions[partition], ends.get(partition, 0)
            if position > end:
                found = f"partition {partition} ends at offset {end}, it was read up to {position}"
                if self.continuity is not None:
                    self.continuity.doubted(TopicDoubt.SHORTER, found)
                self._begin_anew(consumer, count, found)
                return
        there = [partition for partition in self.positions if partition < count]
        for partition, begin in consumer.begin_offsets(self._topic, there, self._timeout_s).items():
            position = self.positions[partition]
            if begin > position:
                if not position and self.continuity is not None and self.continuity.awaits_snapshot:
                    found = f"partition {partition} begins at offset {begin}, and no snapshot was loaded yet"
                    raise MetadataTopicError("follow", self._topic, found, "object storage has to answer first")
                log.error(
                    "metadata_topic_gap", topic=self._topic, partition=partition, position=position, begin_offset=begin,
                    hint="the topic's retention cut records that neither this agent nor its snapshot had read",
                )  # fmt: skip
                if self.continuity is not None:
                    found = f"partition {partition} begins at offset {begin}, it was read up to {position}"
                    self.continuity.doubted(TopicDoubt.GAP, found)
                self.counters["gaps"] += 1
                self.counters["gap_records"] += begin - position
                self.positions[partition] = begin

    def ends_of_the_same(self, consumer: ConsumerLike) -> dict[int, int] | None:
        """Return the end offsets of the topic that is read; None when they are unknown.

        Raises MetadataTopicError, so that the topic is assigned again, if it is another one, or lost its end.
        """
        ends = self.ends_if_told(consumer)
        if ends is None or self.continuity is None:
            return ends
        try:
            topic_id = consumer.topic_id(self._topic)
        except KafkaClusterError as error:
            log.info("metadata_topic_id_not_told", topic=self._topic, error=str(error))
            return None
        is_shorter = any(end < self.positions.get(partition, 0) for partition, end in ends.items())
        if is_shorter or topic_id not in (None, self.continuity.topic_id):
            raise MetadataTopicError("follow", self._topic, "it is another topic than was read so far, or lost its end")
        return ends

    def ends_if_told(self, consumer: ConsumerLike) -> dict[int, int] | None:
        from confluent_kafka import KafkaException

        try:
            return self._end_offsets(consumer, self._end_timeout_s)
        except (KafkaException, KafkaClusterError) as error:
            log.info("metadata_topic_end_not_told", topic=self._topic, error=str(error))
            return None

    def _end_offsets(self, consumer: ConsumerLike, timeout_s: float) -> dict[int, int]:
        """Return the end of every partition there is now, by the brokers' present answer."""
        count = consumer.partition_count(self._topic, timeout_s)
        if count == 0:
            raise MetadataTopicError("follow", self._topic, "the topic is gone", "an agent makes it when it starts")
        return consumer.end_offsets(self._topic, range(count), timeout_s)

    @property
    def left(self) -> int:
        """How many offsets are missing up to the ends of the start; 0 while these are unknown."""
        return sum(max(goal - self.positions.get(partition, 0), 0) for partition, goal in (self._goals or {}).items())

    def moved(self, ends: Mapping[int, int]) -> None:
        """Record that everything below these offsets was taken, by partition."""
        self.positions.update(ends)
        if ends:
            self._look_whether_caught_up()

    def _look_whether_caught_up(self) -> None:
        goals = self._goals
        # A topic that is being created may have got more partitions between two questions; they are assigned later.
        if goals is not None and all(self.positions.get(partition, 0) >= goal for partition, goal in goals.items()):
            self.is_caught_up = True
