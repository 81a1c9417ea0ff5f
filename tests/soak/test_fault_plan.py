"""The soak's faults follow from their seed alone, and leave a cluster of three able to recover."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from tests.soak.fault_plan import PROCESS_FAULTS, FaultKind, Step, plan_faults

BROKERS = (1, 2, 3)
KINDS = len(FaultKind)


def steps(seed: int, count: int = 60, kinds: tuple[FaultKind, ...] = tuple(FaultKind)) -> list[Step]:
    return list(islice(plan_faults(seed, BROKERS, kinds), count))


def test_the_same_seed_gives_the_same_faults_and_another_one_others() -> None:
    assert steps(4) == steps(4)
    assert steps(4) != steps(5)


@given(st.integers(0, 2**32))
def test_each_kind_comes_once_before_any_comes_again(seed: int) -> None:
    kinds = [fault.kind for step in steps(seed) for fault in step.faults]
    for start in range(0, len(kinds) - KINDS, KINDS):
        assert set(kinds[start : start + KINDS]) == set(FaultKind)


@given(st.integers(0, 2**32))
def test_no_two_brokers_and_no_two_store_faults_strike_together(seed: int) -> None:
    for step in steps(seed):
        parts = [fault.kind.part for fault in step.faults]
        assert parts.count("broker") <= 1
        assert parts.count("store") <= 1
        assert {"leader", "disk"}.isdisjoint(parts) or len(parts) == 1
        assert {*parts} != {"broker", "topic"}
        assert len({fault.broker_id for fault in step.faults}) == len(step.faults)


def test_faults_do_strike_together_at_times() -> None:
    assert any(len(step.faults) == 2 for step in steps(1))


def test_only_the_kinds_that_are_asked_for_strike() -> None:
    assert {fault.kind for step in steps(2, kinds=PROCESS_FAULTS) for fault in step.faults} == {
        FaultKind.AGENT_KILLED, FaultKind.AGENT_PAUSED, FaultKind.BROKER_KILLED, FaultKind.BROKER_PAUSED
    }  # fmt: skip
