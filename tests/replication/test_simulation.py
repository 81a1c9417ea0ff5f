"""Seeded runs of replication as a whole. A failure names its seed: Simulation(seed).run(STEPS) repeats it."""

import pytest

from tests.replication.simulated_replication import Simulation

STEPS = 1500


@pytest.mark.parametrize("seed", range(12))
def test_the_followers_log_is_a_prefix_of_the_leaders_whatever_fails(seed: int) -> None:
    simulation = Simulation(seed)
    try:
        simulation.run(STEPS)
        simulation.settle()
    except Exception as error:
        last = "\n".join(simulation.trace[-15:])
        raise AssertionError(f"seed {seed}, after {len(simulation.trace)} steps: {error}\n{last}") from error


def test_the_same_seed_gives_the_same_run() -> None:
    runs = [Simulation(5), Simulation(5), Simulation(6)]
    for run in runs:
        run.run(200)
    assert runs[0].trace == runs[1].trace
    assert runs[0].objects == runs[1].objects
    assert runs[0].trace != runs[2].trace


def test_the_runs_meet_what_they_are_meant_to_meet() -> None:
    """Links, waits, refusals, hand-overs and crashes: a simulation in which nothing happens proves nothing."""
    runs = [Simulation(seed) for seed in range(100, 106)]
    for run in runs:
        run.run(STEPS)
    assert sum(run.linked for run in runs) > 50
    assert sum(run.waited for run in runs) > 20
    assert sum(run.refused for run in runs) > 10
    assert sum(run.epoch for run in runs) > 5
    assert sum(run.agent.incarnation for run in runs) > 5
