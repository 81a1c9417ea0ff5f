"""The controllers' own log, read as they wrote it: its bytes are made here by the message definitions."""

import struct
from pathlib import Path

import pytest

from kafka_log.cluster_metadata import KRaftPartition, read_cluster_metadata
from kafka_log.crc32c import crc32c
from kafka_log.errors import LogDirectoryError, MalformedFileError
from kafka_log.topic_partition import TopicId, topic_id_to_text
from tests.kafka_log.batches import varint

ORDERS = TopicId(b"orders".ljust(16))
DIRECTORY = b"directory-1".ljust(16)


def _unsigned(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def _text(text: str) -> bytes:
    return _unsigned(len(text) + 1) + text.encode()


def _int32s(*values: int) -> bytes:
    return _unsigned(len(values) + 1) + b"".join(struct.pack(">i", value) for value in values)


def _uuids(*values: bytes) -> bytes:
    return _unsigned(len(values) + 1) + b"".join(values)


def _tagged(**fields: bytes) -> bytes:
    """`t<number>=bytes`."""
    tags = sorted((int(name[1:]), raw) for name, raw in fields.items())
    return _unsigned(len(tags)) + b"".join(_unsigned(tag) + _unsigned(len(raw)) + raw for tag, raw in tags)


def _message(api_key: int, version: int, body: bytes) -> bytes:
    return _unsigned(1) + _unsigned(api_key) + _unsigned(version) + body


TOPIC = _message(2, 0, _text("orders") + ORDERS + _tagged())
PARTITION = _message(
    3,
    2,
    struct.pack(">i", 0) + ORDERS + _int32s(1, 2) + _int32s(1, 2) + _int32s() + _int32s()
    + struct.pack(">iii", 1, 4, 7) + _uuids(DIRECTORY, DIRECTORY[::-1]) + _tagged(t1=_int32s()),
)  # fmt: skip
CONFIG = _message(4, 0, b"\x02" + _text("orders") + _text("segment.bytes") + _text("1048576") + _tagged())
BROKER = _message(
    0,
    3,
    struct.pack(">i", 1) + b"\0" + bytes(16) + bytes(8)
    + _unsigned(2) + _text("CLIENT") + _text("host") + struct.pack(">HH", 9092, 0) + _tagged()
    + _unsigned(2) + _text("metadata.version") + struct.pack(">hh", 1, 20) + _tagged()
    + _text("az1") + b"\1\0" + _tagged(t0=_uuids(DIRECTORY)),
)  # fmt: skip


def _change(**fields: bytes) -> bytes:
    return _message(5, 2, struct.pack(">i", 0) + ORDERS + _tagged(**fields))


def _batch(base_offset: int, *values: bytes, attributes: int = 0) -> bytes:
    records = b""
    for delta, value in enumerate(values):
        body = b"\0" + varint(0) + varint(delta) + varint(-1) + varint(len(value)) + value + varint(0)
        records += varint(len(body)) + body
    after_crc = struct.pack(">hiqqqhii", attributes, len(values) - 1, 0, 0, -1, -1, -1, len(values)) + records
    return struct.pack(">qiibI", base_offset, 9 + len(after_crc), 1, 2, crc32c(after_crc)) + after_crc


def _log(tmp_path: Path, *batches: bytes, base: int = 0) -> Path:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir(exist_ok=True)
    (directory / f"{base:020}.log").write_bytes(b"".join(batches))
    return tmp_path


def test_topics_replicas_settings_and_directories_are_known(tmp_path: Path) -> None:
    image = read_cluster_metadata(
        _log(tmp_path, _batch(0, b"\0", attributes=0x20), _batch(1, BROKER, TOPIC, PARTITION, CONFIG))
    )

    topic = image.topics[ORDERS]
    ids = (topic_id_to_text(TopicId(DIRECTORY)), topic_id_to_text(TopicId(DIRECTORY[::-1])))
    assert topic.name == "orders"
    assert topic.partitions == {0: KRaftPartition((1, 2), (1, 2), 1, 4, ids)}
    assert image.topic_configs == {"orders": {"segment.bytes": "1048576"}}
    assert image.directories == {1: ids[:1]}
    assert image.end_offset == 5


def test_changes_of_leaders_and_replicas_are_followed(tmp_path: Path) -> None:
    leader, replicas = struct.pack(">i", 2), _int32s(2, 3)
    changes = [_change(t0=_int32s(2)), _change(t1=leader), _change(t2=replicas, t8=_uuids(DIRECTORY, DIRECTORY))]

    image = read_cluster_metadata(_log(tmp_path, _batch(0, TOPIC, PARTITION), _batch(2, *changes)))

    partition = image.topics[ORDERS].partitions[0]
    assert (partition.in_sync, partition.leader, partition.leader_epoch) == ((2,), 2, 5)
    assert partition.replicas == (2, 3)
    assert len(set(partition.directories)) == 1


def test_a_deleted_topic_is_gone(tmp_path: Path) -> None:
    removed = _message(9, 0, ORDERS + _tagged())

    image = read_cluster_metadata(_log(tmp_path, _batch(0, TOPIC, PARTITION, CONFIG, removed)))

    assert not image.topics
    assert not image.topic_configs


def test_the_newest_snapshot_and_what_is_behind_it_count(tmp_path: Path) -> None:
    directory = (
        _log(tmp_path, _batch(6, TOPIC), _batch(7, _change(t1=struct.pack(">i", 2))), base=6) / "__cluster_metadata-0"
    )
    (directory / f"{7:020}-{1:010}.checkpoint").write_bytes(
        _batch(0, b"\0", attributes=0x20) + _batch(1, TOPIC, PARTITION) + _batch(3, b"\0", attributes=0x20)
    )

    image = read_cluster_metadata(directory)

    assert (image.topics[ORDERS].partitions[0].leader, image.end_offset) == (2, 8)


def test_a_torn_batch_at_the_logs_end_is_not_read(tmp_path: Path) -> None:
    torn = _batch(2, CONFIG)
    image = read_cluster_metadata(_log(tmp_path, _batch(0, TOPIC, PARTITION), torn[:-1] + b"\xff"))

    assert image.end_offset == 2
    assert not image.topic_configs


def test_a_log_without_its_beginning_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedFileError, match="neither a snapshot"):
        read_cluster_metadata(_log(tmp_path, _batch(5, TOPIC), base=5))
    with pytest.raises(LogDirectoryError):
        read_cluster_metadata(tmp_path / "nowhere")


def test_a_hostile_count_is_refused_before_anything_is_made_of_it(tmp_path: Path) -> None:
    bomb = _message(3, 2, struct.pack(">i", 0) + ORDERS + _unsigned(2**31))

    with pytest.raises(MalformedFileError, match="count"):
        read_cluster_metadata(_log(tmp_path, _batch(0, TOPIC, bomb)))
