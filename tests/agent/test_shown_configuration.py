"""/config shows what counts, and no secret."""

import json
import re
from pathlib import Path

import pytest

from agent.settings.agent_settings import AgentSettings
from agent.settings.shown_configuration import HIDDEN, shown_configuration
from agent.settings_file import agent_settings
from kafka_log.broker_files.server_properties import load_broker_properties
from plugin.azure_blob import AzureBlobSettings
from plugin.gcs import GcsSettings
from plugin.loading import ARCHIVE_IMPL_PREFIX, IMPL_PREFIX
from plugin.local_directory import LocalDirectorySettings
from plugin.s3 import S3Settings
from replication.wire.peer_connection import Address
from tests.agent.agent_rig import write_properties

PLANTED = "planted-0123456789"


def shown(tmp_path: Path, lines: str) -> dict[str, object]:
    file = write_properties(tmp_path, Address("127.0.0.1", 1), remote_wal_agent_peers="1@h:1,2@g:2")
    file.write_text(file.read_text() + lines)
    broker = load_broker_properties(file)
    told = shown_configuration(broker, agent_settings(broker, file))
    assert PLANTED not in json.dumps(told)
    return told


def test_values_are_shown_as_in_the_file_with_defaults_and_what_was_set(tmp_path: Path) -> None:
    told = shown(tmp_path, "remote.wal.link.wait.max.ms=123\n")
    settings = told["settings"]
    assert isinstance(settings, dict)
    assert settings["remote.wal.link.wait.max.ms"] == 123
    assert settings["remote.wal.agent.peers"] == "1@h:1,2@g:2"
    assert settings["remote.wal.agent.http.listener"] == "127.0.0.1:0"
    assert settings["remote.wal.agent.memory.bytes"] == 1024**3
    assert settings[f"{IMPL_PREFIX}directory"] == str(tmp_path / "objects")
    assert isinstance(told["set"], list)
    assert "remote.wal.link.wait.max.ms" in told["set"]
    assert "remote.wal.agent.memory.bytes" not in told["set"]


@pytest.mark.parametrize(
    "url", ["//name:{}@minio:9000/", "//name:a/{}@minio", "//na@me:{}@minio", "//minio/?sig={}", "//minio#{}"]
)
@pytest.mark.parametrize("prefix", [IMPL_PREFIX, ARCHIVE_IMPL_PREFIX])
def test_no_secret_is_shown_wherever_it_stands(tmp_path: Path, prefix: str, url: str) -> None:
    told = shown(
        tmp_path,
        f"{prefix}secret.access.key={PLANTED}\n{prefix}zone.az1.secret.access.key={PLANTED}\n"
        f"{prefix}endpoint.url=https:{url.format(PLANTED)}\n{prefix}zone.az1.region=eu\n"
        f"ssl.keystore.password={PLANTED}\nsasl.jaas.config={PLANTED}\nlistener.name.x.ssl.key.password={PLANTED}\n",
    )
    settings = told["settings"]
    assert isinstance(settings, dict)
    assert settings[f"{prefix}secret.access.key"] == HIDDEN
    assert settings[f"{prefix}endpoint.url"] == f"https://{HIDDEN}"
    assert settings[f"{prefix}zone.az1.region"] == "eu"


def test_no_key_of_the_agents_own_holds_a_secret() -> None:
    """Where one comes to, it is to be hidden: secrets stand in files, which are named."""
    named = [key for key in AgentSettings.documented() if re.search("pass(word|phrase)|secret|jaas|credential", key)]
    assert [key for key in named if not key.endswith(".file")] == []


def test_each_key_of_our_own_storage_managers_is_shown(tmp_path: Path) -> None:
    keys = {
        f"{IMPL_PREFIX}{name.replace('_', '.')}"
        for model in (LocalDirectorySettings, S3Settings, GcsSettings, AzureBlobSettings)
        for name in model.model_fields
    }
    told = shown(tmp_path, "".join(f"{key}=7\n" for key in sorted(keys)))
    settings = told["settings"]
    assert isinstance(settings, dict)
    assert {key for key in keys if settings[key] == HIDDEN} == set()
