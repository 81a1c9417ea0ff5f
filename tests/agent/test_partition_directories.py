"""Which replicas a broker has, whatever fails on the way."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.leadership import partition_directories
from kafka_log.log_directory import LogDirectory
from tests.descriptors import none_left


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    """Two log directories with a replica each."""
    for number in range(2):
        replica = tmp_path / f"disk-{number}" / f"orders-{number}"
        replica.mkdir(parents=True)
        (replica / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    return [tmp_path / f"disk-{number}" for number in range(2)]


def names(directories: list[LogDirectory]) -> list[str]:
    return [found.path.name for found in partition_directories(directories)]


def test_a_log_directory_that_fails_does_not_take_the_others_with_it(disks: list[Path]) -> None:
    directories = [LogDirectory(disk) for disk in disks]
    assert names(directories) == ["orders-0", "orders-1"]
    disks[0].rename(disks[0].with_name("gone"))
    with capture_logs() as told:
        assert names(directories) == ["orders-1"]
    assert [event["event"] for event in told] == ["log_directory_failed"]


def test_without_file_descriptors_the_replicas_are_those_of_the_last_look(disks: list[Path]) -> None:
    directories = [LogDirectory(disk) for disk in disks]
    assert names(directories) == ["orders-0", "orders-1"]
    with none_left(), capture_logs() as told:
        assert names(directories) == ["orders-0", "orders-1"]
    assert [event["event"] for event in told] == ["log_directory_failed"] * 2
