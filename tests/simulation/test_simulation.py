"""Seeded runs of the write path. A failure names its seed; `python -m tests.simulation --seed SEED` shows it."""

import pytest

from tests.simulation.simulation import simulate

SEEDS = 60
AT_ONCE = 10


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_what_counts_as_uploaded_is_stored_whatever_fails(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        simulate(seed)


def test_the_same_seed_gives_the_same_run() -> None:
    assert simulate(5).fingerprint == simulate(5).fingerprint
    assert simulate(5).fingerprint != simulate(6).fingerprint
