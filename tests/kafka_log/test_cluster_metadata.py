"""The controllers' own log, read as they wrote it: its bytes are made here by the message definitions."""

import struct
from pathlib import Path

import pytest

from kafka_log.broker_files.cluster_metadata import KRaftPartition, read_cluster_metadata, read_leaders
from kafka_log.errors import LogDirectoryError, MalformedFileError
from kafka_log.topic_partition import TopicId, TopicIdPartition, topic_id_to_text
from tests.kafka_log.kraft_records import (
    BROKER,
    CONFIG,
    DIRECTORY,
    ORDERS,
    PARTITION,
    TOPIC,
    broker_change,
    int32s,
    message,
    metadata_batch,
    partition_change,
    tagged,
    text,
    unsigned_varint,
    uuids,
)

CONTROL = metadata_batch(0, b"\0", attributes=0x20)
CONTROL_3 = metadata_batch(3, b"\0", attributes=0x20)
TO_BROKER_2 = partition_change(t1=struct.pack(">i", 2))


def _log(tmp_path: Path, *batches: bytes, base: int = 0) -> Path:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{base:020}.log").write_bytes(b"".join(batches))
    return tmp_path


def test_topics_replicas_settings_and_directories_are_known(tmp_path: Path) -> None:
    image = read_cluster_metadata(
        _log(tmp_path, metadata_batch(0, b"\0", attributes=0x20), metadata_batch(1, BROKER, TOPIC, PARTITION, CONFIG))
    )

    topic = image.topics[ORDERS]
    ids = (topic_id_to_text(TopicId(DIRECTORY)), topic_id_to_text(TopicId(DIRECTORY[::-1])))
    assert topic.name == "orders"
    assert topic.partitions == {0: KRaftPartition((1, 2), (1, 2), 1, 4, ids)}
    assert image.topic_configs == {"orders": {"segment.bytes": "1048576"}}
    assert image.directories == {1: ids[:1]}
    assert image.end_offset == 5


def test_settings_for_logs_that_brokers_got_at_runtime_are_known_and_no_secrets(tmp_path: Path) -> None:
    def config(broker: str, key: str, value: bytes) -> bytes:
        return message(4, 0, b"\4" + text(broker) + text(key) + value + tagged())

    image = read_cluster_metadata(
        _log(
            tmp_path,
            metadata_batch(
                0,
                config("", "log.roll.ms", text("5")),
                config("", "log.retention.ms", text("-1")),
                config("1", "log.roll.ms", text("7")),
                config("", "listener.name.client.ssl.key.password", text("secret")),
                config("", "log.retention.ms", b"\0"),
            ),
        )
    )
    assert image.broker_configs == {"": {"log.roll.ms": "5"}, "1": {"log.roll.ms": "7"}}


def test_cordoned_directories_stay_a_brokers_own(tmp_path: Path) -> None:
    both, cordoned = broker_change(t2=uuids(DIRECTORY, ORDERS)), broker_change(t3=uuids(DIRECTORY, ORDERS))

    image = read_cluster_metadata(_log(tmp_path, metadata_batch(0, BROKER, both, cordoned)))

    assert image.directories == {1: (topic_id_to_text(TopicId(DIRECTORY)), topic_id_to_text(ORDERS))}


def test_changes_of_leaders_and_replicas_are_followed(tmp_path: Path) -> None:
    replicas = partition_change(t2=int32s(2, 3), t8=uuids(DIRECTORY, DIRECTORY))
    changes = [partition_change(t0=int32s(2)), TO_BROKER_2, replicas]

    image = read_cluster_metadata(_log(tmp_path, metadata_batch(0, TOPIC, PARTITION), metadata_batch(2, *changes)))

    partition = image.topics[ORDERS].partitions[0]
    assert (partition.in_sync, partition.leader, partition.leader_epoch) == ((2,), 2, 5)
    assert partition.replicas == (2, 3)
    assert len(set(partition.directories)) == 1


