"""Time-outs for who can wait: long where nothing is said of them, as they are set where something is."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugin.clients.backend_settings import ObjectBackendSettings, parse_settings, unhurried
from plugin.clients.object_store import ObjectStore
from plugin.errors import RemoteStorageConfigError
from plugin.gcs import GcsSettings
from plugin.local_directory import LocalDirectorySettings, LocalWalStorageManager
from plugin.remote_wal_storage_manager import StorageContext
from plugin.s3 import S3Settings

BUCKET = {"bucket": "wal-of-orders"}
KEYS = ("attempt.timeout.ms", "total.timeout.ms")


def _limits(settings: dict[str, str]) -> tuple[int, int, int, float]:
    """Of an attempt, of all of them, to connect (ms), and to wait for bytes (s)."""
    parsed = parse_settings(S3Settings, unhurried(S3Settings, BUCKET | settings))
    return parsed.attempt_timeout_ms, parsed.total_timeout_ms, parsed.connect_timeout_ms, parsed.read_timeout_seconds


@pytest.mark.parametrize(
    ("told", "limits"),
    [
        ({}, (30_000, 60_000, 5_000, 25.0)),
        ({"attempt.timeout.ms": "3000"}, (3_000, 60_000, 750, 2.25)),
        ({"attempt.timeout.ms": "90000"}, (90_000, 90_000, 5_000, 85.0)),
        ({"total.timeout.ms": "20000"}, (5_000, 20_000, 1_250, 3.75)),
        ({"total.timeout.ms": "3000"}, (2_000, 3_000, 500, 1.5)),
        ({"total.timeout.ms": "600000"}, (30_000, 600_000, 5_000, 25.0)),
        ({"attempt.timeout.ms": "4000", "total.timeout.ms": "8000"}, (4_000, 8_000, 1_000, 3.0)),
    ],
)
def test_what_is_set_stays_and_all_else_is_long(told: dict[str, str], limits: tuple[int, int, int, float]) -> None:
    assert _limits(told) == limits


@given(st.dictionaries(st.sampled_from(KEYS), st.integers(1, 300_000).map(str)))
def test_what_an_agent_takes_is_taken_here_and_no_time_is_shorter(told: dict[str, str]) -> None:
    try:
        hurried = parse_settings(S3Settings, BUCKET | told)
    except RemoteStorageConfigError:
        return
    patient = parse_settings(S3Settings, unhurried(S3Settings, BUCKET | told))
    assert patient.attempt_timeout_ms >= hurried.attempt_timeout_ms
    assert patient.total_timeout_ms >= hurried.total_timeout_ms
    assert patient.connect_timeout_ms >= hurried.connect_timeout_ms
    assert patient.read_timeout_seconds >= hurried.read_timeout_seconds
    for key, value in told.items():
        assert unhurried(S3Settings, told)[key] == value


@pytest.mark.parametrize("model", [GcsSettings, LocalDirectorySettings])
def test_a_backend_is_told_no_key_that_it_does_not_know(model: type[ObjectBackendSettings]) -> None:
    assert unhurried(model, {}).keys() <= {name.replace("_", ".") for name in model.model_fields}


def test_a_time_out_that_is_no_number_is_refused_by_its_own_name() -> None:
    with pytest.raises(RemoteStorageConfigError) as refused:
        _limits({"total.timeout.ms": "long"})
    assert refused.value.key == "total.timeout.ms"


class _Asked(LocalWalStorageManager):
    def open_store(self, settings: ObjectBackendSettings) -> ObjectStore:
        self.settings = settings
        return super().open_store(settings)


@pytest.mark.parametrize(("can_wait", "total_ms"), [(False, 10_000), (True, 60_000)])
def test_a_storage_manager_waits_as_long_as_who_uses_it_can(can_wait: bool, total_ms: int, tmp_path: Path) -> None:
    manager = _Asked()
    manager.configure({"directory": str(tmp_path)}, StorageContext("cluster", 1, can_wait=can_wait))
    assert manager.settings.total_timeout_ms == total_ms
    manager.close()
