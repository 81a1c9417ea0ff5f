import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.broker_files.leader_epoch_checkpoint import (
    UNKNOWN_EPOCH,
    LeaderEpochs,
    parse_leader_epochs,
    read_leader_epochs,
)
from kafka_log.broker_files.meta_properties import (
    MetaProperties,
    directory_ids,
    parse_meta_properties,
    read_meta_properties,
)
from kafka_log.broker_files.partition_metadata import parse_partition_metadata, read_partition_metadata
from kafka_log.errors import LogDirectoryError, MalformedFileError
from kafka_log.log_directory import LogDirectory, parse_partition_directory_name
from kafka_log.log_lineage import MAX_RUNS, DeliveredEpochs
from kafka_log.topic_partition import TopicId, is_topic_name, topic_id_to_text

PATH = Path("/logs/file")
ENTRIES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), max_size=6).map(
    lambda steps: [
        (sum(epoch for epoch, _ in steps[: i + 1]), sum(more for _, more in steps[: i + 1])) for i in range(len(steps))
    ]
)


@given(ENTRIES, st.integers(0, 60))
def test_epochs_and_offsets_agree_with_a_plain_search(entries: list[tuple[int, int]], wanted: int) -> None:
    epochs = LeaderEpochs(entries)
    assert epochs.epoch_for(wanted) == max((e for e, start in entries if start <= wanted), default=UNKNOWN_EPOCH)
    assert epochs.start_offset(wanted) == dict(entries).get(wanted)
    assert epochs.end_offset_for(wanted) == next((start for e, start in entries if e > wanted), None)
    assert epochs.latest_epoch == max((e for e, _ in entries), default=UNKNOWN_EPOCH)


@given(ENTRIES)
def test_a_checkpoint_is_read_back(entries: list[tuple[int, int]]) -> None:
    text = f"0\n{len(entries)}\n" + "".join(f"{epoch} {start}\n" for epoch, start in entries)
    assert parse_leader_epochs(text, PATH).entries == tuple(entries)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("1\n0\n", 1),
        ("0\n", 2),
        ("0\n-1\n", 2),
        ("0\n2\n0 0\n", 3),
        ("0\n1\n0 0\n1 5\n", 4),
        ("0\n1\n0\n", 3),
        ("0\n2\n0 0\n1 x\n", 4),
        ("0\n2\n3 0\n2 5\n", 4),
        ("0\n2\n3 9\n4 5\n", 4),
    ],
)
def test_a_malformed_checkpoint_names_file_and_line(text: str, line: int) -> None:
    with pytest.raises(MalformedFileError, match="/logs/file, line ") as caught:
        parse_leader_epochs(text, PATH)
    assert caught.value.line == line


def test_a_missing_checkpoint_is_empty(tmp_path: Path) -> None:
    assert read_leader_epochs(tmp_path) == LeaderEpochs()


@pytest.mark.parametrize(
    ("checkpoint", "divergence"),
    [
        ([(1, 0), (3, 10)], None),
        ([(1, 0), (3, 10), (4, 30)], None),
        ([], None),
        ([(1, 0), (3, 10), (4, 25)], 25),
        ([(1, 0), (4, 10)], 10),
        ([(1, 0), (3, 15)], 10),
        ([(0, 0), (4, 5)], 0),
        ([(3, 12)], None),
        ([(4, 12)], 12),
        ([(5, 40)], None),
    ],
)
def test_the_first_offset_of_another_leader_is_found(checkpoint: list[tuple[int, int]], divergence: int | None) -> None:
    delivered = DeliveredEpochs()
    delivered.add(1, 0, 5)
    delivered.add(1, 5, 10)
    delivered.add(3, 10, 30)
    assert delivered.diverges_at(LeaderEpochs(checkpoint)) == divergence


def test_what_was_cut_off_is_forgotten() -> None:
    delivered = DeliveredEpochs()
    delivered.add(1, 0, 10)
    delivered.add(3, 10, 30)
    delivered.cut(10)
    assert delivered.last_run == (1, 0, 10, 0)
    delivered.cut(4)
    assert (delivered.epoch_at(3), delivered.epoch_at(4)) == (1, UNKNOWN_EPOCH)
    for epoch in range(10, 10 + 2 * MAX_RUNS):
        delivered.add(epoch, epoch, epoch + 1)
    assert delivered.epoch_at(3) == UNKNOWN_EPOCH
    assert delivered.last_epoch == 9 + 2 * MAX_RUNS


TOPIC_ID = TopicId(bytes(range(16)))


def make_partition(log_dir: Path, name: str, topic_id: TopicId = TOPIC_ID) -> Path:
    path = log_dir / name
    path.mkdir()
    (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id_to_text(topic_id)}")
    return path


def test_partition_metadata_names_the_topic(tmp_path: Path) -> None:
    assert read_partition_metadata(make_partition(tmp_path, "t-0")) == TOPIC_ID


@pytest.mark.parametrize(
    ("text", "line"),
    [("", 1), ("version: 1\ntopic_id: AAAA", 1), ("version: 0\n", 2), ("version: 0\ntopic_id: AAAA\n", 2)],
)
def test_malformed_partition_metadata_names_file_and_line(text: str, line: int) -> None:
    with pytest.raises(MalformedFileError, match="/logs/file") as caught:
        parse_partition_metadata(text, PATH)
    assert caught.value.line == line


