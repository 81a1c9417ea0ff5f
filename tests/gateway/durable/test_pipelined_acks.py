"""acks=all that goes on as acks=1, before a model of a leader."""

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.producer import ProduceRequest

from gateway.durable.durable_logs import DurableLogs, Verdict
from gateway.durable.held_responses import HELD_SHARE, HeldResponses
from gateway.durable.leader_questions import MAX_TOPICS
from gateway.durable.pipelined_acks import CONNECTION_BYTES, SUSPECTED_S, AckRoute, PipelinedAcks, ReplicationLimits
from gateway.durable.produce_response import scan_produce_response
from kafka_log.crc32c import Buffer
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.topic_settings import TopicSettings
from replication.leader.follower_offsets import MAX_PARTITIONS, FollowerOffsets
from replication.wire.kafka_frame import MalformedFrameError
from tests.gateway.produce.produce_frames import TIMEOUT_MS, TOPIC_ID, encode, produce, produced
from tests.kafka_log.batches import batch

TOPIC = "topic"
DURABLE = SettingsTable({TOPIC: TopicSettings(True, durable=True)})
OTHER_ID = TopicId(bytes(range(2, 18)))
LOG = TopicIdPartition(TOPIC_ID, 0)
VERSIONS = (3, 8, 9, 12, 13)
NO_ERROR, NOT_LEADER, TIMED_OUT, TOO_LARGE, NOT_AUTHORIZED, TOO_FEW, DUPLICATE = 0, 6, 7, 10, 29, 19, 46
FENCED, UNKNOWN_EPOCH, NOT_AVAILABLE, UNKNOWN_TOPIC = 74, 75, 78, 3
LIST_OFFSETS, API_VERSIONS, EPOCH_ENDS, DESCRIBE_TOPICS = 2, 18, 23, 75


@dataclass
class Leader:
    """Partitions of the topic as their broker has them, all alike."""

    topic_id: TopicId = TOPIC_ID
    epoch: int = 5
    high_watermark: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    """Of epochs before this one."""
    log_end: int = -1
    """-1: nothing of this epoch is known."""
    error: int = NO_ERROR
    """Of ListOffsets, whatever is asked."""
    describe_error: int = NO_ERROR
    questions: dict[int, tuple[int, int]] = field(
        default_factory=lambda: {LIST_OFFSETS: (1, 11), EPOCH_ENDS: (2, 4), DESCRIBE_TOPICS: (0, 0)}
    )
    """Lowest and highest version that ApiVersions tells, by API key."""
    api_versions_error: int = NO_ERROR
    throttle_ms: int = 0

    def answer(self, frame: bytes) -> bytes:
        """To what an agent asks, read and written by hand as the message definitions have it."""
        key, version, number = struct.unpack_from(">hhi", frame)
        head, throttle = struct.pack(">i", number), struct.pack(">i", self.throttle_ms)
        if key == API_VERSIONS:
            assert version == 0
            apis = [(0, 3, 13), *((api, *range_) for api, range_ in self.questions.items())]
            return (
                head
                + struct.pack(">hi", self.api_versions_error, len(apis))
                + b"".join(struct.pack(">hhh", *api) for api in apis)
            )
        if key == DESCRIBE_TOPICS:
            name = TOPIC.encode()
            topic = struct.pack(">h", self.describe_error) + bytes((len(name) + 1,)) + name + self.topic_id + b"\0"
            return head + b"\0" + throttle + b"\2" + topic + b"\1" + bytes(4) + b"\0" + b"\xff" + b"\0"
        if key == LIST_OFFSETS:
            assert version == 5
            told = [self._watermark(*asked) for asked in struct.iter_unpack(">iiq", partitions_of(frame))]
        else:
            assert (key, version) == (EPOCH_ENDS, 3)
            told = [self._end(*asked) for asked in struct.iter_unpack(">iii", partitions_of(frame))]
        topics = struct.pack(">ih", 1, len(TOPIC)) + TOPIC.encode() + struct.pack(">i", len(told)) + b"".join(told)
        return head + throttle + topics

    def _end(self, partition: int, _current_epoch: int, epoch: int) -> bytes:
        ends = self.ends if self.log_end < 0 else {**self.ends, self.epoch: self.log_end}
        known = max((one for one in ends if one <= epoch), default=-1)
        return struct.pack(">hiiq", NO_ERROR, partition, known, ends.get(known, -1))

    def _watermark(self, partition: int, epoch: int, timestamp: int) -> bytes:
        assert timestamp == -1
        error = self.error or (FENCED if -1 < epoch < self.epoch else UNKNOWN_EPOCH if epoch > self.epoch else 0)
        offset = -1 if error else self.high_watermark
        return struct.pack(">ihqqi", partition, error, -1, offset, -1 if error else self.epoch)


