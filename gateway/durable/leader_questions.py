"""Asks a partition's leader on a client's own connection, and keeps what it said. Sans-IO.

A question is ListOffsets (latest, read_uncommitted), which insists on the leader epoch, OffsetForLeaderEpoch where an
epoch rose, and behind them a DescribeTopicPartitions for each topic, which proves that the topic's name still stands
for the same topic. A broker changes names first, then its partitions, and deletes a topic's partitions before it makes
those of another one under the name. So two proofs enclose an offset: before the question, the broker had made a
directory of the topic (`DurableLogs.named`), hence no partition is an older topic's; behind it, the name was still this
topic's, hence no partition was a newer one's.

The frames go on a client's own connection, so the broker judges them by that client's rights: all need Describe on the
topic, which Write implies. They bear the client's own client id, with which broker quotas count them.

Source: Kafka's message definitions ApiVersions (version 0), ListOffsets (5), OffsetForLeaderEpoch (3) and
DescribeTopicPartitions (0); KIP-320 (current_leader_epoch), KIP-516 (topic ids), KIP-966 (DescribeTopicPartitions).
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from kafka_log.crc32c import Buffer
from kafka_log.topic_partition import TopicId, TopicIdPartition
from replication.wire.kafka_frame import FrameCursor, encode_unsigned_varint

OWN_ID: Final = -1
"""Correlation id of the agent's own requests, whose answers are known by their place."""
_API_VERSIONS: Final = 18
_LIST_OFFSETS: Final = (2, 5)
_OFFSET_FOR_LEADER_EPOCH: Final = (23, 3)
_DESCRIBE_TOPIC_PARTITIONS: Final = (75, 0)
_NEEDED: Final = (_LIST_OFFSETS, _OFFSET_FOR_LEADER_EPOCH, _DESCRIBE_TOPIC_PARTITIONS)
"""API key and version of each question. Brokers before Kafka 3.8 do not know the last one."""

_CONSUMER: Final = -1
_LATEST: Final = -1
ANY_EPOCH: Final = -1
"""Current leader epoch of a question that accepts whichever epoch the broker has."""

_HEADER = struct.Struct(">hhi")  # API key, version, correlation id
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_LIST_OFFSETS_HEAD = struct.Struct(">ib")  # replica id, isolation level: 0 is read_uncommitted
_ASKED_OFFSET = struct.Struct(">iiq")  # partition, current leader epoch, timestamp
_ASKED_EPOCH = struct.Struct(">iii")  # partition, current leader epoch, leader epoch
_OFFSET = struct.Struct(">ihqqi")  # partition, error, timestamp, offset, leader epoch
_EPOCH_END = struct.Struct(">hiiq")  # error, partition, leader epoch, end offset
_API_RANGE = struct.Struct(">hhh")  # API key, lowest version, highest version
_CORRELATION_BYTES = _THROTTLE_BYTES = 4

TopicPartition = tuple[str, int]


class HighWatermark(NamedTuple):
    """What a leader reports of a partition: its high watermark and leader epoch, or an error."""

    error: int
    offset: int
    leader_epoch: int


class EpochEnd(NamedTuple):
    """Where a leader epoch ends in the broker's log: the largest epoch that is not above the one asked for."""

    error: int
    leader_epoch: int
    end_offset: int


class NamedTopic(NamedTuple):
    """The id of the topic that has a name now, as the broker reports it."""

    error: int
    topic_id: TopicId


def ask_api_versions(client_id: bytes) -> bytes:
    """Encode an ApiVersions request."""
    return _header((_API_VERSIONS, 0), client_id)


def answers_all_questions(frame: Buffer) -> bool:
    """Return whether the broker supports the requests of this module, in their versions, by its ApiVersions response.

    Raises MalformedFrameError.
    """
    cursor = FrameCursor(frame)
    cursor.skip(_CORRELATION_BYTES)
    if cursor.int16():
        return False
    known: dict[int, tuple[int, int]] = {}
    for _ in range(cursor.inflexible_array_length(_API_RANGE.size)):
        key, lowest, highest = cursor.fields(_API_RANGE)
        known[key] = lowest, highest
    return all(key in known and known[key][0] <= version <= known[key][1] for key, version in _NEEDED)


