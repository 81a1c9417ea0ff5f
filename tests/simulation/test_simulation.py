"""Seeded runs of the write path. A failure names its seed, and the command that shows it.

These seeds are always the same; `python -m tests.simulation --today` runs those of the day.
"""

import pytest

from tests.simulation.faults import FAULTS
from tests.simulation.many_runs import run_seeds
from tests.simulation.plan import EVENTS, plan
from tests.simulation.replicas.replica_plan import is_replicated
from tests.simulation.simulation import simulate

FIXED_SEEDS = 12
RARE_FAULTS = (14, 17, 135, 136, 151, 259)
"""Seeds in which an orphan is deleted, an archive's write ends a process, a peer falls silent and a neighbour gives
wrong bytes, an adoption is told of late, and a neighbour is gone.
"""
PARTS = 6
SEEDS_OF_A_PART = 10


@pytest.mark.timeout(600)
def test_what_counts_as_uploaded_is_stored_whatever_fails() -> None:
    outcome = run_seeds([*range(FIXED_SEEDS), *RARE_FAULTS])
    assert not outcome.failed, "\n".join(outcome.failed.values())
    missed = [fault for fault in FAULTS if not outcome.hits[fault]]
    assert not missed, "a simulation in which nothing fails proves nothing"


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_it_is_stored_in_further_runs(part: int) -> None:
    first = FIXED_SEEDS + part * SEEDS_OF_A_PART
    outcome = run_seeds(range(first, first + SEEDS_OF_A_PART))
    assert not outcome.failed, "\n".join(outcome.failed.values())


def test_the_same_seed_gives_the_same_run() -> None:
    alone, replicated = 5, 7
    assert (is_replicated(alone), is_replicated(replicated)) == (False, True)
    first, again = (
        [simulate(seed, plan(seed, EVENTS // 4)).fingerprint for seed in (alone, replicated)] for _ in range(2)
    )
    assert first == again
    assert first[0] != first[1]