def partitions_of(frame: bytes) -> bytes:
    """What a question asks of each partition of the topic."""
    return frame[frame.index(TOPIC.encode()) + len(TOPIC) + 4 :]


class CountedLimits(ReplicationLimits):
    """Counts the bytes of all partitions that were taken and not given back."""

    taken_bytes = 0

    def take(self, log: TopicIdPartition, size: int) -> None:
        super().take(log, size)
        self.taken_bytes += size

    def give_back(self, log: TopicIdPartition, size: int) -> None:
        super().give_back(log, size)
        self.taken_bytes -= size


class Rig:
    """A producer's connection, its agent and the broker. Nothing is durable unless a test says so."""

    def __init__(self, version: int = 13, leader: Leader | None = None) -> None:
        self.version = version
        self.leader = leader or Leader()
        self.followers = FollowerOffsets()
        self.ways: list[AckRoute] = []
        self.verdicts: list[Verdict] = []
        self.asked_anew = 0
        self.logs = DurableLogs(self._ask_anew)
        self.logs.topics_known(SettingsTable(), {TOPIC_ID: TOPIC})
        self.replication = CountedLimits(self.followers, self.ways.append)
        self.answers = self.connection()
        self.unread: deque[bytes | int] = deque()
        """What the broker has not answered, in its order: the agent's questions, and requests by their ids."""
        self.now_s = 0.0
        self.woken = 0

    def connection(self) -> HeldResponses[None]:
        return HeldResponses(self.logs, self._wake, self, self.replication)

    def _wake(self) -> None:
        self.woken += 1

    def _ask_anew(self) -> None:
        self.asked_anew += 1

    def ended(self, verdict: Verdict, _held_s: float) -> None:
        self.verdicts.append(verdict)

    def transaction_refused(self) -> None:
        raise AssertionError("no transaction here")

    def send(
        self, number: int, *, records: int = 5, acks: int = -1, size: int = 1, partitions: Sequence[int] = (0,)
    ) -> int | None:
        """The acks with which the broker gets a request; None: it does not get it yet."""
        frames = self.answers.asked(self.request(number, records, acks, size, partitions), None, self.now_s)
        if frames is None:
            return None
        if acks:
            self.unread.append(number)
        return int(ProduceRequest.decode(b"".join(frames), version=self.version, header=True).acks)

    def request(self, number: int, records: int, acks: int, size: int, partitions: Sequence[int] = (0,)) -> bytes:
        by_partition = dict.fromkeys(partitions, batch(0, records, -1, b"r" * size))
        return produce(by_partition, version=self.version, correlation_id=number, acks=acks)

    def append(
        self, number: int, base_offset: int, error: int = NO_ERROR, throttle_ms: int = 0, errors: Sequence[int] = ()
    ) -> None:
        """The broker answers a request; `errors` are those of the partitions behind the first one."""
        parts = [(one, base_offset if one == NO_ERROR else -1) for one in (error, *errors)]
        outcomes = [(TOPIC, TOPIC_ID, parts)]
        frame = produced(outcomes, version=self.version, correlation_id=number, throttle_ms=throttle_ms)
        assert self.unread.popleft() == number
        self.answers.answered(frame, self.now_s)
        self._answer_questions()

    def ask(self, passed_s: float = 1e-3) -> int:
        """Let the agent ask what it wants to, until nothing is left to ask now; how many frames it sent.

        The broker answers those that it has no request before.
        """
        self.now_s += passed_s
        asked = 0
        while frames := self.answers.to_broker(self.now_s):
            asked += len(frames)
            self.unread += frames
            self._answer_questions()
        return asked

    def _answer_questions(self) -> None:
        while self.unread and isinstance(frame := self.unread[0], bytes):
            self.unread.popleft()
            self.answers.answered(self.leader.answer(frame), self.now_s)

    def told(self) -> tuple[int, int] | None:
        """Error and throttle time of the answer that goes to the client now."""
        if (found := self.answers.ready(self.now_s)) is None:
            return None
        frame, _ = found
        view = scan_produce_response(frame, self.version)
        return view.partitions[0].error, int.from_bytes(bytes(frame[view.throttle_at : view.throttle_at + 4]), "big")

    def known(self) -> "Rig":
        """After a first request, which went to the broker as it was, and some time."""
        assert self.send(100) == -1
        self.append(100, 0)
        self.ask()
        assert self.told() == (NO_ERROR, 0)
        self.leader.high_watermark = 5
        return self


