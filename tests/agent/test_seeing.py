"""What a whole agent tells of itself."""

from pathlib import Path

import pytest

from agent.release import this_release
from tests.agent.agent_rig import running_agent


async def test_the_release_the_loops_and_what_was_saved_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_agent(tmp_path, monkeypatch) as rig:
        tell, release = rig.registry.get_sample_value, this_release()
        labels = {"version": release.version, "commit": release.commit}
        await rig.until(lambda: tell("remote_wal_build_info", labels) == 1)

        def idle_s(loop: str) -> float:
            return tell("remote_wal_loop_idle_seconds", {"loop": loop}) or 0.0

        # Kafka does not answer in this test, so nothing is asked of the cluster; what is published is.
        await rig.until(lambda: idle_s("cluster") > idle_s("publication") > 0)
        await rig.until(
            lambda: (tell("remote_wal_dollars_total", {"of": "requests"}) or 0) > 0
        )  # the store's self-test
        assert tell("remote_wal_dollars_total", {"of": "stock"}) == 0
        assert (tell("remote_wal_saved_dollars") or 0) < 0
