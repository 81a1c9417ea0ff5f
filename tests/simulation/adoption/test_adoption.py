"""What segments name in gateways' objects is there for as long as they are, and goes with them, whatever fails."""

from collections import Counter
from collections.abc import Iterable

import pytest

from gateway.produce.router_sweep import RouterSweep
from metadata_topic.store.adopted_sources import AdoptedSources
from rlm.write_path import adoptable_records
from rlm.write_path.adoptable_records import AdoptableRecords
from tests.simulation.adoption.adopting_simulation import AdoptingSimulation
from tests.simulation.archive.archive_plan import is_archived
from tests.simulation.planted_bugs import Plant
from tests.simulation.replicas.replica_plan import is_replicated
from tests.simulation.simulation import FailedRunError, simulate

FAULTS = ("adopted", "other bytes offered", "swept", "a gateway's deletion fails", "taken over", "recovered")
SEEDS = [seed for seed in range(24) if not is_archived(seed) and not is_replicated(seed)]
"""Those of the write path alone."""


def run_all(seeds: Iterable[int]) -> Counter[str]:
    hits = Counter[str]()
    for seed in seeds:
        hits += simulate(seed, kind=lambda _seed: AdoptingSimulation).hits
    return hits


@pytest.mark.timeout(600)
def test_nothing_that_a_segment_names_goes_before_it_and_nothing_stays_behind() -> None:
    hits = run_all(SEEDS)
    assert not [fault for fault in FAULTS if not hits[fault]]


# What it finds.


def take_what_no_topic_has_acknowledged_for_adopted_by_nobody(patch: pytest.MonkeyPatch) -> None:
    ended = AdoptableRecords.ended
    patch.setattr(AdoptableRecords, "ended", lambda self, pieces, _is_pending: ended(self, pieces, None))


def adopt_what_the_broker_changed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(adoptable_records, "_equal", lambda _log, _stored: True)


def forget_who_names_what(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AdoptedSources, "naming", lambda _self, _source: frozenset())


def leave_what_dead_gateways_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RouterSweep, "dead", lambda _self, _listed, _wall_ms: [])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (take_what_no_topic_has_acknowledged_for_adopted_by_nobody, "goes, and|which went|not there"),
        (adopt_what_the_broker_changed, "other"),
        (forget_who_names_what, "goes, and|which went"),
        (leave_what_dead_gateways_left, "left that are to go"),
    ],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, plant: Plant, found: str) -> None:
    plant(monkeypatch)
    with pytest.raises(FailedRunError, match=found):
        run_all(SEEDS)