def appended(rig: Rig, number: int = 1, base_offset: int = 5) -> None:
    assert rig.send(number) == 1
    rig.append(number, base_offset)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_waits_for_the_high_watermark_that_the_leader_tells_in_the_same_epoch(version: int) -> None:
    rig = Rig(version).known()
    appended(rig)
    assert rig.told() is None
    rig.leader.high_watermark = 9
    rig.ask(0.1)
    assert rig.told() is None
    rig.leader.high_watermark = 10
    rig.ask(0.1)
    assert rig.told() == (NO_ERROR, 0)
    assert rig.verdicts == [Verdict.REPLICATED]


@pytest.mark.parametrize("acks", [0, 1])
def test_what_does_not_say_acks_all_is_neither_changed_nor_held(acks: int) -> None:
    rig = Rig().known()
    assert rig.send(1, acks=acks) == acks
    if acks:
        rig.append(1, 5)
        assert rig.told() == (NO_ERROR, 0)
    assert rig.ways == [AckRoute.UNKNOWN]


def test_a_follower_that_fetched_it_has_the_broker_asked_and_proves_nothing() -> None:
    rig = Rig().known()
    appended(rig)
    rig.ask()
    woken = rig.woken
    rig.followers.fetched(LOG, 2, 10)
    appended(rig, 2, 10)
    rig.ask()
    assert rig.told() is None
    rig.leader.high_watermark = 15
    woken = rig.woken
    rig.followers.fetched(LOG, 2, 14)
    assert rig.woken == woken
    rig.followers.fetched(LOG, 2, 15)
    assert rig.woken > woken
    rig.ask()
    assert [rig.told(), rig.told()] == [(NO_ERROR, 0)] * 2


@pytest.mark.parametrize("error", [NOT_AVAILABLE, 5, 9])
def test_an_offset_that_is_not_available_yet_is_asked_for_again(error: int) -> None:
    rig = Rig().known()
    appended(rig)
    rig.leader.error, rig.leader.high_watermark = error, 10
    rig.ask(0.1)
    assert rig.told() is None
    rig.leader.error = NO_ERROR
    rig.ask(0.1)
    assert rig.told() == (NO_ERROR, 0)


@pytest.mark.parametrize("error", [UNKNOWN_TOPIC, NOT_LEADER, 56, UNKNOWN_EPOCH])
def test_a_leader_that_is_none_any_more_ends_the_wait(error: int) -> None:
    rig = Rig().known()
    appended(rig)
    rig.leader.error = error
    rig.ask(0.1)
    assert rig.told() == (NOT_LEADER, 0)


@pytest.mark.parametrize(("epoch", "end"), [(6, 10), (6, 5), (8, 10)])
def test_a_higher_epoch_of_the_same_leader_keeps_what_its_log_still_has(epoch: int, end: int) -> None:
    # a reassignment raises the epoch under the same leader; what was on its way then is appended under the new one
    rig = Rig().known()
    appended(rig)
    rig.leader.epoch, rig.leader.ends = epoch, {5: end}
    rig.ask(0.1)
    assert rig.told() is None
    rig.leader.high_watermark = 10
    rig.ask(0.1)
    assert rig.told() == (NO_ERROR, 0)