def ask_high_watermarks(client_id: bytes, epochs: Mapping[TopicPartition, int]) -> bytes:
    """Encode a ListOffsets request (latest, read_uncommitted); the broker must confirm `epochs` as current leader
    epochs."""
    asked = ((one, _ASKED_OFFSET.pack(one[1], epoch, _LATEST)) for one, epoch in epochs.items())
    head = _header(_LIST_OFFSETS, client_id)
    return head + _LIST_OFFSETS_HEAD.pack(_CONSUMER, 0) + _by_topic(asked)


def scan_high_watermarks(frame: Buffer) -> dict[TopicPartition, HighWatermark]:
    """Read a ListOffsets response. Raises MalformedFrameError."""
    return {
        (topic, partition): HighWatermark(error, offset, epoch)
        for topic, (partition, error, _, offset, epoch) in _each_partition(frame, _OFFSET)
    }


def ask_epoch_ends(client_id: bytes, epochs: Mapping[TopicPartition, int]) -> bytes:
    """Encode an OffsetForLeaderEpoch request, which asks where these leader epochs end."""
    asked = ((one, _ASKED_EPOCH.pack(one[1], ANY_EPOCH, epoch)) for one, epoch in epochs.items())
    return _header(_OFFSET_FOR_LEADER_EPOCH, client_id) + _INT32.pack(_CONSUMER) + _by_topic(asked)


def scan_epoch_ends(frame: Buffer) -> dict[TopicPartition, EpochEnd]:
    """Read an OffsetForLeaderEpoch response. Raises MalformedFrameError."""
    return {
        (topic, partition): EpochEnd(error, epoch, end_offset)
        for topic, (error, partition, epoch, end_offset) in _each_partition(frame, _EPOCH_END)
    }


def ask_topic_id(client_id: bytes, topic: str) -> bytes:
    """Encode a DescribeTopicPartitions request for one topic and at most one partition, to learn the topic's id."""
    name = topic.encode()
    body = b"\x02" + encode_unsigned_varint(len(name) + 1) + name + b"\0"  # one topic, its name, no tags
    limit_and_no_cursor = _INT32.pack(1) + b"\xff"
    return _header(_DESCRIBE_TOPIC_PARTITIONS, client_id) + b"\0" + body + limit_and_no_cursor + b"\0"


def scan_topic_id(frame: Buffer) -> NamedTopic:
    """Read the topic in a DescribeTopicPartitions response for one topic. Raises MalformedFrameError."""
    cursor = FrameCursor(frame)
    cursor.skip(_CORRELATION_BYTES)
    cursor.skip_tagged_fields()
    cursor.skip(_THROTTLE_BYTES)
    if cursor.array_length(min_item_bytes=20) != 1:
        raise cursor.fault("topics", "an answer for one topic has none or several")
    error = cursor.int16()
    cursor.compact_string()
    return NamedTopic(error, cursor.topic_id())


def throttle_ms(frame: Buffer, *, is_flexible: bool = False) -> int:
    """Read for how long the broker reads nothing from the connection after this response, in ms. Raises
    MalformedFrameError."""
    cursor = FrameCursor(frame)
    cursor.skip(_CORRELATION_BYTES)
    if is_flexible:
        cursor.skip_tagged_fields()
    return cursor.int32()


def _each_partition(frame: Buffer, layout: struct.Struct) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Read an answer that lists topics by name, and partitions of this layout: each one's topic and fields."""
    cursor = FrameCursor(frame)
    cursor.skip(_CORRELATION_BYTES + _THROTTLE_BYTES)
    for _ in range(cursor.inflexible_array_length(min_item_bytes=6)):
        topic = cursor.string()
        for _ in range(cursor.inflexible_array_length(layout.size)):
            yield topic, cursor.fields(layout)
    cursor.expect_end()


def _header(api: tuple[int, int], client_id: bytes) -> bytes:
    return _HEADER.pack(*api, OWN_ID) + client_id


