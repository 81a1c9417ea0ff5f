"""What the transactional copier has written, held against what it read."""

import pytest

from local_cluster.workload.ledger import ProducerReport
from tests.soak.transactional_copier import compare_copy

_VALUES = [0, 3, 5, 8]


def compared(*copies: int) -> ProducerReport:
    return compare_copy(_VALUES, [(offset, str(value).encode()) for offset, value in enumerate(copies)])


def test_each_value_once_and_in_order_is_no_fault() -> None:
    report = compared(*_VALUES)
    assert (report.acknowledged, report.consumed, report.faults) == (4, 4, 0)


@pytest.mark.parametrize(
    ("copies", "fault"),
    [
        ((0, 3, 8), "lost"),
        ((0, 3, 3, 5, 8), "duplicates"),
        ((0, 5, 3, 8), "reordered"),
        ((*_VALUES, 9), "altered"),
    ],
)
def test_each_fault_is_counted(copies: tuple[int, ...], fault: str) -> None:
    assert getattr(compared(*copies), fault) == 1