def test_meta_properties_name_the_directorys_owner(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text(
        "#\n#Thu Jan 01 00:00:00 UTC 1970\ncluster.id=abc_DEF\nversion=1\ndirectory.id=dir\\=1\nnode.id=7\n"
    )
    assert read_meta_properties(tmp_path) == MetaProperties(1, "abc_DEF", 7, "dir=1")
    assert parse_meta_properties(b"version=0\nbroker.id=3\ncluster.id=c\n", PATH).node_id == 3


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (b"version=1\nnode.id=1\n", "cluster.id"),
        (b"version=1\ncluster.id=c\n", "node.id"),
        (b"version=1\ncluster.id=c\nnode.id=-1\n", "node.id"),
        (b"cluster.id=c\nnode.id=1\n", "version"),
        (b"version=\\uXYZW", "file"),
    ],
)
def test_malformed_meta_properties_name_file_and_key(raw: bytes, key: str) -> None:
    with pytest.raises(MalformedFileError, match=f"/logs/file.*{key}|/logs/{key}"):
        parse_meta_properties(raw, PATH)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("orders-0", ("orders", 0)),
        ("a-b.c_d-12", ("a-b.c_d", 12)),
        ("__cluster_metadata-0", ("__cluster_metadata", 0)),
        ("orders-0.9f4b-delete", None),
        ("orders-0.9f4b-future", None),
        ("orders-0.9f4b-stray", None),
        ("orders", None),
        ("orders-01", None),
        ("orders-0\n", None),
        ("orders-2147483648", None),
        ("-0", None),
        (".-0", None),
        ("..-0", None),
        ("a/b-0", None),
        ("ä-0", None),
        ("t" * 249 + "-0", ("t" * 249, 0)),
        ("t" * 250 + "-0", None),
        ("orders-٣", None),
    ],
)
def test_only_live_replicas_are_partition_directories(name: str, parsed: tuple[str, int] | None) -> None:
    assert parse_partition_directory_name(name) == parsed


def test_topic_names_cannot_leave_the_directory() -> None:
    assert not any(map(is_topic_name, ["", ".", "..", "../x", "a\0b", "a/b", "x" * 250]))


def test_a_scan_tells_what_came_and_went(tmp_path: Path) -> None:
    first = make_partition(tmp_path, "orders-0")
    make_partition(tmp_path, "__cluster_metadata-0")
    make_partition(tmp_path, "orders-1.77-future")
    (tmp_path / "orders-9").symlink_to(first)
    (tmp_path / "meta.properties").touch()
    (tmp_path / "file-3").touch()
    young = tmp_path / "young-0"
    young.mkdir()
    directory = LogDirectory(tmp_path)
    assert directory.scan() == []
    found = directory.partitions.values()
    assert [(p.topic, p.partition, p.topic_id, p.path) for p in found] == [("orders", 0, TOPIC_ID, first)]
    (young / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id_to_text(TopicId(b'y' * 16))}")
    directory.scan()
    assert sorted(p.topic for p in directory.partitions.values()) == ["orders", "young"]
    first.rename(tmp_path / "orders-0.88-delete")
    make_partition(tmp_path, "orders-0", TopicId(b"n" * 16))
    directory.scan()
    assert {p.topic: p.topic_id for p in directory.partitions.values()} == {"orders": b"n" * 16, "young": b"y" * 16}


def test_the_metadata_log_is_shown_when_asked_for(tmp_path: Path) -> None:
    make_partition(tmp_path, "__cluster_metadata-0")


def test_one_broken_replica_does_not_hide_the_others(tmp_path: Path) -> None:
    (make_partition(tmp_path, "bad-0") / "partition.metadata").write_text("version: 7\n")
    make_partition(tmp_path, "good-0")
    directory = LogDirectory(tmp_path)
    assert [str(fault.path) for fault in directory.scan()] == [str(tmp_path / "bad-0" / "partition.metadata")]
    assert [p.topic for p in directory.partitions.values()] == ["good"]


def test_a_second_scan_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(50):
        make_partition(tmp_path, f"t-{index}")
    directory = LogDirectory(tmp_path)
    directory.scan()
    assert len(directory.partitions) == 50
    opened = Counter[str]()
    original = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *a, **k: opened.update(["open"]) or original(self, *a, **k))
    monkeypatch.setattr(os, "stat", lambda *a, **k: pytest.fail("no stat of a known entry"))
    directory.scan()
    assert not opened


def test_an_unreadable_log_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogDirectoryError, match="nowhere"):
        LogDirectory(tmp_path / "nowhere").scan()


def test_directories_without_an_id_are_left_out(tmp_path: Path) -> None:
    for name, text in (("a", "version=1\ncluster.id=c\nnode.id=1\ndirectory.id=its-id\n"), ("b", "damaged")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.properties").write_text(text)

    assert directory_ids([tmp_path / "a", tmp_path / "b", tmp_path / "absent"]) == {str(tmp_path / "a"): "its-id"}


@pytest.mark.parametrize(
    ("later", "same_to"),
    [
        ([(0, 0), (1, 2), (5, 9)], 4),
        ([(0, 0), (1, 2), (5, 3)], 3),
        ([(0, 0), (5, 9)], 2),
        ([(0, 1), (1, 2)], 4),
        ([(3, 0)], 0),
        ([(1, 3)], 4),
        ([(2, 3)], 3),
        ([], 4),
    ],
    ids=[
        "goes on",
        "was cut",
        "an older leader's log is back",
        "retention took the begin",
        "another one",
        "retention took an epoch",
        "retention took what it was before",
        "nothing to judge by",
    ],
)
def test_a_log_is_the_same_as_far_as_the_same_leaders_wrote_it(later: list[tuple[int, int]], same_to: int) -> None:
    assert LeaderEpochs([(0, 0), (1, 2)]).agrees_to(LeaderEpochs(later), 4) == same_to