def _by_topic(asked: Iterable[tuple[TopicPartition, bytes]]) -> bytes:
    """Encode an array of topics, each with its name and an array of encoded partitions."""
    topics = []
    for topic, of_topic in groupby(sorted(asked), key=lambda one: one[0][0]):
        partitions = [encoded for _, encoded in of_topic]
        name = topic.encode()
        topics.append(_INT16.pack(len(name)) + name + _INT32.pack(len(partitions)) + b"".join(partitions))
    return _INT32.pack(len(topics)) + b"".join(topics)


MAX_TOPICS: Final = 50
"""Most topics in one question; the others come with the next one (guessed)."""
MAX_NAMES: Final = 2000
"""Most partitions in one question, and most that wait to be asked about: a client may invent names
(guessed)."""
_MAX_NAME: Final = 249
"""Kafka's own bound on topics' names."""
_ASK_AGAIN_S: Final = 5.0
"""Pause after a partition could not be asked about (guessed)."""
_CHANGED_S: Final = 0.1
"""Pause after a new leader could not say its high watermark yet, or while a topic is created again
(guessed)."""
_NO_RIGHT_S: Final = 60.0
"""Pause after the broker refused the right to describe a partition (guessed)."""

NONE: Final = 0
TOPIC_AUTHORIZATION_FAILED: Final = 29
FENCED_LEADER_EPOCH: Final = 74
_OFFSET_NOT_AVAILABLE: Final = 78


class OwnRequest(NamedTuple):
    """A request of the agent's own that is sent to the broker on the client's connection."""

    frame: bytes
    take: Callable[[Buffer], object]
    """Takes the broker's answer. Raises MalformedFrameError."""


class LedPartition(NamedTuple):
    """A partition with the topic id and leader epoch by the broker's word, under which responses are held."""

    name: TopicPartition
    log: TopicIdPartition
    """The partition under its topic's id."""
    epoch: int


@dataclass(slots=True)
class Question:
    """The parts of a question that were sent together, and the broker's responses to them."""

    epochs: Mapping[TopicPartition, int]
    """Epochs that ListOffsets insists on."""
    histories: Mapping[TopicPartition, int]
    """Epochs whose ends OffsetForLeaderEpoch asks for."""
    watermarks: dict[TopicPartition, HighWatermark] = field(default_factory=dict)
    ends: dict[TopicPartition, EpochEnd] = field(default_factory=dict)
    topics: dict[str, NamedTopic] = field(default_factory=dict)
    throttle_ms: int = 0
    """For how long the broker reads nothing of the connection."""

    def was_throttled(self, ms: int) -> None:
        """Note the throttle time in one of the responses."""
        self.throttle_ms = max(self.throttle_ms, ms)


class LeaderQuestions:
    """Asks the broker one question at a time; first of all, whether it knows such requests."""

    def __init__(self) -> None:
        self.are_answered: bool | None = None
        """Whether the broker answers them; None: not known yet."""
        self.client_id = b"\xff\xff"
        """The client id as in the client's frames."""
        self._open = 0
        """Answers that have not come."""
        self._question: Question | None = None
        self._turn = 0
        """Position of the topic that the next question begins with, if there are too many for one."""

    @property
    def is_open(self) -> bool:
        """Whether a response to the question is missing."""
        return self._open > 0

    def ask_whether(self) -> OwnRequest:
        """Return the request for the API versions that the broker knows."""

        def take(frame: Buffer) -> None:
            self.are_answered = answers_all_questions(frame)

        return self._ask(ask_api_versions, take)

    def ask(self, epochs: Mapping[TopicPartition, int], histories: Mapping[TopicPartition, int]) -> list[OwnRequest]:
        """Return the requests about as many of these partitions as one question may have.

        `epochs` are the current leader epochs that the broker must confirm; for those in `histories` it is asked where
        they end.
        """
        topics = list(dict.fromkeys(topic for topic, _ in epochs))
        begin, self._turn = self._turn % len(topics), self._turn + MAX_TOPICS
        topics = (topics[begin:] + topics[:begin])[:MAX_TOPICS]
        are_asked = set(topics)
        names = [one for one in epochs if one[0] in are_asked][:MAX_NAMES]
        question = Question(
            {one: epochs[one] for one in names}, {one: histories[one] for one in names if one in histories}
        )

        def take_watermarks(frame: Buffer) -> None:
            question.watermarks = scan_high_watermarks(frame)
            question.was_throttled(throttle_ms(frame))

        def take_ends(frame: Buffer) -> None:
            question.ends = scan_epoch_ends(frame)
            question.was_throttled(throttle_ms(frame))

        frames = [self._ask(lambda client_id: ask_high_watermarks(client_id, question.epochs), take_watermarks)]
        if question.histories:
            frames.append(self._ask(lambda client_id: ask_epoch_ends(client_id, question.histories), take_ends))
        frames += [self._ask_topic(topic, question) for topic in topics]
        self._question = question
        return frames

    def _ask_topic(self, topic: str, question: Question) -> OwnRequest:
        def take(frame: Buffer) -> None:
            question.topics[topic] = scan_topic_id(frame)
            question.was_throttled(throttle_ms(frame, is_flexible=True))

        return self._ask(lambda client_id: ask_topic_id(client_id, topic), take)

    def _ask(self, encode: Callable[[bytes], bytes], take: Callable[[Buffer], object]) -> OwnRequest:
        self._open += 1

        def taken(frame: Buffer) -> None:
            self._open -= 1
            take(frame)

        return OwnRequest(encode(self.client_id), taken)

    def concluded(self) -> Question | None:
        """Return the question, once, when its last response has come."""
        if self.is_open:
            return None
        question, self._question = self._question, None
        return question


