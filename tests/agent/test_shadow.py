"""An agent in shadow: it counts what links would do, opens no port for replication, and stores nothing."""

from pathlib import Path

import pytest

from agent.http.status import status_of, summary
from agent.metrics.loop_times import Loop
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.wall_clock import Clocks
from rlm.write_path.assignment import Assignment
from tests.agent.agent_rig import PARTITION, AgentRig, running_agent
from tests.kafka_log.log_writer import LogWriter

SHADOW = {"remote_wal_agent_mode": "shadow", "remote_wal_archive_enable": "false"}
IDLE = "remote_wal_loop_idle_seconds"
CLOCKS = Clocks(lambda: 1.0, lambda: 1)


async def linked(rig: AgentRig) -> int:
    """Lead a log that two brokers in other zones follow, append to it, and wait until that counts as linked.

    Returns the bytes of what was appended.
    """
    await rig.until(lambda: rig.storage_run is not None)
    log = LogWriter(rig.directory / "data" / "t-0")
    log.append(records=5)  # followers have it
    relaying = rig.agent.state.relaying
    assert rig.storage_run is not None
    assert relaying is not None
    relaying.pauses.recorded({})  # the settings topic was read
    remote = frozenset({2, 3})
    assigned = Assignment(PARTITION, "t", log.path, LinkPolicy.ALWAYS, 20, remote_followers=remote, is_durable=True)
    rig.storage_run.assigned([assigned])
    await rig.until(lambda: rig.uploaded_offset is not None)  # it begins at the end that the log has then
    appended = len(log.append(records=3).raw)
    await rig.until(lambda: relaying.traffic.by_partition[PARTITION].linked_bytes > 0)
    assert relaying.traffic.by_partition[PARTITION].linked_bytes == 2 * appended
    return appended


def objects(directory: Path) -> list[Path]:
    return [path for path in (directory / "objects").rglob("*") if path.is_file()]


async def test_links_are_counted_and_nothing_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_agent(tmp_path, monkeypatch, None, **SHADOW) as rig:
        appended = await linked(rig)
        state = rig.agent.state
        told = state.describe()
        assert told["shadow"] == {
            "dollars": told["shadow"]["dollars"],
            "producers_slowed": "unknown: followers do not read through this agent",
        }
        assert told["shadow"]["dollars"]["stock"] > 0
        assert told["partitions"][0]["uploaded_offset"] == 0
        assert told["partitions"][0]["linked_bytes"] == 2 * appended
        # What does not run is no loop that hangs.
        shown = [one for one in Loop if rig.registry.get_sample_value(IDLE, {"loop": one}) is not None]
        assert shown == [Loop.LEADERSHIP, Loop.PUBLICATION]
        page = summary(status_of(state, CLOCKS), "1")
        assert (page["store"]["state"], page["peers"]) == ("not used", {})
        assert not any("object storage" in reason for reason in state.not_ready())
        # What is only pretended is in no metric of what was done.
        assert rig.registry.get_sample_value("remote_wal_uploaded_segments_total") == 0
        assert rig.registry.get_sample_value("remote_wal_saved_dollars") is None
        assert rig.registry.get_sample_value("remote_wal_shadow_dollars_total", {"of": "requests"}) > 0  # type: ignore[operator]
        assert objects(tmp_path) == []
        assert state.system is not None
        assert state.system.around.publisher.pending == 0


async def test_nobody_can_replicate_through_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = {"remote_wal_agent_peers": "2@127.0.0.1:1", "remote_wal_agent_peer_listener": "192.0.2.1:1"}
    async with running_agent(tmp_path, monkeypatch, None, **SHADOW, **peers) as rig:
        relaying = rig.agent.state.relaying
        assert relaying is not None
        assert (relaying.leader.addresses, relaying.follower.addresses) == ([], {})
