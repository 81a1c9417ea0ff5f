"""The simulation finds what would delete what segments name in gateways' objects, keep it, or name what is other."""

import pytest

from gateway.produce.router_channel import RouterSweep
from metadata_topic.store.store_state import AdoptedSources
from rlm.lifecycle.unpublished_segments import UnpublishedSegments
from rlm.write_path.uploads import adoptable_records
from rlm.write_path.uploads.adoptable_records import AdoptableRecords
from tests.simulation.adoption.adoption_plan import is_adopting
from tests.simulation.planted_bugs import SEEDS, Plant, find


def take_what_no_topic_has_acknowledged_for_adopted_by_nobody(patch: pytest.MonkeyPatch) -> None:
    ended = AdoptableRecords.ended
    patch.setattr(AdoptableRecords, "ended", lambda self, pieces, _is_pending: ended(self, pieces, None))


def adopt_what_the_broker_changed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(adoptable_records, "_equal", lambda _log, _stored: True)


def forget_who_names_what(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AdoptedSources, "find_adopters", lambda _self, _source: frozenset())


def take_what_no_topic_tells_for_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UnpublishedSegments, "stored_ms", lambda _self, _since_ms: [])


def leave_what_dead_gateways_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RouterSweep, "dead", lambda _self, _listed, _now_s: [])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (take_what_no_topic_has_acknowledged_for_adopted_by_nobody, "goes, and|which went|not there"),
        (adopt_what_the_broker_changed, "other"),
        (forget_who_names_what, "goes, and|which went"),
        (take_what_no_topic_tells_for_nothing, "which went"),
        (leave_what_dead_gateways_left, "left that are to go"),
    ],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, plant: Plant, found: str) -> None:
    find(monkeypatch, plant, found, filter(is_adopting, range(160, 160 + 3 * SEEDS)))
