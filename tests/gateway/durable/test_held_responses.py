"""When a connection's Produce answers go on, with kafka-python's codec as the client and the broker."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.producer import ProduceResponse

from gateway.durable.durable_logs import DurableLogs, Verdict
from gateway.durable.held_responses import HELD_SHARE, MAX_RESPONSES, HeldResponses, ProduceRefusedError
from gateway.durable.produce_response import scan_produce_response
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from replication.wire.kafka_frame import MalformedFrameError
from rlm.write_path.assignment import Assignment
from tests.gateway.produce.produce_frames import TIMEOUT_MS, TOPIC_ID, produce, produced
from tests.kafka_log.batches import batch

VERSIONS = (3, 5, 7, 8, 9, 10, 12, 13)
TOPIC, OTHER = "topic", "other"
OTHER_ID = TopicId(bytes(range(2, 18)))
IDS = {TOPIC: TOPIC_ID, OTHER: OTHER_ID}
NAMES = {id_: name for name, id_ in IDS.items()}
DURABLE = SettingsTable({TOPIC: TopicSettings(True, durable=True)})
LATE_S = TIMEOUT_MS / 1000 * HELD_SHARE
NO_ERROR, NOT_LEADER, TIMED_OUT, TOO_LARGE, POLICY_VIOLATION, DUPLICATE = 0, 6, 7, 10, 44, 46
LOG = TopicIdPartition(TOPIC_ID, 0)


def assignment(log: TopicIdPartition = LOG, topic: str = TOPIC) -> Assignment:
    return Assignment(log, topic, Path("log"), LinkPolicy.COST, 20, is_durable=True)


class Rig:
    """One connection, and the logs of an agent that leads partition 0 of the durable topic."""

    def __init__(self, version: int = 13, *, is_known: bool = True) -> None:
        self.version = version
        self.published: dict[TopicIdPartition, int] = {LOG: 100}
        self.asked_for: list[TopicIdPartition] = []
        self.woken = self.asked_anew = 0
        self.verdicts: list[Verdict] = []
        self.refused = 0
        self.logs = DurableLogs(self._ask_anew)
        if is_known:
            self.logs.topics_known(DURABLE, NAMES)
            self.logs.assigned([assignment()])
            self.logs.logs_arrived(self)
        self.answers = self.connection()
        self.sent = 0

    def connection(self) -> HeldResponses[None]:
        return HeldResponses(self.logs, self._wake, self)

    # Told.

    def ended(self, verdict: Verdict, _held_s: float) -> None:
        self.verdicts.append(verdict)

    def transaction_refused(self) -> None:
        self.refused += 1

    def _ask_anew(self) -> None:
        self.asked_anew += 1

    def _wake(self) -> None:
        self.woken += 1

    def published_offset(self, log: TopicIdPartition) -> int | None:
        return self.published.get(log)

    def awaited(self, log: TopicIdPartition) -> None:
        self.asked_for.append(log)

    def is_same_log(self, _log: TopicIdPartition) -> bool:
        return True

    def publish(self, offset: int, log: TopicIdPartition = LOG) -> None:
        self.published[log] = offset
        self.logs.look(log)

    def ask(self, number: int, *topics: str, records: int = 5, acks: int = 1, now_s: float = 0.0) -> None:
        self.answers.asked(self.request(number, *topics, records=records, acks=acks), None, now_s)

    def request(
        self, number: int, *topics: str, records: int = 5, acks: int = 1, transactional_id: str | None = None
    ) -> bytes:
        return produce(
            {0: batch(0, records, -1, b"r")},
            version=self.version,
            correlation_id=number,
            acks=acks,
            transactional_id=transactional_id,
            topics={name: IDS[name] for name in topics or (TOPIC,)},
        )

    def answer(self, number: int, *outcomes: tuple[str, int, int], now_s: float = 0.0) -> bytes:
        """Topic, error and base offset of each."""
        frame = self.made(number, *outcomes)
        self.answers.answered(frame, now_s)
        return frame

    def made(self, number: int, *outcomes: tuple[str, int, int]) -> bytes:
        each = [(name, IDS[name], [(error, base_offset)]) for name, error, base_offset in outcomes]
        return produced(each, version=self.version, correlation_id=number)

    def ready(self, now_s: float = 0.0) -> bytes | None:
        found = self.answers.ready(now_s)
        return None if found is None else bytes(found[0])

    def told(self, frame: bytes | None) -> list[tuple[str, int, int]]:
        assert frame is not None
        message: Any = ProduceResponse.decode(frame, version=self.version, header=True)
        assert message.throttle_time_ms == 0
        names = {uuid.UUID(bytes=id_): name for name, id_ in IDS.items()}
        return [
            (names[topic.topic_id] if self.version >= 13 else topic.name, one.error_code, one.base_offset)
            for topic in message.responses
            for one in topic.partition_responses
        ]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_goes_on_unchanged_once_its_records_are_stored(version: int) -> None:
    rig = Rig(version)
    rig.ask(1)
    frame = rig.answer(1, (TOPIC, NO_ERROR, 100))
    assert rig.ready() is None
    rig.publish(104)
    assert rig.ready() is None
    before = rig.woken
    rig.publish(105)
    assert (before, rig.woken) == (0, 1)
    assert rig.ready() == frame
    assert rig.verdicts == [Verdict.STORED]
    assert not rig.logs.waiting


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_stored_in_time_is_told_to_be_tried_again(version: int) -> None:
    rig = Rig(version)
    rig.ask(1, now_s=10.0)
    rig.answer(1, (TOPIC, NO_ERROR, 100), now_s=11.0)
    assert rig.answers.deadline_s == pytest.approx(10.0 + LATE_S)
    assert rig.ready(10.0 + LATE_S - 0.1) is None
    assert rig.told(rig.ready(10.0 + LATE_S)) == [(TOPIC, TIMED_OUT, -1)]
    assert rig.verdicts == [Verdict.TIMED_OUT]
    assert not rig.logs.waiting


@pytest.mark.parametrize("version", VERSIONS)
def test_of_several_partitions_only_those_of_durable_topics_are_waited_for(version: int) -> None:
    rig = Rig(version)
    rig.ask(1, OTHER, TOPIC)
    rig.answer(1, (OTHER, NO_ERROR, 7), (TOPIC, NO_ERROR, 100))
    assert rig.ready() is None
    assert rig.told(rig.ready(LATE_S)) == [(OTHER, NO_ERROR, 7), (TOPIC, TIMED_OUT, -1)]
    rig.ask(2, OTHER)
    frame = rig.answer(2, (OTHER, NO_ERROR, 12))
    assert rig.ready() == frame


def test_a_duplicate_waits_for_the_original() -> None:
    rig = Rig()
    for number in (1, 2):
        rig.ask(number)
        rig.answer(number, (TOPIC, NO_ERROR, 100))
    assert rig.ready() is None
    rig.publish(105)
    assert rig.told(rig.ready()) == rig.told(rig.ready()) == [(TOPIC, NO_ERROR, 100)]


def test_a_duplicate_of_which_nobody_knows_the_offset_is_no_success() -> None:
    rig = Rig()
    rig.ask(1)
    rig.answer(1, (TOPIC, DUPLICATE, -1))
    assert rig.told(rig.ready()) == [(TOPIC, TIMED_OUT, -1)]


def test_what_comes_behind_a_held_answer_waits_for_it() -> None:
    rig = Rig()
    rig.ask(1)
    first = rig.answer(1, (TOPIC, NO_ERROR, 100))
    rig.ask(2)
    second = rig.answer(2, (TOPIC, TOO_LARGE, -1))
    rig.answers.asked(b"\0\3" + bytes(2) + (3).to_bytes(4, "big"), None, 0.0)
    of_metadata = (3).to_bytes(4, "big") + b"something"
    rig.answers.answered(of_metadata, 0.0)
    assert rig.ready() is None
    rig.publish(105)
    assert [rig.ready() for _ in range(4)] == [first, second, of_metadata, None]


@pytest.mark.parametrize("how", ["released", "truncated", "elsewhere"])
def test_a_change_of_leadership_is_never_success(how: str) -> None:
    rig = Rig()
    rig.ask(1)
    rig.answer(1, (TOPIC, NO_ERROR, 100))
    if how == "released":
        rig.logs.released(LOG)
    elif how == "truncated":
        rig.logs.cut(LOG, 104)
    else:
        rig.logs.assigned([])
    rig.publish(200)
    assert rig.told(rig.ready()) == [(TOPIC, NOT_LEADER, -1)]


def test_records_behind_a_damaged_batch_are_never_acknowledged_though_uploads_go_on_behind_them() -> None:
    rig = Rig()
    rig.logs.unreadable(LOG, 90, 105)
    rig.publish(200)
    rig.ask(1)
    rig.answer(1, (TOPIC, NO_ERROR, 100))
    rig.ask(2)
    rig.answer(2, (TOPIC, NO_ERROR, 105))
    assert rig.ready() is None
    assert rig.told(rig.ready(LATE_S)) == [(TOPIC, TIMED_OUT, -1)]
    assert rig.told(rig.ready()) == [(TOPIC, NO_ERROR, 105)]


def test_a_log_that_is_cut_behind_the_records_holds_them_still() -> None:
    rig = Rig()
    rig.ask(1)
    rig.answer(1, (TOPIC, NO_ERROR, 100))
    rig.logs.cut(LOG, 105)
    assert rig.ready() is None


def test_while_topics_are_not_known_all_wait() -> None:
    rig = Rig(is_known=False)
    rig.ask(1, OTHER)
    frame = rig.answer(1, (OTHER, NO_ERROR, 7))
    rig.ask(2)
    rig.answer(2, (TOPIC, NO_ERROR, 100))
    assert rig.ready() is None
    rig.logs.topics_known(DURABLE, NAMES)
    rig.logs.logs_arrived(rig)
    assert rig.ready() == frame
    assert rig.ready() is None
    assert rig.asked_anew
    rig.logs.assigned([assignment()])
    assert rig.ready() is None
    rig.publish(105)
    assert rig.told(rig.ready()) == [(TOPIC, NO_ERROR, 100)]


def test_a_partition_that_is_not_known_to_be_led_yet_is_waited_for() -> None:
    rig = Rig()
    rig.logs.assigned([])
    rig.ask(1)
    rig.answer(1, (TOPIC, NO_ERROR, 100))
    rig.publish(105)
    assert rig.ready() is None
    rig.logs.assigned([assignment()])
    assert rig.told(rig.ready()) == [(TOPIC, NO_ERROR, 100)]


def test_where_no_topic_is_durable_nothing_is_held_or_refused() -> None:
    rig = Rig(is_known=False)
    rig.logs.topics_known(SettingsTable(), {})
    assert not rig.logs.may_hold
    assert rig.answers.asked(unknown := b"\x00\x00\x00\x63" + bytes(20), None, 0.0) == [unknown]
    rig.answers.close()
    rig.ask(1)
    frame = rig.answer(1, (TOPIC, NO_ERROR, 100))
    assert rig.ready() == frame


@pytest.mark.parametrize("version", [2, 14])
def test_a_request_of_an_unknown_version_is_refused(version: int) -> None:
    rig = Rig()
    with pytest.raises(ProduceRefusedError):
        rig.answers.asked(b"\x00\x00" + version.to_bytes(2, "big") + bytes(20), None, 0.0)


def test_records_that_are_not_understood_are_never_acknowledged() -> None:
    rig = Rig(version=7)
    frame = bytearray(rig.request(1))
    records = batch(0, 5, -1, b"r")
    frame[frame.index(records) + 16] = 1  # magic
    rig.answers.asked(bytes(frame), None, 0.0)
    rig.answer(1, (TOPIC, NO_ERROR, 100))
    rig.publish(1000)
    assert rig.told(rig.ready()) == [(TOPIC, TIMED_OUT, -1)]


def test_an_answer_that_is_cut_off_is_refused() -> None:
    rig = Rig()
    rig.ask(1)
    frame = rig.made(1, (TOPIC, NO_ERROR, 100))
    with pytest.raises(MalformedFrameError):
        rig.answers.answered(frame[:-3], 0.0)


def test_requests_with_acks_0_have_no_answer() -> None:
    rig = Rig()
    rig.ask(1, acks=0)
    rig.ask(1, OTHER)
    frame = rig.answer(1, (OTHER, NO_ERROR, 100))
    assert rig.ready() == frame


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_of_a_transaction_for_a_durable_topic_is_refused_in_its_turn(version: int) -> None:
    rig = Rig(version)
    rig.ask(1)
    refused = rig.request(2, OTHER, TOPIC, acks=-1, transactional_id="t")
    assert rig.answers.asked(refused, None, 0.0) == [], "the broker does not get it"
    rig.ask(3, OTHER)
    first = rig.answer(1, (TOPIC, TOO_LARGE, -1))
    assert rig.ready() == first
    told = rig.ready()
    assert rig.told(told) == [(OTHER, POLICY_VIOLATION, -1), (TOPIC, POLICY_VIOLATION, -1)]
    assert (b"durable topics take no transactions" in (told or b"")) is (version >= 8)
    third = rig.answer(3, (OTHER, NO_ERROR, 7))
    assert rig.ready() == third
    assert rig.answers.asked(refused, None, 0.0) == []
    assert rig.told(rig.ready()) == rig.told(told), "at once, as nothing is before it"
    assert (rig.refused, rig.logs.waiting, rig.answers.held_bytes) == (2, 0, 0)


def test_a_request_of_a_transaction_goes_to_the_broker_if_its_topics_are_known_not_to_be_durable() -> None:
    rig = Rig()
    asked = rig.request(1, OTHER, acks=-1, transactional_id="t")
    assert rig.answers.asked(asked, None, 0.0) == [asked]
    frame = rig.answer(1, (OTHER, NO_ERROR, 7))
    assert rig.ready() == frame


@pytest.mark.parametrize("is_known", [True, False])
def test_a_request_of_a_transaction_is_to_be_tried_again_while_its_topic_or_the_settings_are_not_known(
    is_known: bool,
) -> None:
    rig = Rig(is_known=is_known)
    if is_known:
        rig.logs.topics_known(DURABLE, {})
    assert rig.answers.asked(rig.request(1, OTHER, acks=-1, transactional_id="t"), None, 0.0) == []
    assert rig.told(rig.ready()) == [(OTHER, NOT_LEADER, -1)]
    assert (rig.asked_anew, rig.refused) == (1, 0)


def test_a_request_of_a_transaction_that_cannot_be_answered_ends_the_connection() -> None:
    rig = Rig()
    with pytest.raises(ProduceRefusedError):
        rig.answers.asked(rig.request(1, acks=0, transactional_id="t"), None, 0.0)


def test_what_is_held_is_bounded() -> None:
    rig = Rig()
    for number in range(MAX_RESPONSES):
        assert not rig.answers.is_full
        rig.ask(number)
        assert rig.answers.is_busy is False
        rig.answer(number, (TOPIC, NO_ERROR, 100))
    assert rig.answers.is_full
    assert rig.logs.waiting == MAX_RESPONSES
    rig.answers.close()
    assert not rig.logs.waiting
    assert rig.answers.held_bytes == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answers_partitions_are_read_where_they_stand(version: int) -> None:
    rig = Rig(version)
    frame = rig.made(1, (OTHER, TOO_LARGE, -1), (TOPIC, NO_ERROR, 2**40))
    found = scan_produce_response(frame, version).partitions
    names = [IDS[name] if version >= 13 else name for name in (OTHER, TOPIC)]
    assert [(one.topic, one.partition, one.error, one.base_offset) for one in found] == [
        (names[0], 0, TOO_LARGE, -1),
        (names[1], 0, NO_ERROR, 2**40),
    ]
