"""How a defect that is planted into the product, or into a model, is looked for."""

from collections.abc import Callable, Iterable

import pytest

from tests.simulation.replicas.replica_plan import is_replicated
from tests.simulation.simulation import FailedRunError, simulate

Plant = Callable[[pytest.MonkeyPatch], None]
SEEDS = 60


def find(patch: pytest.MonkeyPatch, plant: Plant, found: str, seeds: Iterable[int]) -> None:
    """A run by one of these seeds must fail with words that match `found`."""
    plant(patch)
    with pytest.raises(FailedRunError, match=found):
        _simulate(seeds)


def of_the_write_path(first: int) -> Iterable[int]:
    """From the seed `first` on, which spares the runs that do not meet a defect."""
    return (seed for seed in range(first, first + SEEDS) if not is_replicated(seed))


def _simulate(seeds: Iterable[int]) -> None:
    for seed in seeds:
        simulate(seed)
