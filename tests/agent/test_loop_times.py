"""Which of the agent's loops did not do its work for how long."""

import pytest
from prometheus_client import CollectorRegistry

from agent.metrics.loop_times import LoopTimes


def test_each_loop_is_idle_since_it_last_succeeded_or_since_the_start() -> None:
    registry, now_s = CollectorRegistry(), 100.0
    times = LoopTimes(registry, lambda: now_s)

    def idle(loop: str) -> float | None:
        return registry.get_sample_value("remote_wal_loop_idle_seconds", {"loop": loop})

    now_s = 130.0
    times.succeeded("expiration")
    now_s = 135.0
    assert (idle("expiration"), idle("orphans")) == (5, 35)
    with pytest.raises(ValueError, match="nonesuch"):
        times.succeeded("nonesuch")
