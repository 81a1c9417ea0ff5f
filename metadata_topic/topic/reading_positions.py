"""A topic reader's positions, checked against what the brokers say of the topic. `topic_follower` has the theory."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Protocol

import structlog

from kafka_cluster.errors import KafkaClusterError
from kafka_log.topic_partition import TopicId
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.records.topic_doubt import NOT_ASKED, EpochEnds, TopicDoubt, end_of
from metadata_topic.topic.topic_consumer import ConsumerLike

log = structlog.get_logger(__name__)


class Continuity(Protocol):
    """Judges whether the topic is the one that was read before, and whole (`TopicContinuity`, `SettingsMemory`)."""

    awaits_snapshot: bool
    epochs_read: Mapping[int, int]
    """The leader epoch of the last record that was read, by partition. The reading thread replaces it, and any may
    ask: an epoch is there before its records are taken."""

    @property
    def remembered_epochs(self) -> Collection[tuple[int, int]]:
        """The partitions and leader epochs whose ends `reads` needs, besides `epochs_read`."""

    @property
    def topic_id(self) -> TopicId | None: ...

    @property
    def doubts(self) -> Mapping[TopicDoubt, str]: ...

    def reads(
        self, topic_id: TopicId | None, ends: Mapping[int, int], epoch_ends: EpochEnds = NOT_ASKED, /
    ) -> bool: ...

    def doubted(self, doubt: TopicDoubt, found: str, /) -> None: ...


class SameTopic:
    """A `Continuity` for a topic that is simply read again from its beginning after it was recreated."""

    awaits_snapshot = False
    epochs_read: Mapping[int, int] = MappingProxyType({})
    remembered_epochs: Collection[tuple[int, int]] = ()
    doubts: Mapping[TopicDoubt, str] = MappingProxyType({})
    topic_id: TopicId | None = None

    def reads(self, topic_id: TopicId | None, _ends: Mapping[int, int], _epoch_ends: EpochEnds = NOT_ASKED) -> bool:
        """Return whether this is still the topic that was read; without an id from the brokers it counts as the
        same."""
        before, self.topic_id = self.topic_id, topic_id or self.topic_id
        return None in (before, topic_id) or before == topic_id

    def doubted(self, _doubt: TopicDoubt, _found: str) -> None: ...


class ReadingPositions:
    """The next offset to read of each partition. For the reading thread.

    A topic that lost its end may have grown beyond it since, so offsets alone do not show the loss. The leader epoch of
    the last record that was read does: the leader says where that epoch ends, and what was read behind it is lost
    (KIP-320). Only an election makes a log lose its end, so it is asked when a consumer is made, when brokers tell of a
    newer epoch, and before the first record of an epoch is taken that began since the consumer was made.
    """

    def __init__(self, topic: str, timeout_s: float, end_timeout_s: float) -> None:
        """`end_timeout_s` limits requests for the topic's ends while reading continues."""
        self._topic = topic
        self._timeout_s = timeout_s
        self._end_timeout_s = end_timeout_s
        self.positions: dict[int, int] = {}
        self.start_over: Callable[[], None] = lambda: None
        """Called when the topic is another one than was read so far."""
        self.continuity: Continuity = SameTopic()
        """Gets what the brokers say of the topic as a whole."""
        self.is_caught_up = False
        """Whether every partition has reached the end that it had at the start."""
        self._goals: dict[int, int] | None = None
        self._epoch_ends: EpochEnds = NOT_ASKED
        self._assigned: Mapping[int, int] = {}
        """The leader epoch of each partition when the consumer began."""
        self._checked: dict[int, int] = {}
        """The leader epoch of each partition when the positions were found to be in its log."""
        self.counters: Counter[str] = Counter()

    def take_up(self, consumer: ConsumerLike) -> None:
        """Assign to the consumer every existing partition, each from its position on."""
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
        ends, state = self._end_offsets(consumer, self._timeout_s), consumer.state(self._topic)
        epochs = {*self.continuity.remembered_epochs, *self.continuity.epochs_read.items()}
        self._epoch_ends = consumer.ends_of_epochs(self._topic, epochs)
        self._assigned, self._checked = state.leader_epochs, dict(state.leader_epochs)
        goes_on = self.continuity.reads(state.topic_id, ends, self._epoch_ends)
        if doubts := self.continuity.doubts:
            log.error("metadata_topic_in_doubt", topic=self._topic, doubts=doubts, hint="remote-wal metadata rebuild")
        return goes_on

    def _begin_anew(self, consumer: ConsumerLike, count: int, found: str) -> None:
        log.error("metadata_topic_is_another_one", topic=self._topic, found=found, positions=self.positions)
        self.counters["started_over"] += 1
        self.start_over()
        self.positions = dict.fromkeys(range(count), 0)
        self.continuity.epochs_read = {}
        self._goals = self._end_offsets(consumer, self._timeout_s)

    def _check_positions(self, consumer: ConsumerLike, count: int) -> None:
        """Check whether the topic has, or ever had, the offsets where reading continues."""
        read = [partition for partition, position in self.positions.items() if position]
        still_there = [partition for partition in read if partition < count]
        ends = consumer.end_offsets(self._topic, still_there, self._timeout_s)
        for partition in read:
            position = self.positions[partition]
            end = end_of(partition, self._epoch_read(partition), ends, self._epoch_ends)
            if position > end:
                found = f"partition {partition} lost what it had from offset {end} on, it was read up to {position}"
                self.continuity.doubted(TopicDoubt.SHORTER, found)
                self._begin_anew(consumer, count, found)
                return
        there = [partition for partition in self.positions if partition < count]
        for partition, begin in consumer.begin_offsets(self._topic, there, self._timeout_s).items():
            position = self.positions[partition]
            if begin > position:
                if not position and self.continuity.awaits_snapshot:
                    found = f"partition {partition} begins at offset {begin}, and no snapshot was loaded yet"
                    raise MetadataTopicError("follow", self._topic, found, "object storage has to answer first")
                log.error(
                    "metadata_topic_gap", topic=self._topic, partition=partition, position=position, begin_offset=begin,
                    hint="the topic's retention cut records that neither this agent nor its snapshot had read",
                )  # fmt: skip
                found = f"partition {partition} begins at offset {begin}, it was read up to {position}"
                self.continuity.doubted(TopicDoubt.GAP, found)
                self.counters["gaps"] += 1
                self.counters["gap_records"] += begin - position
                self.positions[partition] = begin

    def ends_of_the_same(self, consumer: ConsumerLike) -> dict[int, int] | None:
        """Return the topic's end offsets by partition; None when they are unknown.

        Raises MetadataTopicError, so that the topic is assigned again, if it is another one, or lost its end.
        """
        ends = self.ends_if_told(consumer)
        if ends is None:
            return None
        try:
            topic_id, epochs = consumer.state(self._topic)
            newer = {partition for partition, epoch in epochs.items() if epoch > self._checked.get(partition, -1)}
            lost = self._lost_of_epochs(consumer, newer)
        except KafkaClusterError as error:
            log.info("metadata_topic_id_not_told", topic=self._topic, error=str(error))
            return None
        self._checked.update(epochs)
        is_shorter = any(end < self.positions.get(partition, 0) for partition, end in ends.items())
        if lost is not None or is_shorter or topic_id not in (None, self.continuity.topic_id):
            raise MetadataTopicError("follow", self._topic, "it is another topic than was read so far, or lost its end")
        return ends

    def is_new_epoch(self, partition: int, epoch: int) -> bool:
        """Whether the next record has another leader epoch than the one before it."""
        return epoch != self._epoch_read(partition)

    def reads_epoch(self, consumer: ConsumerLike, partition: int, epoch: int) -> None:
        """Check, at a record of a new leader epoch, that nothing read before it is lost.

        Raises MetadataTopicError, so that the topic is assigned again, if what was read before it is lost.
        """
        if epoch > self._assigned.get(partition, -1):
            lost = self._lost_of_epochs(consumer, [partition])
            if lost is not None:
                raise MetadataTopicError("follow", self._topic, lost)
        self.continuity.epochs_read = {**self.continuity.epochs_read, partition: epoch}

    def _epoch_read(self, partition: int) -> int | None:
        return self.continuity.epochs_read.get(partition)

    def _lost_of_epochs(self, consumer: ConsumerLike, partitions: Collection[int]) -> str | None:
        """Return what the topic has lost of what was read of these partitions; None: nothing.

        Raises KafkaClusterError.
        """
        asked = {(one, epoch) for one in partitions if (epoch := self._epoch_read(one)) is not None}
        for (partition, epoch), end in (consumer.ends_of_epochs(self._topic, asked) if asked else {}).items():
            if end < self.positions.get(partition, 0):
                return f"partition {partition} lost what it had of leader epoch {epoch} from offset {end} on"
        return None

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
        """How many records remain up to the ends that the topic had at the start; 0 while these are unknown."""
        return sum(max(goal - self.positions.get(partition, 0), 0) for partition, goal in (self._goals or {}).items())

    def moved(self, ends: Mapping[int, int]) -> None:
        """Record by partition the next offset to read, after records were processed."""
        self.positions.update(ends)
        if ends:
            self._look_whether_caught_up()

    def _look_whether_caught_up(self) -> None:
        goals = self._goals
        # A topic that is being created may have got more partitions between two questions; they are assigned later.
        if goals is not None and all(self.positions.get(partition, 0) >= goal for partition, goal in goals.items()):
            self.is_caught_up = True
