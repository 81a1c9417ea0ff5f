"""When a connection's EndTxn answers go on, with kafka-python's codec as the client and the coordinator."""

import pytest

from gateway.durable.durable_logs import Verdict
from gateway.durable.held_answers import MAX_ANSWERS, ProduceRefusedError
from gateway.durable.held_transactions import HELD_S
from gateway.durable.transaction_frames import scan_description
from replication.wire.kafka_frame import MalformedFrameError
from tests.gateway.durable.test_held_answers import NO_ERROR, OTHER, TOPIC, Rig
from tests.gateway.durable.transaction_frames import (
    EPOCH,
    PRODUCER_ID,
    TRANSACTIONAL_ID,
    VERSIONS,
    asked_to_describe,
    description,
    end_txn,
    end_txn_answer,
    told,
)

LOADING, NOT_COORDINATOR, CONCURRENT, FENCED = 14, 16, 51, 90
OWN = (TOPIC, 0)


class Ending:
    """One EndTxn on a connection, of a transaction with these partitions."""

    def __init__(self, *partitions: tuple[str, int], version: int = 4, state: str = "Ongoing", error: int = 0) -> None:
        self.rig = Rig()
        self.version = version
        before, _ = self.rig.answers.asked(end_txn(version, 1), 0.0) or []
        self.first_number, *self.first_asked = asked_to_describe(before)
        self.rig.answers.answered(description(self.first_number, state, partitions, error), 0.0)

    def answered(self, error: int = 0) -> bytes:
        frame = end_txn_answer(self.version, 1, error)
        self.rig.answers.answered(frame, 0.0)
        return frame

    def polled(self, state: str, *partitions: tuple[str, int], error: int = 0, now_s: float = 0.0) -> None:
        [asked] = self.rig.answers.to_broker(now_s)
        number, *what = asked_to_describe(asked)
        assert what == self.first_asked
        self.rig.answers.answered(description(number, state, partitions, error), now_s)

    def stored(self) -> None:
        self.rig.waits[-1][1]()

    def told(self, now_s: float = 0.0) -> tuple[int, int | None, int | None]:
        frame = self.rig.ready(now_s)
        assert frame is not None
        return told(frame, self.version)


def test_a_client_that_logs_in_again_waits_until_the_coordinator_need_not_be_asked() -> None:
    # the coordinator that got SaslHandshake ends the connection at anything but SaslAuthenticate
    ending, handshake = Ending(OWN), bytes((0, 17, 0, 1, 0, 0, 0, 2, 255, 255))
    asked = ending.rig.answers.asked
    assert asked(handshake, 0.0) is None
    ending.answered()
    assert asked(handshake, 0.0) is None
    ending.polled("CompleteCommit")
    ending.stored()
    ending.told()
    assert asked(handshake, 0.0) == [handshake]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("client_id", ["producer", None])
def test_the_coordinator_is_asked_for_the_partitions_before_the_end(version: int, client_id: str | None) -> None:
    rig = Rig()
    before, _ = rig.answers.asked(end_txn(version, 1, client_id=client_id), 0.0) or []
    number, client, asked = asked_to_describe(before)
    assert (client, asked) == (client_id, [TRANSACTIONAL_ID])
    assert number < 0


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_goes_on_unchanged_once_all_markers_are_written_and_stored(version: int) -> None:
    ending = Ending(OWN, (OTHER, 3), version=version)
    frame = ending.answered()
    assert ending.rig.ready() is None
    ending.polled("PrepareCommit", OWN)
    assert not ending.rig.waits
    assert ending.rig.answers.deadline_s == pytest.approx(0.002)
    ending.polled("CompleteCommit", now_s=0.002)
    assert [wanted for wanted, _ in ending.rig.waits] == [frozenset({OWN, (OTHER, 3)})]
    assert ending.rig.ready(1.0) is None
    before = ending.rig.woken
    ending.stored()
    assert ending.rig.woken == before + 1
    assert ending.rig.ready(1.0) == frame
    assert ending.rig.transaction_verdicts == [Verdict.STORED]


def test_an_abort_waits_as_well() -> None:
    ending = Ending(OWN)
    ending.answered()
    ending.polled("PrepareAbort", OWN)
    ending.polled("CompleteAbort", now_s=1.0)
    assert ending.rig.ready(1.0) is None
    ending.stored()
    assert ending.told(1.0)[0] == NO_ERROR


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_stored_in_time_is_told_to_be_tried_again(version: int) -> None:
    ending = Ending(OWN, version=version)
    ending.answered()
    ending.polled("CompleteCommit")
    assert ending.rig.answers.deadline_s == HELD_S
    assert ending.rig.ready(HELD_S - 0.1) is None
    nobody = (-1, -1) if version >= 5 else (None, None)
    assert ending.told(HELD_S) == (LOADING, *nobody)
    assert ending.rig.transaction_verdicts == [Verdict.TIMED_OUT]
    assert len(ending.rig.let_go) == 1


def test_an_end_that_is_repeated_waits_for_all_durable_logs_and_tells_what_the_coordinator_said() -> None:
    ending = Ending(version=5, state="CompleteCommit")
    ending.answered()
    ending.polled("CompleteCommit")
    assert [wanted for wanted, _ in ending.rig.waits] == [None]
    ending.stored()
    assert ending.told() == (NO_ERROR, PRODUCER_ID, EPOCH + 1)


def test_where_partitions_cannot_be_told_all_durable_logs_are_waited_for() -> None:
    ending = Ending(state="", error=53)
    ending.answered()
    ending.polled("CompleteCommit", OWN)
    assert [wanted for wanted, _ in ending.rig.waits] == [None]


