import errno
import os
from pathlib import Path

import pytest

from plugin.errors import ObjectExistsError, RemoteStorageAccessError, RemoteStorageConfigError, RemoteStorageError
from plugin.loading import DEFAULT_CLASS_NAME, StorageSpec, load_storage_manager
from plugin.local_directory import DirectoryStore, LocalWalStorageManager, mount_type
from plugin.remote_wal_storage_manager import StorageContext
from plugin.store_loop import ask
from plugin.zones.bucket_loading import load_storage
from tests.plugin.storage_backends import VirtualTime, segment


def store_in(directory: Path, time: VirtualTime | None = None) -> DirectoryStore:
    time = time or VirtualTime()
    return DirectoryStore(directory, 0.005, 0.003, time.sleep, time.clock)


def test_writes_and_reads_take_the_simulated_latencies(tmp_path: Path) -> None:
    time = VirtualTime()
    manager = LocalWalStorageManager(clock=time.clock, sleep=time.sleep)
    manager.configure(
        {"directory": str(tmp_path), "put.latency.ms": "5", "get.latency.ms": "2.5"},
        StorageContext("cluster", 1, is_written=False),
    )
    update = ask(manager.copy_log_segment_data(*segment(0, [b"abc"])))
    assert time.slept == pytest.approx([0.005])
    ask(manager.fetch_log_segment(update.combined_segment_id, 112, 115))
    assert time.slept == pytest.approx([0.005, 0.0025])


def test_a_reader_refuses_a_directory_that_is_not_there_and_makes_none(tmp_path: Path) -> None:
    directory = tmp_path / "sotre"
    spec = StorageSpec(DEFAULT_CLASS_NAME, None, {"directory": str(directory)})
    with pytest.raises(RemoteStorageConfigError, match=f"rsm.wal.config.directory: there is no directory {directory} "):
        load_storage(spec, StorageContext("cluster", 1, makes_missing=False))
    assert not directory.exists()
    load_storage_manager(spec, StorageContext("cluster", 1)).close()  # an agent
    load_storage(spec, StorageContext("cluster", 1, makes_missing=False)).close()


@pytest.mark.parametrize("key", ["../escape", "/absolute", "a/../../b", "a//b", "nul\0", ".", "a/./b"])
def test_a_key_that_would_leave_the_directory_is_refused(tmp_path: Path, key: str) -> None:
    store = store_in(tmp_path / "objects")
    for use in (
        lambda: ask(store.put_if_absent(key, [b"x"])),
        lambda: ask(store.get_range(key, 0, 1)),
        lambda: ask(store.head(key)),
        lambda: ask(store.delete(key)),
    ):
        with pytest.raises(RemoteStorageAccessError):
            use()
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_an_objects_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects" / "key").symlink_to(tmp_path / "secret")
    store = store_in(tmp_path / "objects")
    with pytest.raises(RemoteStorageError):
        ask(store.get_range("key", 0, 6))
    with pytest.raises(ObjectExistsError):
        ask(store.put_if_absent("key", [b"x"]))
    assert (tmp_path / "secret").read_text() == "secret"


def test_more_chunks_than_one_system_call_takes_are_written(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    chunks = [n.to_bytes(2, "big") for n in range(2500)]
    ask(store.put_if_absent("a/key", chunks))
    assert ask(store.get_range("a/key", 0, 10_000)) == b"".join(chunks)


def test_a_write_that_stops_half_way_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda file, chunks: real(file, [b"".join(chunks)[:7]]))
    store = store_in(tmp_path)
    ask(store.put_if_absent("key", [b"0123", b"4567", b"89"]))
    assert ask(store.get_range("key", 0, 100)) == b"0123456789"


def test_a_failed_write_leaves_nothing_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    store = store_in(tmp_path)
    with pytest.raises(RemoteStorageError) as caught:
        ask(store.put_if_absent("key", [b"x"]))
    assert caught.value.label == "disk_full"
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_an_interrupted_write_is_no_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise OSError("nothing more is done")

    store = store_in(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", killed)
        patch.setattr(os, "unlink", lambda _: None)
        with pytest.raises(RemoteStorageError):
            ask(store.put_if_absent("a/key", [b"x"]))
    assert list((tmp_path / "a").iterdir()) != []
    assert list(ask(store.list_page("a/", None)).objects) == []


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:40 / /mnt/shared\\040logs rw,relatime shared:7 master:1 - nfs4 filer:/ rw
31 30 254:1 / /mnt/shared\\040logs/disk rw - xfs /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("directory", "expected"),
    [("/", "ext4"), ("/mnt", "ext4"), ("/mnt/shared logs/a", "nfs4"), ("/mnt/shared logs/disk", "xfs")],
)
def test_the_innermost_mount_tells_the_type(directory: str, expected: str) -> None:
    assert mount_type(Path(directory), MOUNTS) == expected


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"30 22 0:40 / {tmp_path.resolve()} rw - nfs4 filer:/ rw\n")
    monkeypatch.setattr("plugin.local_directory._MOUNTS", mounts)
    with pytest.raises(RemoteStorageConfigError, match=r"network file system \(nfs4\).*use an object store"):
        LocalWalStorageManager().configure({"directory": str(tmp_path / "objects")}, StorageContext("cluster", 1))
