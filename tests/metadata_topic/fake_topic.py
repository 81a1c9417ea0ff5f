"""A topic in memory, read as `topic_consumer.ConsumerLike` reads."""

import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from kafka_log.topic_partition import TopicId
from metadata_topic.topic.topic_consumer import MessageLike, TopicState


@dataclass
class FakeMessage:
    _partition: int
    _offset: int
    _key: bytes | None = None
    _value: bytes | None = None
    _error: KafkaError | None = None
    _epoch: int = 0

    def error(self) -> KafkaError | None:
        return self._error

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def leader_epoch(self) -> int:
        return self._epoch


class FakeTopic:
    def __init__(self, partitions: int = 1) -> None:
        self.changed = threading.Condition()
        self.partitions: list[list[tuple[bytes | None, bytes | None]]] = [[] for _ in range(partitions)]
        self.log_starts: dict[int, int] = {}
        self.fail_next = 0
        self.ends_are_told = True
        self.ends_asked = 0
        self.stalled: set[int] = set()
        """Partitions of which the consumers that there are read nothing more; one made later does."""
        self.topic_id: TopicId | None = TopicId(b"t" * 16)
        self.epochs_asked = 0
        self.epochs: dict[int, dict[int, int]] = {}
        """By partition, the leader epochs after the first one, 0, each with the offset where it begins."""
        self.consumers = 0
        self.reads: list[tuple[int, int]] = []

    def append(self, key: bytes | None, value: bytes | None, partition: int = 0) -> None:
        with self.changed:
            self.partitions[partition].append((key, value))
            self.changed.notify_all()

    def elect(self, end: int, partition: int = 0) -> None:
        """Elect a replica that has no more than this of the partition."""
        with self.changed:
            del self.partitions[partition][end:]
            epochs = self.epochs.setdefault(partition, {})
            next_epoch = max(epochs, default=0) + 1
            epochs |= {epoch: end for epoch, begin in epochs.items() if begin > end}
            epochs[next_epoch] = end

    def epoch_of(self, partition: int, offset: int) -> int:
        return max((epoch for epoch, begin in self.epochs.get(partition, {}).items() if begin <= offset), default=0)

    def consumer(self, config: object) -> "FakeConsumer":
        self.consumers += 1
        return FakeConsumer(self)


class FakeConsumer:
    def __init__(self, topic: FakeTopic) -> None:
        self._topic = topic
        self._positions: dict[int, int] = {}
        self._ends_told: dict[int, int] = {}

    def partition_count(self, topic: str, timeout_s: float) -> int:
        return len(self._topic.partitions)

    def state(self, topic: str) -> TopicState:
        epochs = {partition: max(epochs) for partition, epochs in self._topic.epochs.items()}
        return TopicState(self._topic.topic_id, epochs)

    def ends_of_epochs(self, topic: str, asked: Collection[tuple[int, int]]) -> dict[tuple[int, int], int]:
        self._topic.epochs_asked += len(asked)
        return {
            (partition, epoch): min(
                (begin for one, begin in self._topic.epochs.get(partition, {}).items() if one > epoch),
                default=len(self._topic.partitions[partition]),
            )
            for partition, epoch in asked
            if partition < len(self._topic.partitions)
        }

    def begin_offsets(self, topic: str, partitions: Iterable[int], timeout_s: float) -> dict[int, int]:
        return {partition: self._topic.log_starts.get(partition, 0) for partition in partitions}

    def end_offsets(self, topic: str, partitions: Iterable[int], timeout_s: float) -> dict[int, int]:
        self._topic.ends_asked += 1
        if not self._topic.ends_are_told:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return {partition: len(self._topic.partitions[partition]) for partition in partitions}

    def assign(self, topic: str, positions: dict[int, int]) -> None:
        self._positions = dict(positions)

    def consume(self, num_messages: int, timeout: float) -> list[MessageLike]:
        with self._topic.changed:
            messages = self._read(num_messages)
            if not messages:
                self._topic.changed.wait(timeout)
                messages = self._read(num_messages)
            return messages

    def close(self) -> None:
        self._positions = {}
        self._topic.stalled.clear()

    def _read(self, num_messages: int) -> list[MessageLike]:
        if self._topic.fail_next:
            self._topic.fail_next -= 1
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        messages: list[MessageLike] = []
        for partition, position in self._positions.items():
            if partition in self._topic.stalled:
                continue
            records = self._topic.partitions[partition]
            position = max(position, self._topic.log_starts.get(partition, 0))
            for offset in range(position, min(len(records), position + num_messages)):
                messages.append(
                    FakeMessage(partition, offset, *records[offset], None, self._topic.epoch_of(partition, offset))
                )
                self._topic.reads.append((partition, offset))
            self._positions[partition] = min(len(records), position + num_messages)
            if self._positions[partition] == len(records) != self._ends_told.get(partition):
                self._ends_told[partition] = len(records)
                end = KafkaError(KafkaError._PARTITION_EOF)
                messages.append(FakeMessage(partition, len(records), _error=end))
        return messages
