"""Of several balancers one works, and another takes over from a dead one."""

import pytest

from kafka_cluster.errors import KafkaClusterError
from metadata_topic.settings.settings_records import Balancer
from recovery.reassignment.balance_turn import PATIENCE_S, BalanceTurn, RowOfSettings
from recovery.reassignment.plan import Load, apart


class Row(RowOfSettings):
    """The topic's row, which all see alike."""

    def __init__(self) -> None:
        self.value: Balancer | None = None
        self.written_after: Balancer | None = None
        """By another, behind the next write."""

    def read(self) -> Balancer | None:
        return self.value

    def write(self, row: Balancer | None) -> None:
        self.value, self.written_after = self.written_after or row, None


class Hosts:
    def __init__(self) -> None:
        self.row, self.now_s = Row(), 1000.0

    def turn(self, name: str) -> BalanceTurn:
        return BalanceTurn(self.row, name, lambda: self.now_s)


def test_one_works_while_it_shows_signs_of_life_and_then_another() -> None:
    hosts = Hosts()
    one, other = hosts.turn("one"), hosts.turn("other")
    for _ in range(10):
        assert one.take()
        assert not other.take()
        hosts.now_s += PATIENCE_S - 1
    hosts.now_s += 1
    assert other.take()
    assert not one.take(), "it was suspended, and sees that now"


def test_of_two_that_take_over_at_once_only_the_later_row_works() -> None:
    hosts = Hosts()
    one = hosts.turn("one")
    hosts.row.written_after = Balancer("other", 1)
    assert not one.take()
    assert hosts.turn("other").take()


def test_a_balancer_that_ends_leaves_its_turn_at_once_and_takes_no_others_away() -> None:
    hosts = Hosts()
    with hosts.turn("one") as one:
        assert one.take()
        with hosts.turn("other") as other:
            assert not other.take()
        assert hosts.row.read() is not None
    assert hosts.row.read() is None
    assert hosts.turn("third").take()


def test_a_balancer_that_ends_after_it_was_suspended_leaves_its_successors_row() -> None:
    hosts = Hosts()
    with hosts.turn("one") as one:
        assert one.take()
        hosts.row.value = Balancer("other", 1)
    assert hosts.row.read() == Balancer("other", 1)


def test_what_was_measured_is_told_with_the_next_sign_of_life() -> None:
    hosts = Hosts()
    one = hosts.turn("one")
    assert one.take()
    one.tell(apart({1: Load(10, 1, 3), 2: Load(30, 1, 0)}), 70)
    assert one.take()
    assert hosts.row.value is not None
    assert (hosts.row.value.apart, hosts.row.value.measured_ms) == ((1.0, 0.0, 2.0), 70)
    assert apart({}) == apart({1: Load(0, 0, 0)}) == (0, 0, 0)


def test_a_topic_that_does_not_answer_ends_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts()

    def silent() -> Balancer | None:
        raise KafkaClusterError("read who balances", "topic", "no answer")

    monkeypatch.setattr(hosts.row, "read", silent)
    with pytest.raises(KafkaClusterError):
        hosts.turn("one").take()
