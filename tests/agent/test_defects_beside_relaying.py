"""Whatever fails beside relaying: replication is relayed on, the failure is counted by part and told, the part is begun
anew.
"""

from pathlib import Path
from socketserver import TCPServer
from typing import Any

import pytest

import agent.storage_loading as storage_loading
import agent.wiring.lifecycle as lifecycle
from agent.metrics.usage import UsageReport
from metadata_topic.topic.consumer import RemoteWalMetadataConsumer
from metadata_topic.topic.metadata_topics import MetadataTopics
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher
from rlm.write_path.commit.cadence import Cadence
from tests.agent.agent_rig import AgentRig, running_agent
from tests.kafka_log.log_writer import LogWriter


class UnthoughtOfError(Exception):
    """Nobody's error."""


class Defect:
    """Raises in the place of a function, or after it was awaited, until it is mended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.strikes = 0
        self.mended = False
        original = getattr(owner, name)

        def struck(*args: Any, **kwargs: Any) -> Any:
            if self.mended:
                return original(*args, **kwargs)
            self.strikes += 1
            raise UnthoughtOfError(f"planted in {name}")

        monkeypatch.setattr(owner, name, struck)


PLACES: dict[str, tuple[str, Any, str]] = {
    "kafka": ("storage", MetadataTopics, "make"),
    "write path": ("storage", Cadence, "start_s"),
    "lifecycle": ("storage", RemoteWalMetadataConsumer, "wait_until_ready"),
    "archive": ("storage", lifecycle, "load_archive_storage"),
    "usage": ("storage", UsageReport, "record"),
    "publication": ("metadata publication", RemoteWalMetadataPublisher, "_send_waiting"),
    "store": ("object storage", storage_loading, "load_storage_manager"),
    "http": ("http endpoint", TCPServer, "__init__"),
}
"""By what fails: the part that is restarted, and where the defect is."""


def append(rig: AgentRig, log: LogWriter | None = None) -> LogWriter:
    """Something to upload, in a log that is led here."""
    log = log or LogWriter(rig.directory / "data" / "t-0")
    log.append(records=3)
    return log


@pytest.mark.parametrize("place", PLACES)
async def test_a_defect_of_a_part_does_not_end_relaying_and_the_part_begins_anew(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, owner, name = PLACES[place]
    defect = Defect(monkeypatch, owner, name)
    async with running_agent(tmp_path, monkeypatch) as rig:
        await rig.expect_relaying()
        log = append(rig)

        def failed_twice() -> bool:
            if rig.storage_run is not None and not rig.storage_run.write_path.assignments:
                rig.lead(log)  # as Kafka says to each run
            return rig.failures(part) >= 2

        await rig.until(failed_twice)
        assert defect.strikes >= 2
        await rig.expect_relaying()
        await rig.until(lambda: any(told.startswith(f"{part} failed") for told in rig.agent.state.not_ready()))
        others = [other for other, *_ in PLACES.values() if other != part and rig.failures(other)]
        assert others == []
        defect.mended = True
        await rig.until(lambda: not rig.agent.state.supervisor.down)
        failures = rig.failures(part)
        await rig.until(lambda: rig.storage_run is not None)
        append(rig, log)
        rig.lead(log)
        await rig.until(lambda: rig.uploaded_offset == log.log_end_offset)
        await rig.expect_relaying()
        assert rig.failures(part) == failures
