"""Moves against a controller that answers in any order, late, or not as asked."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.reassignment.moves import (
    ENDS,
    Action,
    BeginAtLocalLog,
    BeginAtTier,
    CancelMoves,
    ClusterView,
    ElectPreferred,
    MoveRequest,
    MoveState,
    Phase,
    Reassignment,
    ReassignmentLimits,
    Submit,
    UploadTails,
)
from recovery.reassignment.plan import Move, PartitionReplicas, TopicPartition

LIMITS = ReassignmentLimits(max_moves=2)


def where(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def request(number: int, *, tail: bool = False, phase: Phase = Phase.USUAL) -> MoveRequest:
    return MoveRequest(Move(where(number), (1, 2), (3, 2)), tail, phase)


@dataclass
class Controller:
    """Kafka's side: what is listed, and the replicas that brokers show."""

    moves: dict[TopicPartition, Move]
    listed: set[TopicPartition] = field(default_factory=set)
    replicas: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    leaders: dict[TopicPartition, int] = field(default_factory=dict)
    begins_at_tier: bool = True
    unshown: set[TopicPartition] = field(default_factory=set)

    def finish(self, which: TopicPartition) -> None:
        if which in self.listed:
            self.listed.remove(which)
            self.replicas[which] = self.moves[which].after
            self.leaders[which] = 2

    def view(self) -> ClusterView:
        shown = {
            which: PartitionReplicas(which, self.leaders.get(which, 1), replicas, frozenset(replicas))
            for which, move in self.moves.items()
            for replicas in [self.replicas.get(which, move.before)]
            if which not in self.unshown
        }
        return ClusterView(frozenset(self.listed), shown)


class Play:
    """A reassignment with its controller, in virtual time. Every tail is uploaded, every move accepted."""

    def __init__(self, requests: list[MoveRequest], limits: ReassignmentLimits = LIMITS) -> None:
        self.reassignment = Reassignment(requests, limits)
        self.controller = Controller({one.move.topic_partition: one.move for one in requests})
        self.now_s = 0.0
        self.asked: list[object] = []

    def step(self, seconds: float = 0.1) -> None:
        self.now_s += seconds
        for action in self.reassignment.step(self.now_s):
            self.asked.append(action)
            self._do(action)
        self.reassignment.note_view(self.controller.view(), self.now_s)

    def _do(self, action: Action) -> None:
        match action:
            case UploadTails(partitions):
                for which in partitions:
                    self.reassignment.tail_uploaded(which, self.now_s)
            case Submit(moves):
                for move in moves:
                    self.controller.listed.add(move.topic_partition)
                    self.reassignment.submitted(move.topic_partition, None, self.now_s)
            case ElectPreferred(partitions):
                self.controller.leaders |= {which: self.controller.moves[which].after[0] for which in partitions}
            case CancelMoves(partitions):
                self.controller.listed -= set(partitions)
            case BeginAtLocalLog():
                self.controller.begins_at_tier = False
                self.reassignment.begun_at_local_log()
            case BeginAtTier():
                self.controller.begins_at_tier = True

    def begins_at_tier(self) -> bool:
        return self.controller.begins_at_tier

    def state(self, number: int) -> MoveState:
        return self.reassignment.progress[where(number)].state


def test_a_move_uploads_submits_waits_and_elects() -> None:
    play = Play([request(0, tail=True)])
    play.step()
    play.step()
    assert play.state(0) is MoveState.CATCHING_UP
    play.controller.finish(where(0))
    play.step()
    assert play.state(0) is MoveState.ELECTING
    play.step()
    assert play.state(0) is MoveState.DONE
    assert [type(action) for action in play.asked] == [UploadTails, Submit, ElectPreferred]
    assert play.reassignment.is_over


def test_a_tail_that_is_not_uploaded_in_time_fails_the_move_before_it_began() -> None:
    reassignment = Reassignment([request(0, tail=True)], LIMITS)
    assert reassignment.step(0.0) == [UploadTails((where(0),))]
    assert reassignment.step(10.0) == []
    assert reassignment.progress[where(0)].state is MoveState.FAILED
    assert "tail" in reassignment.progress[where(0)].reason


def test_what_the_controller_refuses_has_failed_with_its_reason() -> None:
    reassignment = Reassignment([request(0)], LIMITS)
    assert isinstance(reassignment.step(0.0)[0], Submit)
    reassignment.submitted(where(0), "INVALID_REPLICA_ASSIGNMENT", 0.1)
    one = reassignment.progress[where(0)]
    assert (one.state, one.reason) == (MoveState.FAILED, "INVALID_REPLICA_ASSIGNMENT")


