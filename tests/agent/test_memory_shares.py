"""The bounds of all parts together keep to the memory of the process."""

from pathlib import Path

import pytest

from agent.settings.agent_settings import AgentSettings
from agent.settings.memory_shares import MIN_FRAME_BYTES, frame_bytes, other_bytes
from agent.settings.setting_types import AgentSettingsError
from agent.settings_file import agent_settings
from kafka_log.broker_files.server_properties import load_broker_properties

MIB = 1024 * 1024


def settings(**changes: object) -> AgentSettings:
    return AgentSettings.model_validate({name.replace("_", "."): value for name, value in changes.items()})


def frames(settings: AgentSettings) -> int:
    share = frame_bytes(settings)
    return share.requests + share.to_followers + share.from_leaders


def test_what_others_may_take_is_taken_off_what_frames_may() -> None:
    small = settings()
    large = settings(remote_wal_log_manager_combiner_task_upload_bytes=8 * MIB)
    assert 0 <= small.process.memory_bytes - frames(small) - other_bytes(small) < 8
    assert frames(small) - frames(large) == 2 * 5 * 4 * MIB
    assert frames(settings(remote_wal_archive_enable=True)) >= MIN_FRAME_BYTES, "the defaults fit, with the archive too"


def test_too_little_memory_for_the_caches_is_a_wrong_setting_with_the_figure_that_fits(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    lines = [
        "process.roles=broker",
        "node.id=1",
        f"log.dirs={tmp_path}/data",
        "listeners=PLAINTEXT://127.0.0.1:1,REPLICATION://127.0.0.1:2",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,REPLICATION:PLAINTEXT",
        "inter.broker.listener.name=REPLICATION",
        f"remote.wal.agent.state.directory={tmp_path}/state",
        f"remote.wal.log.manager.combiner.task.upload.bytes={100 * MIB}",
    ]
    file.write_text("\n".join(lines))
    with pytest.raises(AgentSettingsError, match=r"remote\.wal\.agent\.memory\.bytes: must be \d+ at least") as caught:
        agent_settings(load_broker_properties(file), file)
    least = str(caught.value).split("must be ")[1].split()[0]
    file.write_text("\n".join([*lines, f"remote.wal.agent.memory.bytes={least}"]))
    assert agent_settings(load_broker_properties(file), file).process.memory_bytes == int(least)
