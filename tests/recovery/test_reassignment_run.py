"""The run against a cluster that fails to answer, and agents that answer late."""

from collections.abc import Collection, Iterable, Mapping
from typing import cast

import pytest

from recovery.errors import ReassignmentError, ReassignmentSettingError
from recovery.reassignment.admin import ReassignmentAdmin
from recovery.reassignment.moves import ClusterView, MoveState, ReassignmentLimits
from recovery.reassignment.plan import Move, PartitionReplicas, TopicPartition
from recovery.reassignment.run import ReassignmentRun, requests_of
from recovery.reassignment.tail_requests import TailRequests

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MOVES = [Move(T0, (1,), (2,)), Move(T1, (1,), (2,))]


class Cluster:
    """Moves are over at the second look after they were submitted."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls: list[str] = []
        self.fails: dict[str, int] = {}
        self.bare: frozenset[TopicPartition] = frozenset()
        self.looks: dict[TopicPartition, int] = {}
        self.asked: dict[TopicPartition, int] = {}
        self.setting_fails = False

    def _may_fail(self, what: str) -> None:
        self.calls.append(what)
        if self.fails.get(what, 0):
            self.fails[what] -= 1
            raise ReassignmentError(what, "", "no answer")

    def view(self, partitions: Collection[TopicPartition]) -> ClusterView:
        self._may_fail("view")
        self.looks = {where: looks + 1 for where, looks in self.looks.items()}
        moved = {where for where, looks in self.looks.items() if looks > 1}
        shown = {
            where: PartitionReplicas(where, 2 if where in moved else 1, (2,) if where in moved else (1,), frozenset())
            for where in partitions
        }
        return ClusterView(frozenset(self.looks) - moved, shown)

    def log_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 7)

    def without_local_data(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        return self.bare & set(partitions)

    def submit(self, moves: Iterable[Move]) -> dict[TopicPartition, str | None]:
        submitted = {move.topic_partition: None for move in moves}
        self.looks |= dict.fromkeys(submitted, 0)  # taken, whether or not the answer arrives
        self._may_fail("submit")
        return dict(submitted)

    def cancel(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str | None]:
        self._may_fail("cancel")
        for where in partitions:
            self.looks.pop(where, None)
        return {}

    def elect_preferred(self, partitions: Iterable[TopicPartition]) -> None:
        self._may_fail("elect")

    def begin_at_local_log(self, brokers: Iterable[int]) -> None:
        if self.setting_fails:
            raise ReassignmentSettingError("set", "broker 2", "not allowed")
        self._may_fail("settings asked")
        self.calls.append(f"local log {sorted(brokers)}")

    def begin_at_tier(self) -> None:
        self.calls.append("tier")

    def ask(self, log_ends: Mapping[TopicPartition, int], timeout_s: float) -> None:
        self.asked.update(log_ends)

    def stored(self) -> Iterable[TopicPartition]:
        return list(self.asked)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def run(self, uploading: Collection[str] = ()) -> ReassignmentRun:
        admin = cast(ReassignmentAdmin, self)
        requests = requests_of(MOVES, admin, uploading)
        return ReassignmentRun(
            requests,
            ReassignmentLimits(),
            admin,
            cast(TailRequests, self),
            lambda: self.now_s,
            self.wait,
        )


def test_tails_of_uploading_topics_are_asked_for_before_anything_moves() -> None:
    cluster = Cluster()
    done = cluster.run(uploading={"t"}).run()
    assert cluster.asked == {T0: 7, T1: 7}
    assert {one.state for one in done.progress.values()} == {MoveState.DONE}


def test_nobody_is_asked_for_topics_that_no_agent_uploads() -> None:
    cluster = Cluster()
    cluster.run().run()
    assert cluster.asked == {}


def test_a_cluster_that_does_not_answer_for_a_while_changes_nothing() -> None:
    cluster = Cluster()
    cluster.fails = {"view": 30, "submit": 1}
    done = cluster.run().run()
    assert {one.state for one in done.progress.values()} == {MoveState.DONE}


def test_a_cluster_that_is_gone_ends_the_run_with_its_last_error() -> None:
    cluster = Cluster()
    cluster.fails = {"view": 100_000}
    with pytest.raises(ReassignmentError, match="no answer"):
        cluster.run().run()
    assert cluster.calls[-1] == "tier", "what was set is put back all the same"


def test_what_is_wholly_on_the_tier_does_not_move_before_the_setting_is_lifted() -> None:
    cluster = Cluster()
    cluster.bare = frozenset({T0, T1})
    cluster.fails = {"settings asked": 2}
    done = cluster.run().run()
    order = [call for call in cluster.calls if call != "view"]
    assert order == ["settings asked"] * 3 + ["local log [2]", "submit", "tier", "tier"]
    assert {one.state for one in done.progress.values()} == {MoveState.DONE}


def test_where_the_setting_cannot_be_lifted_the_run_ends_at_once() -> None:
    cluster = Cluster()
    cluster.bare = frozenset({T0, T1})
    cluster.setting_fails = True
    with pytest.raises(ReassignmentSettingError, match="not allowed"):
        cluster.run().run()
    assert "submit" not in cluster.calls


def test_cancelling_takes_back_what_is_under_way() -> None:
    cluster = Cluster()
    run = cluster.run()
    run.run(lambda _: run.cancel())
    assert "cancel" in cluster.calls
    assert {one.state for one in run.reassignment.progress.values()} == {MoveState.CANCELLED}