def test_brokers_that_show_the_old_replicas_for_a_moment_do_not_end_a_move() -> None:
    play = Play([request(0)])
    play.step()
    play.controller.listed.clear()  # over, and no broker knows it yet
    play.step(LIMITS.stale_s - 0.2)
    assert play.state(0) is MoveState.CATCHING_UP
    play.controller.replicas[where(0)] = (3, 2)
    play.controller.leaders[where(0)] = 3
    play.step()
    assert play.state(0) is MoveState.DONE


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_partition_that_brokers_do_not_show_was_not_taken_back(comes_back: bool) -> None:
    play = Play([request(0)])
    play.step()
    play.controller.finish(where(0))
    play.controller.leaders[where(0)] = 3
    play.controller.unshown.add(where(0))
    play.step()
    play.step(LIMITS.unshown_s - 1)
    assert play.state(0) is MoveState.CATCHING_UP
    if comes_back:
        play.controller.unshown.clear()
    play.step(1)
    assert play.state(0) is (MoveState.DONE if comes_back else MoveState.FAILED)


def test_a_move_that_somebody_else_took_back_is_cancelled() -> None:
    play = Play([request(0)])
    play.step()
    play.controller.listed.clear()
    play.step()
    play.step(LIMITS.stale_s)
    assert play.state(0) is MoveState.CANCELLED
    assert play.reassignment.progress[where(0)].reason == "cancelled by somebody else"


def test_cancelling_takes_back_what_is_under_way_and_begins_nothing_more() -> None:
    play = Play([request(number) for number in range(4)])
    play.step()
    play.reassignment.cancel(play.now_s)
    for _ in range(3):
        play.step(LIMITS.stale_s)
    assert [play.state(number) for number in range(4)] == [MoveState.CANCELLED] * 4
    assert sum(len(action.moves) for action in play.asked if isinstance(action, Submit)) == 2


def test_partitions_with_nothing_local_move_last_while_replicas_begin_at_the_local_log() -> None:
    play = Play([request(0, phase=Phase.TIERED), request(1), request(2)])
    play.step()
    assert play.controller.listed == {where(1), where(2)}
    assert play.begins_at_tier()
    play.controller.finish(where(1))
    for _ in range(3):
        play.step()
    assert play.controller.listed == {where(2)}, "the other one is not over yet"
    play.controller.finish(where(2))
    for _ in range(4):
        play.step()
    assert play.controller.listed == {where(0)}
    assert not play.begins_at_tier()
    assert BeginAtLocalLog((3,)) in play.asked
    play.controller.finish(where(0))
    for _ in range(4):
        play.step()
    assert play.begins_at_tier()
    assert play.reassignment.is_over


def test_an_election_that_never_happens_is_told_again_and_then_fails() -> None:
    reassignment = Reassignment([request(0)], LIMITS)
    reassignment.step(0.0)
    reassignment.submitted(where(0), None, 0.0)
    shown = {where(0): PartitionReplicas(where(0), 2, (3, 2), frozenset({2, 3}))}
    told = 0
    for tenth in range(1, 320):
        reassignment.note_view(ClusterView(frozenset(), shown), tenth / 10)
        told += sum(isinstance(action, ElectPreferred) for action in reassignment.step(tenth / 10))
    assert told > 20
    assert reassignment.progress[where(0)].state is MoveState.FAILED


def test_the_table_knows_no_way_out_of_an_end() -> None:
    play = Play([request(0, tail=True)])
    play.reassignment.cancel(0.0)
    play.controller.finish(where(0))
    play.reassignment.tail_uploaded(where(0), 1.0)
    play.reassignment.submitted(where(0), None, 1.0)
    play.reassignment.submitted(where(0), "too late", 1.0)
    play.step(1000.0)
    assert not play.asked
    assert play.reassignment.progress[where(0)].state is MoveState.CANCELLED


@given(st.data())
def test_whatever_happens_no_more_than_allowed_are_under_way_and_all_come_to_an_end(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    play = Play(
        [
            request(number, tail=data.draw(st.booleans()), phase=data.draw(st.sampled_from(Phase)))
            for number in range(count)
        ]
    )
    for _ in range(data.draw(st.integers(0, 40))):
        event = data.draw(st.sampled_from(["finish", "cancel elsewhere", "cancel", "late", "step"]))
        which = where(data.draw(st.integers(0, count - 1)))
        if event == "finish":
            play.controller.finish(which)
        elif event == "cancel elsewhere":
            play.controller.listed.discard(which)
        elif event == "cancel" and data.draw(st.integers(0, 9)) == 0:
            play.reassignment.cancel(play.now_s)
        play.step(5.0 if event == "late" else 0.1)
        assert len(play.controller.listed) <= LIMITS.max_moves
    for _ in range(60 * count):
        for which in list(play.controller.listed):
            play.controller.finish(which)
        play.step(1.0)
    assert play.reassignment.is_over
    assert play.begins_at_tier()
    assert play.controller.listed == set()
    for which, one in play.reassignment.progress.items():
        assert one.state in ENDS
        if one.state is MoveState.DONE:
            assert play.controller.replicas[which] == one.move.after
            assert play.controller.leaders[which] == one.move.after[0]
        if one.state is MoveState.CANCELLED:
            assert play.controller.replicas.get(which, one.move.before) == one.move.before
