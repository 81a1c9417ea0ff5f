"""Asks a partition's leader on a client's own connection, and keeps what it said. Sans-IO.

A question is ListOffsets (latest, read_uncommitted), which insists on the leader epoch, OffsetForLeaderEpoch where an
epoch rose, and behind them a DescribeTopicPartitions for each topic, which proves that the topic's name still stands
for the same topic. A broker changes names first, then its partitions, and deletes a topic's partitions before it makes
those of another one under the name. So two proofs enclose an offset: before the question, the broker had made a
directory of the topic (`DurableLogs.named`), hence no partition is an older topic's; behind it, the name was still this
topic's, hence no partition was a newer one's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gateway.durable.watermark_frames import (
    Asker,
    EpochEnd,
    HighWatermark,
    NamedTopic,
    TopicPartition,
    answers_all_questions,
    ask_api_versions,
    ask_epoch_ends,
    ask_high_watermarks,
    ask_topic_id,
    scan_epoch_ends,
    scan_high_watermarks,
    scan_topic_id,
    throttle_ms,
)
from kafka_log.crc32c import Buffer
from kafka_log.topic_partition import TopicId, TopicIdPartition

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


OWN_ID: Final = -1
"""Correlation id of the agent's own requests, whose answers are known by their place."""


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

        frames = [self._ask(lambda asker: ask_high_watermarks(asker, question.epochs), take_watermarks)]
        if question.histories:
            frames.append(self._ask(lambda asker: ask_epoch_ends(asker, question.histories), take_ends))
        frames += [self._ask_topic(topic, question) for topic in topics]
        self._question = question
        return frames

    def _ask_topic(self, topic: str, question: Question) -> OwnRequest:
        def take(frame: Buffer) -> None:
            question.topics[topic] = scan_topic_id(frame)
            question.was_throttled(throttle_ms(frame, is_flexible=True))

        return self._ask(lambda asker: ask_topic_id(asker, topic), take)

    def _ask(self, encode: Callable[[Asker], bytes], take: Callable[[Buffer], object]) -> OwnRequest:
        self._open += 1

        def taken(frame: Buffer) -> None:
            self._open -= 1
            take(frame)

        return OwnRequest(encode(Asker(OWN_ID, self.client_id)), taken)

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