@pytest.mark.parametrize("version", [9, 13])
def test_a_topic_is_known_once_it_has_a_directory_and_the_leader_says_the_same(version: int) -> None:
    # the broker applies one change of its metadata, in which a topic is deleted and made again: its name is the new
    # one's, and its partition is the old one's still, under the same epoch
    rig = Rig(version)
    rig.leader.topic_id = OTHER_ID
    number = 0

    def acks() -> int | None:
        nonlocal number
        number += 1
        sent = rig.send(number)
        rig.ask(1.0)
        rig.append(number, 5 * number)
        rig.leader.high_watermark = 5 * number + 5
        rig.ask(0.1)
        assert rig.told() == (NO_ERROR, 0)
        return sent

    assert [acks() for _ in range(3)] == [-1] * 3
    rig.logs.topics_known(SettingsTable(), {})
    assert acks() == -1
    assert rig.asked_anew
    rig.leader.topic_id = TOPIC_ID
    rig.logs.topics_known(SettingsTable(), {TOPIC_ID: TOPIC})
    assert [acks() for _ in range(2)] == [-1, 1]
    rig.logs.topics_known(SettingsTable(), {OTHER_ID: TOPIC})
    assert acks() == -1


def test_a_watermark_without_a_proven_topic_releases_nothing() -> None:
    rig = Rig().known()
    appended(rig)
    rig.leader.high_watermark, rig.leader.describe_error = 10, 9
    rig.ask(0.1)
    assert rig.told() is None


def test_a_client_that_may_not_describe_the_topic_gets_acks_all() -> None:
    rig = Rig(leader=Leader(error=NOT_AUTHORIZED))
    for number in range(3):
        assert rig.send(number) == -1
        rig.append(number, 5 * number)
        rig.ask()
        assert rig.told() == (NO_ERROR, 0)
    assert rig.ways == [AckRoute.UNKNOWN, AckRoute.NO_RIGHT, AckRoute.NO_RIGHT]


@pytest.mark.parametrize(
    "altered",
    [
        {"questions": {LIST_OFFSETS: (1, 11), EPOCH_ENDS: (2, 4)}},
        {"questions": {LIST_OFFSETS: (1, 4), EPOCH_ENDS: (2, 4), DESCRIBE_TOPICS: (0, 0)}},
        {"questions": {LIST_OFFSETS: (6, 12), EPOCH_ENDS: (2, 4), DESCRIBE_TOPICS: (0, 0)}},
        {"questions": {LIST_OFFSETS: (1, 11), EPOCH_ENDS: (2, 2), DESCRIBE_TOPICS: (0, 0)}},
        {"api_versions_error": 35},
    ],
)
def test_a_broker_whose_api_versions_lack_a_question_gets_acks_all(altered: dict[str, Any]) -> None:
    rig = Rig(leader=Leader(**altered))
    for number in range(3):
        assert rig.send(number) == -1
        asked = rig.ask(1.0)
        assert asked == (0 if number else 1), "ApiVersions alone, once"
        rig.append(number, 5 * number)
        assert rig.told() == (NO_ERROR, 0)
    assert rig.ways == [AckRoute.UNKNOWN, AckRoute.OLD_BROKER, AckRoute.OLD_BROKER]


def test_what_is_not_replicated_in_time_is_to_be_tried_again_and_the_broker_judges_the_next_one() -> None:
    # min.insync.replicas is not met: the high watermark stands still
    rig = Rig().known()
    appended(rig)
    rig.ask(SUSPECTED_S / 2)
    assert rig.send(2) == 1
    rig.append(2, 10)
    rig.ask(SUSPECTED_S)
    assert rig.send(3) is None
    rig.now_s += TIMEOUT_MS / 1000 * HELD_SHARE + 1
    assert [rig.told(), rig.told(), rig.told()] == [(TIMED_OUT, 0), (TIMED_OUT, 0), None]
    assert rig.send(3) == -1
    assert rig.ways[-1] is AckRoute.SUSPECTED
    rig.append(3, -1, TOO_FEW)
    assert rig.told() == (TOO_FEW, 0)
    assert rig.send(4) == -1
    rig.append(4, 15)
    assert rig.told() == (NO_ERROR, 0)
    assert rig.send(5) == 1


