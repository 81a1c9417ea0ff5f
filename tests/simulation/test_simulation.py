"""Seeded runs of the write path. A failure names its seed; `python -m tests.simulation --seed SEED` shows it."""

from collections import Counter

import pytest

from tests.simulation.faults import FAULTS
from tests.simulation.simulation import simulate

SEEDS = 40


@pytest.mark.timeout(600)
def test_what_counts_as_uploaded_is_stored_whatever_fails() -> None:
    hits = Counter[str]()
    for seed in range(SEEDS):
        hits += simulate(seed).hits
    assert not [fault for fault in FAULTS if not hits[fault]], "a simulation in which nothing fails proves nothing"


def test_the_same_seed_gives_the_same_run() -> None:
    assert simulate(5).fingerprint == simulate(5).fingerprint
    assert simulate(5).fingerprint != simulate(6).fingerprint