def test_partitions_that_are_told_of_later_are_waited_for_too() -> None:
    ending = Ending(OWN)
    ending.answered()
    ending.polled("PrepareCommit", (TOPIC, 1))
    ending.polled("CompleteCommit", now_s=1.0)
    assert [wanted for wanted, _ in ending.rig.waits] == [frozenset({OWN, (TOPIC, 1)})]


@pytest.mark.parametrize("partitions", [[], [(OTHER, 0), ("__consumer_offsets", 7)]])
def test_a_transaction_without_durable_topics_is_not_held(partitions: list[tuple[str, int]]) -> None:
    ending = Ending(*partitions)
    frame = ending.answered()
    assert ending.rig.ready() == frame
    assert not ending.rig.answers.to_broker(100.0)
    assert not ending.rig.transaction_verdicts


def test_a_producer_that_has_done_nothing_is_not_held() -> None:
    ending = Ending(state="Empty")
    frame = ending.answered()
    assert ending.rig.ready() == frame


@pytest.mark.parametrize("error", [CONCURRENT, FENCED])
def test_errors_go_through_at_once(error: int) -> None:
    ending = Ending(OWN)
    ending.answered(error)
    assert ending.told()[0] == error
    assert not ending.rig.answers.to_broker(1.0)


def test_a_coordinator_that_is_none_any_more_sends_the_client_to_the_next() -> None:
    ending = Ending(OWN)
    ending.answered()
    ending.polled("", error=NOT_COORDINATOR)
    assert ending.told()[0] == NOT_COORDINATOR
    assert ending.rig.transaction_verdicts == [Verdict.NOT_LED]


def test_states_that_are_not_known_are_asked_for_again_ever_less_often() -> None:
    ending = Ending(OWN)
    ending.answered()
    now_s, waits = 0.0, []
    for _ in range(8):
        ending.polled("PrepareSomethingNew", now_s=now_s)
        deadline_s = ending.rig.answers.deadline_s
        assert deadline_s is not None
        assert not ending.rig.answers.to_broker(deadline_s - 0.001)
        waits.append(round(deadline_s - now_s, 3))
        now_s = deadline_s
    assert waits == [0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.1, 0.1]


def test_while_durable_topics_are_not_known_all_transactions_wait() -> None:
    ending = Ending((OTHER, 0))
    rig = Rig(is_known=False)
    ending.rig = rig
    before, _ = rig.answers.asked(end_txn(4, 1), 0.0) or []
    number, *ending.first_asked = asked_to_describe(before)
    rig.answers.answered(description(number, "Ongoing", [(OTHER, 0)]), 0.0)
    ending.answered()
    ending.polled("CompleteCommit")
    assert len(rig.waits) == 1
    assert rig.ready() is None


def test_what_comes_behind_a_held_answer_waits_for_it() -> None:
    ending = Ending(OWN)
    first = ending.answered()
    second = b"\x00\x00\x00\x07something"
    ending.rig.answers.answered(second, 0.0)
    ending.polled("CompleteCommit")
    assert ending.rig.ready() is None
    ending.stored()
    assert [ending.rig.ready() for _ in range(3)] == [first, second, None]


def test_however_much_is_held_the_coordinators_word_is_taken_in() -> None:
    ending = Ending(OWN)
    first = ending.answered()
    for _ in range(MAX_ANSWERS):
        ending.rig.answers.answered(b"\x00\x00\x00\x07something", 0.0)
    answers = ending.rig.answers
    assert (answers.is_busy, answers.is_full) == (True, False)
    ending.polled("CompleteCommit")
    assert (answers.is_busy, answers.is_full) == (True, True)
    ending.stored()
    assert ending.rig.ready() == first


def test_a_description_that_comes_too_late_is_nobodys() -> None:
    ending = Ending(OWN)
    ending.answered()
    [asked] = ending.rig.answers.to_broker(0.0)
    assert ending.told(HELD_S)[0] == LOADING
    ending.rig.answers.answered(description(asked_to_describe(asked)[0], "CompleteCommit"), HELD_S)
    assert ending.rig.ready(HELD_S) is None
    assert not ending.rig.waits


def test_a_connection_that_ends_waits_for_nothing() -> None:
    ending = Ending(OWN)
    ending.answered()
    ending.polled("CompleteCommit")
    ending.rig.answers.close()
    assert len(ending.rig.let_go) == 1
    assert ending.rig.ready(HELD_S) is None


def test_a_version_that_is_not_known_is_refused() -> None:
    rig = Rig()
    frame = bytearray(end_txn(5, 1))
    frame[3] = 6
    with pytest.raises(ProduceRefusedError):
        rig.answers.asked(bytes(frame), 0.0)


def test_a_request_that_is_cut_off_is_refused() -> None:
    with pytest.raises(ProduceRefusedError):
        Rig().answers.asked(end_txn(5, 1)[:-9], 0.0)


def test_one_correlation_id_stands_for_one_request() -> None:
    rig = Rig()
    rig.ask(1)
    with pytest.raises(ProduceRefusedError):
        rig.answers.asked(end_txn(5, 1), 0.0)


def test_where_no_topic_is_durable_nothing_is_asked() -> None:
    rig = Rig(is_known=False)
    rig.logs.topics_known(frozenset(), {})
    assert rig.answers.asked(end_txn(5, 1), 0.0) == [end_txn(5, 1)]


def test_no_cut_of_a_description_is_understood() -> None:
    whole = description(-2, "Ongoing", [OWN, (OTHER, 3)])
    assert scan_description(whole).partitions == {OWN, (OTHER, 3)}
    for end in range(len(whole) - 3):
        with pytest.raises(MalformedFrameError):
            scan_description(whole[:end])