def test_a_high_watermark_that_moves_again_ends_the_suspicion() -> None:
    rig = Rig().known()
    appended(rig)
    rig.ask(SUSPECTED_S * 1.5)
    rig.leader.high_watermark = 10
    rig.ask(0.1)
    assert rig.told() == (NO_ERROR, 0)
    assert rig.send(2) == 1


def test_a_request_that_waits_in_turn_wakes_nobody_by_trying_again() -> None:
    # or its agent would try again for ever, and do nothing else
    rig = Rig().known()
    appended(rig)
    assert rig.send(2) == 1
    rig.append(2, -1, NOT_LEADER)
    assert rig.send(3) is None
    woken = rig.woken
    assert rig.send(3) is None
    assert rig.woken == woken


@pytest.mark.parametrize(("epoch", "told"), [(6, DUPLICATE), (7, NOT_LEADER)])
def test_a_duplicate_without_an_offset_counts_only_while_the_log_can_have_lost_nothing(epoch: int, told: int) -> None:
    rig = Rig().known()
    assert rig.send(1) == 1
    rig.append(1, -1, DUPLICATE)
    rig.leader.epoch, rig.leader.ends, rig.leader.log_end, rig.leader.high_watermark = epoch, {5: 40}, 40, 40
    rig.ask(0.1)
    assert rig.told() == (told, 0)


def test_a_duplicate_without_an_offset_is_refused_for_a_durable_topic() -> None:
    rig = Rig().known()
    rig.logs.topics_known(DURABLE, {TOPIC_ID: TOPIC})
    assert rig.send(1) == 1
    rig.append(1, -1, DUPLICATE)
    rig.leader.log_end = rig.leader.high_watermark = 5
    rig.ask(0.1)
    assert rig.told() == (TIMED_OUT, 0)


@pytest.mark.parametrize("is_replicated", [True, False])
@pytest.mark.parametrize("version", [9, 13])
def test_of_a_request_that_failed_in_part_what_was_appended_waits(version: int, is_replicated: bool) -> None:
    rig = Rig(version).known()
    assert rig.send(1, partitions=(0, 1, 2)) == -1
    rig.ask()
    rig.append(1, 5, errors=(NO_ERROR, NO_ERROR))
    assert rig.told() == (NO_ERROR, 0)
    assert rig.send(2, partitions=(0, 1, 2)) == 1
    rig.append(2, 10, TOO_LARGE, errors=(NO_ERROR, DUPLICATE))
    rig.ask()
    assert rig.answers.ready(rig.now_s) is None
    rig.leader.log_end, rig.leader.high_watermark = 15, 15 if is_replicated else 14
    rig.ask(0.1)
    rig.now_s += 0.0 if is_replicated else TIMEOUT_MS / 1000
    ready = rig.answers.ready(rig.now_s)
    assert ready is not None
    found = scan_produce_response(ready[0], version).partitions
    kept = [(NO_ERROR, 10), (DUPLICATE, -1)] if is_replicated else [(TIMED_OUT, -1)] * 2
    assert [(one.error, one.base_offset) for one in found] == [(TOO_LARGE, -1), *kept]
    assert not rig.replication.taken_bytes


def test_a_refused_request_is_told_as_the_broker_tells_it() -> None:
    rig = Rig().known()
    assert rig.send(1) == 1
    rig.append(1, -1, NOT_LEADER)
    assert rig.told() == (NOT_LEADER, 0)
    assert rig.send(2) == -1


