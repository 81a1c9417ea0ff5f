"""What is left in a router channel, and which of it should be gone."""

from collections.abc import Container

from plugin.router_object_id import EPOCH_MS, RouterObjectId
from tests.soak.judgement import leaked

_EPOCH = 1000
_LIVING, _DEAD = 20, 10
_DAY_MS = 86_400_000


def named(incarnation: int) -> str:
    return RouterObjectId(1, incarnation, _EPOCH, 0).blob_name


def found(name: str, later_ms: int = 0, failed: Container[str] = ()) -> list[str]:
    return leaked([name], {1: _LIVING}, failed, _EPOCH * EPOCH_MS + later_ms)


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
