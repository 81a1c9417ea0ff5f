"""In shadow about as much counts as linked as an agent links, though no fetch is seen."""

from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry

from agent.settings.agent_settings import AgentSettings
from agent.wiring.write_path import log_manager_limits
from perf.cost import world
from perf.cost.load import Assigned, Load
from perf.cost.sweep import LIFE_S, count
from perf.cost.world import CostLoop, CostWorld, ProducedLog
from plugin.inline_reason import InlineReason
from plugin.prices import Prices
from replication.leader.shadow import Shadow
from rlm.write_path.core.actions import Action, CountLeftOut

PRICES = Prices.load()
ASSIGNED = Assigned(object_life_s=LIFE_S)
SECONDS = 10.0


class Nobody:
    """In the place of followers: tells the shadow what is stored."""

    def __init__(self, shadow: Shadow) -> None:
        self.stored = shadow.segment_uploaded

    def start(self) -> None: ...

    def appended(self) -> None: ...

    def look_again(self) -> None: ...

    def are_pending(self) -> bool:
        return False


def share_in_shadow(load: Load, monkeypatch: pytest.MonkeyPatch) -> float:
    shadow = Shadow(CollectorRegistry(), 1.0, lambda brokers: {one: one for one in brokers}, lambda: 0.0)

    class ShadowLoop(CostLoop):
        def do(self, actions: Sequence[Action]) -> None:
            for action in actions:
                if isinstance(action, CountLeftOut):
                    shadow.left_out(action.assignment.topic_id_partition, action.size_bytes, InlineReason.LOAD)
            super().do(actions)

    monkeypatch.setattr(world, "CostLoop", ShadowLoop)
    monkeypatch.setattr(world, "CostFollowers", lambda *_: Nobody(shadow))
    process = AgentSettings().process.model_copy(update={"mode": "shadow"})
    limits = log_manager_limits(AgentSettings().model_copy(update={"process": process}))
    assert limits.in_shadow
    made = CostWorld(load, limits, PRICES, ASSIGNED)
    shadow.set_led(ASSIGNED.to(ProducedLog(number, 1).partition) for number in range(load.partitions))
    made.run(SECONDS)
    share = shadow.traffic.recent_of_all.share(3600, 0.0)
    assert share is not None
    return share


@pytest.mark.parametrize("load", [Load(300e3), Load(100e3, 0.1, 1.0), Load(300e3, 2.0, 10.0)], ids=str)
def test_in_shadow_about_as_much_counts_as_linked_as_is(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    real = count(load, SECONDS, PRICES, ASSIGNED)
    linked = real.linked_bytes / (real.linked_bytes + real.inline_bytes)
    assert share_in_shadow(load, monkeypatch) == pytest.approx(linked, abs=0.12)