def test_what_is_not_replicated_is_bounded_and_given_back() -> None:
    rig = Rig().known()
    number, size = 1, 1024 * 1024
    while not rig.answers.is_busy:
        assert rig.send(number, records=1, size=size) == 1
        rig.append(number, 4 + number)
        number += 1
    assert number - 1 == -(-CONNECTION_BYTES // (size + 100))
    other = rig.connection()
    first, rig.answers = rig.answers, other
    rig.send(1)
    rig.append(1, 100)
    rig.ask()
    assert rig.told() is not None
    sent = 0
    while rig.send(2 + sent, records=1, size=size) == 1:
        sent += 1
    assert sent, "until the partition has as much as it may have, of both"
    first.close()
    assert rig.send(1000, records=1, size=size) == 1
    other.close()
    assert not rig.replication.taken_bytes


def test_partitions_that_nobody_uses_any_more_are_forgotten() -> None:
    rig = Rig().known()
    rig.followers.fetched(LOG, 2, 5)
    appended(rig)
    rig.answers.close()
    assert not vars(rig.followers)["_waiting"]
    rig.replication.suspect(LOG)
    for partition in range(MAX_PARTITIONS + 1):
        rig.replication.suspect(TopicIdPartition(OTHER_ID, partition))
    assert not rig.replication.is_suspected(LOG)


def test_topics_that_are_stored_before_they_are_answered_wait_for_both() -> None:
    rig = Rig().known()
    rig.logs.topics_known(DURABLE, {TOPIC_ID: TOPIC})
    appended(rig)
    rig.leader.high_watermark = 10
    rig.ask(0.1)
    assert rig.told() is None
    rig.logs.topics_known(SettingsTable(), {TOPIC_ID: TOPIC})
    rig.logs.assigned([])
    assert rig.told() == (NO_ERROR, 0)


def test_a_throttled_client_gets_acks_all_as_its_broker_reads_no_question() -> None:
    rig = Rig().known()
    assert rig.send(1) == 1
    rig.append(1, 5, throttle_ms=5000)
    rig.ask(SUSPECTED_S * 2)
    rig.leader.high_watermark = 10
    rig.ask(SUSPECTED_S * 4)
    assert rig.told() == (NO_ERROR, 0)
    assert rig.send(2) == -1
    assert rig.ways[-1] is AckRoute.THROTTLED
    assert not rig.replication.is_suspected(LOG)


@pytest.mark.parametrize("acks", [-1, None])
def test_what_the_broker_would_not_answer_at_once_waits_until_nothing_is_held(acks: int | None) -> None:
    rig = Rig().known()
    appended(rig)
    rig.replication.suspect(LOG)
    sasl_handshake = struct.pack(">hhih", 17, 1, 2, -1)
    frame = rig.request(2, 1, -1, 1) if acks else sasl_handshake
    assert rig.answers.asked(frame, None, rig.now_s) is None
    rig.leader.high_watermark = 10
    rig.ask(0.1)
    assert rig.told() == (NO_ERROR, 0)
    assert rig.answers.asked(frame, None, rig.now_s) is not None


def test_an_answer_that_cannot_be_read_gives_back_what_it_was_to_release() -> None:
    rig = Rig().known()
    assert rig.send(1) == 1
    with pytest.raises(MalformedFrameError):
        rig.answers.answered(struct.pack(">i", 1) + b"\xff", rig.now_s)
    rig.answers.close()
    assert not rig.replication.taken_bytes


def test_more_topics_than_a_question_has_are_asked_about_in_turn_and_without_a_busy_loop() -> None:
    rig = Rig()
    topics = [f"topic-{number:03}" for number in range(3 * MAX_TOPICS)]
    ids = {TopicId(number.to_bytes(16, "big")): topic for number, topic in enumerate(topics)}
    rig.logs.topics_known(SettingsTable(), ids)
    known = PipelinedAcks(rig.replication, rig.logs, lambda: None)
    for topic in topics:
        assert known.admit({(topic, 0): 100}, b"\xff\xff", 0.0) == {}
    asked: set[str] = set()
    for step in range(8):
        questions = 0
        while own := known.to_broker(step * 0.1):
            questions += 1
            asked |= {topic for topic in topics for one in own if topic.encode() in one.frame}
            for one in own:
                one.take(rig.leader.answer(one.frame) if one.frame[1] == API_VERSIONS else nothing(one.frame))
                known.answered(step * 0.1)
        assert questions <= 2
    assert asked == set(topics)


def nothing(frame: bytes) -> bytes:
    """A broker's answer that knows none of the topics."""
    key, _, number = struct.unpack_from(">hhi", frame)
    if key == DESCRIBE_TOPICS:
        return struct.pack(">i", number) + bytes(5) + b"\2" + struct.pack(">h", UNKNOWN_TOPIC) + b"\1" + bytes(24)
    return struct.pack(">iii", number, 0, 0)


def test_the_clients_own_questions_are_its_own() -> None:
    rig = Rig().known()
    message = ApiVersionsRequest(client_software_name="c", client_software_version="1", version=3)
    frame: Buffer = encode(message, 7, "producer")
    assert rig.answers.asked(frame, None, 0.0) == [frame]
    rig.answers.answered(struct.pack(">i", 7) + b"whatever", 0.0)
    assert rig.answers.ready(0.0) == (struct.pack(">i", 7) + b"whatever", None)


@pytest.mark.parametrize("frame", [struct.pack(">i", 8), b"\0\0\0"])
def test_an_answer_to_another_request_than_the_next_one_is_not_understood(frame: bytes) -> None:
    rig = Rig().known()
    assert rig.send(7) == 1
    assert rig.send(8) == 1
    with pytest.raises(MalformedFrameError, match="does not belong to the next request"):
        rig.answers.answered(frame, rig.now_s)
    rig.answers.close()
    assert not rig.replication.taken_bytes


@pytest.mark.parametrize("version", [9, 13])
def test_a_broker_that_throttles_the_questions_is_asked_no_more(version: int) -> None:
    rig = Rig(version).known()
    appended(rig)
    rig.leader.throttle_ms, rig.leader.high_watermark = 3000, 10
    rig.ask(SUSPECTED_S / 2)
    assert rig.told() == (NO_ERROR, 0)
    assert rig.send(2) == -1
    assert rig.ways[-1] is AckRoute.THROTTLED


def test_the_time_for_which_an_answer_waited_behind_another_counts_as_throttled_too() -> None:
    rig = Rig().known()
    appended(rig)
    assert rig.send(2, acks=1) == 1
    rig.append(2, 10, throttle_ms=1000)
    rig.leader.high_watermark = 10
    rig.ask(0.25)
    assert [rig.told(), rig.told()] == [(NO_ERROR, 0), (NO_ERROR, 750)]


def test_a_login_meets_no_question() -> None:
    # a broker that was sent SaslHandshake takes SaslAuthenticate alone, and ends the connection otherwise
    handshake, authenticate = (struct.pack(">hhih", key, 1, 2, -1) for key in (17, 36))
    rig = Rig()
    assert rig.send(1) == -1
    (asked,) = rig.answers.to_broker(0.0)
    assert rig.answers.asked(handshake, None, 0.0) is None, "while something is asked"
    rig.append(1, 0)
    assert rig.told() == (NO_ERROR, 0)
    assert rig.answers.asked(handshake, None, 0.0) is None
    rig.answers.answered(rig.leader.answer(asked), 0.0)
    assert rig.answers.asked(handshake, None, 0.0) == [handshake]
    assert rig.answers.to_broker(1.0) == []
    assert rig.answers.deadline_s is None, "or the agent would look for something to ask again and again"
    assert rig.answers.asked(authenticate, None, 1.0) == [authenticate]
    assert rig.answers.to_broker(1.0) == []
    assert rig.send(2) == -1
    assert rig.answers.to_broker(2.0)


def test_a_login_that_waits_for_what_is_held_keeps_nothing_from_being_asked() -> None:
    rig = Rig().known()
    assert rig.send(1) == 1
    handshake = struct.pack(">hhih", 17, 1, 2, -1)
    assert rig.answers.asked(handshake, None, rig.now_s) is None
    rig.append(1, 5)
    assert rig.answers.asked(handshake, None, rig.now_s) is None
    rig.leader.high_watermark = 10
    rig.ask(0.1)
    assert rig.told() == (NO_ERROR, 0)
    assert rig.answers.asked(handshake, None, rig.now_s) == [handshake]
