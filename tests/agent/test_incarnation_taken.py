"""An agent that takes a newer number goes on relaying, and uploads under the new one, without a restart."""

import time
from pathlib import Path

import pytest

from agent.identity import AgentLock
from metadata_topic.topic.metadata_topics import MetadataTopics
from rlm.lifecycle.incarnation_watch import IncarnationTakenError
from tests.agent.agent_rig import AgentRig, running_agent
from tests.kafka_log.log_writer import LogWriter

AN_HOUR_MS = 3_600_000


def incarnation_of(rig: AgentRig) -> int:
    told = rig.agent.state.describe()["incarnation"]
    assert isinstance(told, int)
    return told


async def test_all_but_relaying_is_made_anew_under_the_number_that_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = time.time_ns() // 1_000_000 + AN_HOUR_MS
    made: list[MetadataTopics] = []
    make_topics = MetadataTopics.make

    async def once_fenced(topics: MetadataTopics) -> None:
        made.append(topics)
        if len(made) == 1:
            raise IncarnationTakenError(ahead)
        await make_topics(topics)

    monkeypatch.setattr(MetadataTopics, "make", once_fenced)
    async with running_agent(tmp_path, monkeypatch) as rig:
        await rig.until(lambda: len(made) == 2 and rig.storage_run is not None)
        await rig.expect_relaying()
        assert incarnation_of(rig) == ahead + 1
        assert rig.failures("storage") == 0
        assert rig.agent.state.relaying is not None
        storage = rig.agent.state.relaying.storage
        await rig.until(lambda: storage.is_there and rig.storage_run is not None)
        log = LogWriter(tmp_path / "data" / "t-0")
        log.append(records=3)
        rig.lead(log)
        await rig.until(lambda: rig.uploaded_offset == 3)
        [[stored]] = [part async for part in storage.list_log_segments(1)]
        assert stored.combined_segment_id.incarnation == ahead + 1
        assert stored.combined_segment_id.sequence == 0
    again = AgentLock(tmp_path / "state")
    assert again.next_incarnation(lambda: 0) == ahead + 2
    again.release()