def test_who_may_be_elected_without_being_in_sync_is_followed(tmp_path: Path) -> None:
    nobody = partition_change(t0=int32s(), t6=int32s(2), t1=struct.pack(">i", -1))
    unclean = partition_change(t6=int32s(), t7=int32s(2))
    for name, changes in (("eligible", [nobody]), ("last known", [nobody, unclean])):
        batches = metadata_batch(0, TOPIC, PARTITION), metadata_batch(2, *changes)
        partition = read_cluster_metadata(_log(tmp_path / name, *batches)).topics[ORDERS].partitions[0]
        assert (partition.in_sync, partition.leader) == ((), -1)
        assert (partition.eligible, partition.last_known) == (((2,), ()) if name == "eligible" else ((), (2,)))


def test_a_deleted_topic_is_gone(tmp_path: Path) -> None:
    removed = message(9, 0, ORDERS + tagged())

    image = read_cluster_metadata(_log(tmp_path, metadata_batch(0, TOPIC, PARTITION, CONFIG, removed)))

    assert not image.topics
    assert not image.topic_configs


def test_the_newest_snapshot_and_what_is_behind_it_count(tmp_path: Path) -> None:
    directory = (
        _log(tmp_path, metadata_batch(6, TOPIC), metadata_batch(7, TO_BROKER_2), base=6) / "__cluster_metadata-0"
    )
    (directory / f"{7:020}-{1:010}.checkpoint").write_bytes(
        metadata_batch(0, b"\0", attributes=0x20)
        + metadata_batch(1, TOPIC, PARTITION)
        + metadata_batch(3, b"\0", attributes=0x20)
    )

    image = read_cluster_metadata(directory)

    assert (image.topics[ORDERS].partitions[0].leader, image.end_offset) == (2, 8)


def test_leaders_are_known_as_far_back_as_the_log_goes(tmp_path: Path) -> None:
    nobody, other = partition_change(t1=struct.pack(">i", -1)), message(2, 0, text("x") + DIRECTORY + tagged())
    behind = metadata_batch(4, nobody, TO_BROKER_2), metadata_batch(6, other), metadata_batch(7, partition_change())
    whole = _log(tmp_path, metadata_batch(0, other), metadata_batch(1, TOPIC, PARTITION), CONTROL_3, *behind)
    partition = TopicIdPartition(ORDERS, 0)
    assert read_leaders(whole, {ORDERS}) == {partition: {4: 1, 5: -1, 6: 2}}
    assert read_leaders(whole, {TopicId(DIRECTORY)}) == {}
    directory = whole / "__cluster_metadata-0"
    for end, led in (4, TO_BROKER_2), (6, nobody):
        snapshot = directory / f"{end:020}-{1:010}.checkpoint"
        snapshot.write_bytes(metadata_batch(0, TOPIC, PARTITION, led))
    assert read_leaders(whole, {ORDERS}) == {partition: {4: 1, 5: -1, 6: 2}}, "the whole log says more"
    (directory / f"{0:020}.log").rename(directory / f"{3:020}.log")
    (directory / f"{3:020}.log").write_bytes(b"".join([CONTROL_3, *behind]))
    assert read_leaders(whole, {ORDERS}) == {partition: {4: 1, 5: 2, 6: -1, 7: 2}}, "from the oldest snapshot on"


def test_a_log_with_a_hole_says_nothing(tmp_path: Path) -> None:
    log = _log(tmp_path, metadata_batch(0, TOPIC, PARTITION), metadata_batch(3, TO_BROKER_2))
    with pytest.raises(MalformedFileError, match="from offset 2 on is missing"):
        read_leaders(log, {ORDERS})


def test_a_torn_batch_at_the_logs_end_is_not_read(tmp_path: Path) -> None:
    torn = metadata_batch(2, CONFIG)
    image = read_cluster_metadata(_log(tmp_path, metadata_batch(0, TOPIC, PARTITION), torn[:-1] + b"\xff"))

    assert image.end_offset == 2
    assert not image.topic_configs


def test_a_log_without_its_beginning_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedFileError, match="neither a snapshot"):
        read_cluster_metadata(_log(tmp_path, metadata_batch(5, TOPIC), base=5))
    with pytest.raises(LogDirectoryError):
        read_cluster_metadata(tmp_path / "nowhere")


def test_a_hostile_count_is_refused_before_anything_is_made_of_it(tmp_path: Path) -> None:
    bomb = message(3, 2, struct.pack(">i", 0) + ORDERS + unsigned_varint(2**31))

    with pytest.raises(MalformedFileError, match="count"):
        read_cluster_metadata(_log(tmp_path, metadata_batch(0, TOPIC, bomb)))
