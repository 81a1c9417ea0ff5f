"""What the transactional copier has written, held against what it read."""

from local_cluster.workload.ledger import ProducerReport
from tests.soak.transactional_copier import compare_copy

_VALUES = [0, 3, 5, 8]


def compared(*copies: int) -> ProducerReport:
    return compare_copy(_VALUES, [(offset, str(value).encode()) for offset, value in enumerate(copies)])


def test_each_value_once_and_in_order_is_no_fault() -> None:
    report = compared(*_VALUES)
    assert (report.acknowledged, report.consumed, report.faults) == (4, 4, 0)


def test_a_value_that_was_not_copied_is_lost() -> None:
    assert compared(0, 3, 8).lost == 1


def test_a_value_that_was_copied_twice_is_doubled() -> None:
    assert compared(0, 3, 3, 5, 8).duplicates == 1


def test_a_value_behind_its_successor_is_reordered() -> None:
    assert compared(0, 5, 3, 8).reordered == 1


def test_what_was_never_there_is_altered() -> None:
    assert compared(*_VALUES, 9).altered == 1
