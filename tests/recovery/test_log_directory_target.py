"""Which directories are taken, and what keeps a broker away from a half-made one."""

import multiprocessing
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from kafka_log.broker_files.meta_properties import MetaProperties, read_meta_properties
from recovery.errors import TargetRefusedError
from recovery.logs.log_directory_target import (
    STAGING,
    LogDirectoryIdentity,
    LogDirectoryTarget,
    emptied_log_dirs,
    refusal_of,
)

IDENTITY = LogDirectoryIdentity("cluster-1", 7, "dHsvUeAsx4pzL_7iPzNrAg")


def _target(path: Path) -> LogDirectoryTarget:
    return LogDirectoryTarget(path, IDENTITY)


def _format(path: Path, cluster_id: str = "cluster-1", node_id: int = 7) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "meta.properties").write_text(f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\ndirectory.id=own\n")


def test_an_absent_directory_becomes_the_brokers(tmp_path: Path) -> None:
    with _target(tmp_path / "log") as target:
        place = target.building_place("orders", 3)
        place.mkdir()
        (place / "00000000000000000005.log").write_bytes(b"batches")
        assert not (target.path / "meta.properties").exists(), "a broker does not start without"
        target.publish({("orders", 3): 5})
        assert (target.path / STAGING).is_dir(), "nor with this, until all directories are published"
        target.release()

    path = tmp_path / "log"
    assert (path / "orders-3" / "00000000000000000005.log").read_bytes() == b"batches"
    assert read_meta_properties(path) == MetaProperties(1, "cluster-1", 7, IDENTITY.directory_id)
    assert (path / "log-start-offset-checkpoint").read_text() == "0\n1\norders 3 5\n"
    assert not (path / STAGING).exists()


def test_a_half_made_directory_has_what_ends_a_brokers_start_and_can_be_gone_on_with(tmp_path: Path) -> None:
    with _target(tmp_path) as target:
        target.building_place("orders", 0).mkdir()
    assert (tmp_path / STAGING).is_dir()
    with pytest.raises(ValueError, match="invalid literal"):
        int(STAGING.rpartition("-")[2])  # Kafka: what is behind the last dash must be a partition's number

    with _target(tmp_path) as target:
        assert target.building_place("orders", 0).is_dir()
        target.publish({("orders", 0): 0})
        target.release()


def test_publishing_goes_on_after_a_crash_between_its_steps(tmp_path: Path) -> None:
    with _target(tmp_path) as target:
        for number in (0, 1):
            target.building_place("orders", number).mkdir()
        # The first log was moved to its place, then the machine went down.
        target.building_place("orders", 0).rename(tmp_path / "orders-0")

    with _target(tmp_path) as target:
        assert target.building_place("orders", 0).is_dir(), "to be made again, or left out"
        target.publish({("orders", 0): 0, ("orders", 1): 0})
        target.release()

    assert {path.name for path in tmp_path.glob("orders-*")} == {"orders-0", "orders-1"}


def test_a_log_that_was_begun_again_beside_its_published_one_is_no_hindrance(tmp_path: Path) -> None:
    with _target(tmp_path) as target:
        target.building_place("orders", 0).mkdir()
        (tmp_path / "orders-0").mkdir()

    with _target(tmp_path) as target:
        target.publish({("orders", 0): 0})
        target.release()

    assert not (tmp_path / STAGING).exists()


def _published(path: Path) -> None:
    with _target(path) as target:
        target.building_place("orders", 0).mkdir()
        target.publish({("orders", 0): 0})
        target.release()


@pytest.mark.parametrize("left_by_broker", [None, "recovery-point-offset-checkpoint"])
def test_a_directory_is_gone_on_with_after_a_crash_in_the_last_step_unless_a_broker_ran_on_it(
    tmp_path: Path, left_by_broker: str | None
) -> None:
    """The owner file was removed, and `.remote-wal-recovery`, which is empty, was not."""
    _published(tmp_path)
    (tmp_path / STAGING).mkdir()
    if left_by_broker is not None:
        (tmp_path / left_by_broker).touch()
        assert "not empty" in str(refusal_of(tmp_path, "cluster-1", 7))
        return

    with _target(tmp_path) as target:
        assert target.building_place("orders", 0).is_dir()


def test_a_directory_that_was_finished_before_its_siblings_is_gone_on_with_them(tmp_path: Path) -> None:
    first, second, alone = (tmp_path / name for name in ("a", "b", "c"))
    _published(first)
    _published(alone)
    with LogDirectoryTarget(second, IDENTITY, (first, second)):
        pass
    together = (first, second, alone)

    assert refusal_of(first, "cluster-1", 7, together) is None
    assert "not empty" in str(refusal_of(alone, "cluster-1", 7, together)), "that recovery did not make it"
    assert emptied_log_dirs(together, fstab=tmp_path / "fstab") == [first, second]
    (first / "recovery-point-offset-checkpoint").touch()
    assert "not empty" in str(refusal_of(first, "cluster-1", 7, together)), "a broker ran on it"


def test_a_formatted_directory_keeps_its_id(tmp_path: Path) -> None:
    _format(tmp_path)

    with _target(tmp_path) as target:
        target.publish({})
        target.release()

    assert read_meta_properties(tmp_path).directory_id == "own"


def test_a_directory_with_anything_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()

    with pytest.raises(TargetRefusedError, match="not empty: orders-0"), _target(tmp_path):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"orders-0", ".lock"}


@pytest.mark.parametrize(("cluster_id", "node_id"), [("cluster-2", 7), ("cluster-1", 8)])
def test_another_clusters_or_nodes_directory_is_refused(tmp_path: Path, cluster_id: str, node_id: int) -> None:
    _format(tmp_path, cluster_id, node_id)

    with pytest.raises(TargetRefusedError, match=f"node {node_id} of cluster {cluster_id}"), _target(tmp_path):
        pass


def test_another_nodes_unfinished_recovery_is_refused(tmp_path: Path) -> None:
    with LogDirectoryTarget(tmp_path, LogDirectoryIdentity("cluster-1", 8, "x")):
        pass

    assert "node 8" in str(refusal_of(tmp_path, "cluster-1", 7))


def test_a_directory_that_a_broker_has_locked_is_refused(tmp_path: Path) -> None:
    # POSIX locks are a process's, so the broker must be another one.
    context = multiprocessing.get_context("spawn")
    locked, done = context.Event(), context.Event()
    broker = context.Process(target=_hold_lock, args=(tmp_path, locked, done))
    broker.start()
    try:
        assert locked.wait(30)
        with pytest.raises(TargetRefusedError, match="locked"), _target(tmp_path):
            pass
    finally:
        done.set()
        broker.join(30)


def _hold_lock(path: Path, locked: Event, done: Event) -> None:
    import fcntl

    with (path / ".lock").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        locked.set()
        done.wait(30)


@pytest.mark.parametrize("topic", ["..", "a/b", "", "a\0b"])
def test_what_is_no_topics_name_never_becomes_a_path(tmp_path: Path, topic: str) -> None:
    with _target(tmp_path) as target, pytest.raises(TargetRefusedError, match="no name of a partition"):
        target.building_place(topic, 0)
