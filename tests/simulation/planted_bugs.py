"""How a defect that is planted into the product, or into a model, is looked for."""

from collections.abc import Callable, Iterable

import pytest

from tests.simulation.adoption.adoption_plan import is_adopting
from tests.simulation.archive.archive_plan import is_archived
from tests.simulation.replicas.replica_plan import is_replicated
from tests.simulation.simulation import FailedRunError, simulate

Plant = Callable[[pytest.MonkeyPatch], None]
SEEDS = 60


def find(patch: pytest.MonkeyPatch, plant: Plant, found: str, first: int) -> None:
    """Some run of the write path must fail with words that match `found`, from the seed `first` on, which spares the
    runs that do not meet it.
    """
    _find(patch, plant, found, (seed for seed in range(first, first + SEEDS) if not is_replicated(seed)))


def find_in_archive(patch: pytest.MonkeyPatch, plant: Plant, found: str) -> None:
    """The same of the runs that have an archive."""
    _find(patch, plant, found, filter(is_archived, range(SEEDS)))


def find_in_adoption(patch: pytest.MonkeyPatch, plant: Plant, found: str) -> None:
    """The same of those in which gateways have stored what logs get."""
    _find(patch, plant, found, filter(is_adopting, range(160, 160 + 3 * SEEDS)))


def find_in_replication(patch: pytest.MonkeyPatch, plant: Plant, found: str, first: int) -> None:
    """The same of replication whole."""
    _find(patch, plant, found, filter(is_replicated, range(first, first + 100)))


def _find(patch: pytest.MonkeyPatch, plant: Plant, found: str, seeds: Iterable[int]) -> None:
    plant(patch)
    with pytest.raises(FailedRunError, match=found):
        _simulate(seeds)


def _simulate(seeds: Iterable[int]) -> None:
    for seed in seeds:
        simulate(seed)
