"""Whether a log directory was erased, or its disk is away, before the broker starts."""

from pathlib import Path

import pytest

from recovery.errors import TargetRefusedError
from recovery.logs.log_directory_target import STAGING, emptied_log_dirs


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    made = tmp_path / "disk one" / "kafka"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def fstab(tmp_path: Path) -> Path:
    return tmp_path / "fstab"


def test_a_directory_with_anything_that_a_broker_leaves_has_its_logs(log_dir: Path, fstab: Path) -> None:
    (log_dir / "meta.properties").write_text("version=1\n")
    assert emptied_log_dirs([log_dir], fstab=fstab) == [log_dir], "it was formatted, and that is all"
    (log_dir / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    assert emptied_log_dirs([log_dir], fstab=fstab) == []


def test_of_several_directories_the_erased_ones_are_told(log_dir: Path, fstab: Path) -> None:
    others = [log_dir.parent / "whole", log_dir.parent / "unfinished"]
    for other in others:
        (other / "orders-0").mkdir(parents=True)
    (others[1] / STAGING).mkdir()
    assert emptied_log_dirs([log_dir, *others], fstab=fstab) == [log_dir, others[1]]


def test_a_directory_that_is_not_there_is_refused(log_dir: Path, fstab: Path) -> None:
    for path in (log_dir / "absent", log_dir / "file"):
        (log_dir / "file").touch()
        with pytest.raises(TargetRefusedError, match="it is not there"):
            emptied_log_dirs([path], fstab=fstab)


@pytest.mark.parametrize("above", [False, True], ids=["at the directory", "above it"])
def test_what_fstab_mounts_must_be_mounted(log_dir: Path, fstab: Path, above: bool) -> None:
    place = log_dir.parent if above else log_dir
    escaped = str(place).replace(" ", "\\040")
    fstab.write_text(
        f"# disks\nUUID=1 / ext4 defaults 0 1\n/dev/sdb1 {escaped}/ xfs noatime 0 2\nUUID=2 none swap sw\n"
    )
    with pytest.raises(TargetRefusedError, match="which is not mounted"):
        emptied_log_dirs([log_dir], fstab=fstab, is_mounted=lambda path: path == Path("/"))
    assert emptied_log_dirs([log_dir], fstab=fstab, is_mounted=lambda path: path == place) == [log_dir]
    (log_dir / "orders-0").mkdir()
    assert emptied_log_dirs([log_dir], fstab=fstab, is_mounted=lambda _path: False) == []


def test_a_disk_that_is_reached_by_a_link_is_found(log_dir: Path, fstab: Path) -> None:
    link = log_dir.parent.parent / "link"
    link.symlink_to(log_dir.parent)
    fstab.write_text(f"/dev/sdb1 {str(log_dir.parent).replace(' ', chr(92) + '040')} xfs\n")
    with pytest.raises(TargetRefusedError, match="which is not mounted"):
        emptied_log_dirs([link / "kafka"], fstab=fstab, is_mounted=lambda _path: False)


def test_a_mount_below_the_root_may_be_asked_for(log_dir: Path, fstab: Path) -> None:
    with pytest.raises(TargetRefusedError, match="mounted below /"):
        emptied_log_dirs([log_dir], must_be_mounted=True, fstab=fstab, is_mounted=lambda path: path == Path("/"))
    found = emptied_log_dirs(
        [log_dir], must_be_mounted=True, fstab=fstab, is_mounted=lambda path: path == log_dir.parent
    )
    assert found == [log_dir]
