"""What is left in a router channel, and which of it should be gone."""

from collections.abc import Container

from plugin.router_object_id import EPOCH_MS, RouterObjectId
from tests.soak.judgement import RouterChannels

_EPOCH = 1000
_LIVING, _DEAD = 20, 10
_DAY_MS = 86_400_000


def named(incarnation: int) -> str:
    return RouterObjectId(1, incarnation, _EPOCH, 0).blob_name


def found(name: str, later_ms: int = 0, failed: Container[str] = ()) -> list[str]:
    return RouterChannels({1: _LIVING}, failed).leaked([name], _EPOCH * EPOCH_MS + later_ms)


def test_a_living_gateway_leaves_nothing() -> None:
    assert found(named(_LIVING)) == [named(_LIVING)]


def test_what_a_dead_gateway_left_goes_after_its_time() -> None:
    assert found(named(_DEAD)) == []
    assert found(named(_DEAD), _DAY_MS) == [named(_DEAD)]


def test_what_took_effect_after_its_deletion_goes_after_its_time() -> None:
    name = named(_LIVING)
    assert found(name, failed=[name]) == []
    assert found(name, _DAY_MS, failed=[name]) == [name]


def test_what_is_no_object_of_a_channel_is_told() -> None:
    assert found("router/x") == ["router/x"]


def test_what_a_segment_names_stays_however_old_and_is_missed_where_it_is_not_there() -> None:
    known = RouterChannels({1: _LIVING}, named=frozenset({named(_LIVING), named(_DEAD)}))
    assert known.leaked([named(_LIVING), named(_DEAD)], _EPOCH * EPOCH_MS + _DAY_MS) == []
    assert known.missed([named(_LIVING)]) == [named(_DEAD)]


def test_where_logs_adopt_what_clients_left_that_went_is_for_a_sweep_and_of_others_nothing_is_left() -> None:
    begin_ms = _EPOCH * EPOCH_MS
    calm = RouterChannels({1: _LIVING}, calm_ms=(begin_ms, begin_ms + EPOCH_MS))
    assert calm.leaked([named(_LIVING)], begin_ms) == [named(_LIVING)]
    for calm_ms in ((begin_ms + 1, begin_ms + EPOCH_MS), (begin_ms, begin_ms + EPOCH_MS - 1)):
        restless = RouterChannels({1: _LIVING}, calm_ms=calm_ms)
        assert restless.leaked([named(_LIVING)], begin_ms) == []
        assert restless.leaked([named(_LIVING)], begin_ms + _DAY_MS) == [named(_LIVING)]
