"""For what an EndTxn that is repeated waits: what its transaction had, where the agent was asked for its end before."""

import pytest

from gateway.durable.ended_transactions import EndedTransactions, Partitions
from gateway.durable.held_answers import HeldAnswers
from gateway.durable.held_transactions import HELD_S
from tests.gateway.durable.test_held_answers import OTHER, TOPIC, Rig
from tests.gateway.durable.transaction_frames import asked_to_describe, description, end_txn, end_txn_answer

OWN, SECOND = (TOPIC, 0), (TOPIC, 1)
BEGAN_MS = 1000
FENCED = 90


class Coordinator:
    """Of the one transactional id, which is asked on one connection after the other."""

    def __init__(self) -> None:
        self.rig = Rig()

    def end(self, state: str, *partitions: tuple[str, int], began_ms: int = BEGAN_MS, error: int = 0) -> HeldAnswers:
        """On a new connection, while the coordinator says this."""
        answers = self.rig.connection()
        before, _ = answers.asked(end_txn(4, 1), 0.0) or []
        answers.answered(description(asked_to_describe(before)[0], state, partitions, began_ms=began_ms), 0.0)
        answers.answered(end_txn_answer(4, 1, error), 0.0)
        return answers

    def over(self, answers: HeldAnswers, *partitions: tuple[str, int], began_ms: int = BEGAN_MS) -> Partitions | None:
        """What the last EndTxn waits for, once the coordinator calls it over, after it has told of these."""
        for now_s, state, left in ((1.0, "PrepareCommit", partitions), (2.0, "CompleteCommit", ())):
            [asked] = answers.to_broker(now_s)
            answers.answered(description(asked_to_describe(asked)[0], state, left, began_ms=began_ms), now_s)
        return self.rig.waits[-1][0]

    def stored(self, answers: HeldAnswers) -> None:
        """The markers that it waits for."""
        self.rig.waits[-1][1]()
        assert answers.ready(2.0) is not None


def test_an_end_that_is_repeated_waits_for_what_its_transaction_had() -> None:
    coordinator = Coordinator()
    first = coordinator.end("Ongoing", OWN, (OTHER, 3))
    assert coordinator.over(first, SECOND) == frozenset({OWN, (OTHER, 3), SECOND})
    assert first.ready(HELD_S) is not None, "it is told to be tried again"
    for state in ("PrepareCommit", "CompleteCommit"):
        repeated = coordinator.end(state, OWN)
        assert coordinator.over(repeated) == frozenset({OWN, (OTHER, 3), SECOND})


def test_what_was_told_to_be_stored_is_not_remembered() -> None:
    coordinator = Coordinator()
    first = coordinator.end("Ongoing", OWN)
    coordinator.over(first)
    coordinator.stored(first)
    assert coordinator.over(coordinator.end("CompleteCommit")) is None


def test_a_connection_that_ends_leaves_what_was_asked_there_to_the_next() -> None:
    coordinator = Coordinator()
    coordinator.end("Ongoing", OWN).close()
    assert coordinator.over(coordinator.end("CompleteCommit")) == frozenset({OWN})


def test_another_transaction_of_the_same_id_is_not_taken_for_it() -> None:
    coordinator = Coordinator()
    coordinator.over(coordinator.end("Ongoing", OWN))
    later_ms = BEGAN_MS + 1
    assert coordinator.over(coordinator.end("CompleteCommit", began_ms=later_ms), began_ms=later_ms) is None


def test_an_end_that_the_coordinator_refuses_tells_nothing_of_the_transaction() -> None:
    coordinator = Coordinator()
    coordinator.end("Ongoing", OWN, error=FENCED)
    assert coordinator.over(coordinator.end("CompleteCommit")) is None


def test_while_it_ends_only_what_is_remembered_is_known_to_be_all() -> None:
    coordinator = Coordinator()
    assert coordinator.over(coordinator.end("PrepareCommit", OWN)) is None


@pytest.mark.parametrize("size", [0, 2])
def test_what_is_remembered_is_bounded(size: int) -> None:
    ended = EndedTransactions(max_partitions=10)
    for number in range(100):
        ended.remember(("id", number), frozenset((TOPIC, one) for one in range(size)))
        ended.remember(("id", number), frozenset((TOPIC, one) for one in range(size)))
    kept = [number for number in range(100) if ended.partitions(("id", number)) is not None]
    assert kept == list(range(100 - 10 // max(size, 1), 100))
    ended.remember(("large", 0), frozenset((TOPIC, one) for one in range(11)))
    assert ended.partitions(("large", 0)) is None