class KnownLeaders:
    """What one connection's broker has said of partitions. Only with that is a request forwarded as acks=1."""

    def __init__(self) -> None:
        self.wanted: dict[TopicPartition, TopicId] = {}
        """Partitions to be asked about before their requests go on as acks=1, with the topic id that they must have."""
        self._known: dict[TopicPartition, LedPartition] = {}
        self._not_before_s: dict[TopicPartition, float] = {}
        self._may_not: set[TopicPartition] = set()
        """The client may not describe these."""

    def of_request(self, name: TopicPartition, topic_id: TopicId) -> LedPartition | None:
        """Return the partition that a request names, if the broker has said it leads it."""
        led = self._known.get(name)
        if led is not None and led.log.topic_id != topic_id:
            self.forget(name)
            return None
        return led

    def get(self, name: TopicPartition) -> LedPartition | None:
        return self._known.get(name)

    def forget(self, name: TopicPartition) -> None:
        """Forget a partition, because it may have another leader, epoch or topic by now."""
        self._known.pop(name, None)

    def may_not_describe(self, name: TopicPartition) -> bool:
        """Whether the broker refused the client the right to describe this partition."""
        return name in self._may_not

    def want(self, name: TopicPartition, topic_id: TopicId, now_s: float) -> bool:
        """Ask about a partition of this topic; returns False if it is being asked about already, or may not be now.

        A waiting request calls this again at each change, so a call must not cause the next change.
        """
        too_many = len(self.wanted) >= MAX_NAMES or len(name[0]) > _MAX_NAME
        if too_many or name in self.wanted or name in self._known or now_s < self._not_before_s.get(name, 0.0):
            return False
        if len(self._not_before_s) > MAX_NAMES:
            self._not_before_s.clear()
            self._may_not.clear()
        self.wanted[name] = topic_id
        return True

    def learn(self, name: TopicPartition, told: HighWatermark, topic: NamedTopic, now_s: float) -> None:
        """Note what the broker said about a partition that was asked about."""
        topic_id = self.wanted.pop(name)
        self._may_not.discard(name)
        if told.error == topic.error == NONE and topic.topic_id == topic_id:
            self._known[name] = LedPartition(name, TopicIdPartition(topic_id, name[1]), told.leader_epoch)
            self._not_before_s.pop(name, None)
        elif TOPIC_AUTHORIZATION_FAILED in (told.error, topic.error):
            self._not_before_s[name] = now_s + _NO_RIGHT_S
            self._may_not.add(name)
        else:
            is_changing = told.error in (NONE, FENCED_LEADER_EPOCH, _OFFSET_NOT_AVAILABLE)
            self._not_before_s[name] = now_s + (_CHANGED_S if is_changing else _ASK_AGAIN_S)
