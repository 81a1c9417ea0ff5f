"""Reads topics, replicas and brokers from KRaft's own log, `__cluster_metadata-0` in a metadata.log.dir.

The newest snapshot (`<end offset>-<epoch>.checkpoint`) and the segments behind it hold record batches. A record's value
is an unsigned varint each for frame version, API key and version, then a message in Kafka's flexible encoding. Other
records, and tagged fields without information on replicas, are skipped. Records at the log's end may not be committed
by the quorum; in a cluster at rest, all are.

Source: metadata/src/main/resources/common/metadata/*.json and MetadataRecordSerde in Apache Kafka 4.4.
"""

import re
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kafka_log.errors import LogDirectoryError, MalformedFileError
from kafka_log.flexible_encoding import MalformedMessageError, MessageReader
from kafka_log.plain_records import PlainFile
from kafka_log.segment_files import list_segments, log_file_name
from kafka_log.topic_partition import TopicId, TopicIdPartition, topic_id_to_text

DIRECTORY_NAME: Final = "__cluster_metadata-0"
_SNAPSHOT: Final = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_INT32: Final = struct.Struct(">i")
_TOPIC_RESOURCE: Final = 2
_BROKER_RESOURCE: Final = 4
_UNCHANGED_LEADER: Final = -2
_OLDEST, _NEWEST = 0, -1
"""Snapshots to begin with."""


@dataclass(slots=True)
class KRaftPartition:
    """A partition as the controllers' log has it: replicas, leader, in-sync replicas."""

    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    leader: int
    leader_epoch: int
    directories: tuple[str, ...]
    """The id of each replica's log directory, in the order of the replicas; none before Kafka 3.7."""
    eligible: tuple[int, ...] = ()
    """Replicas not in sync that may still be elected, because they have everything that was committed (KIP-966)."""
    last_known: tuple[int, ...] = ()
    """The replicas to elect when none is in sync or eligible any more after an unclean shutdown."""
    leaders: dict[int, int] = field(default_factory=dict, compare=False)
    """Who led in each leader epoch that was read; -1: nobody."""

    def __post_init__(self) -> None:
        self.leaders[self.leader_epoch] = self.leader


@dataclass(slots=True)
class KRaftTopic:
    name: str
    topic_id: TopicId
    partitions: dict[int, KRaftPartition] = field(default_factory=dict)


@dataclass(slots=True)
class KRaftImage:
    """The topics, partitions and leaders in the KRaft controllers' log, up to its end."""

    topics: dict[TopicId, KRaftTopic] = field(default_factory=dict)
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    """Settings by topic name; only those that were set for the topic."""
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    """The brokers' settings for logs (`log.*`) that were set at runtime, by broker id; under "": for all brokers."""
    directories: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Ids of each broker's log directories, as last registered."""
    end_offset: int = 0


def read_cluster_metadata(metadata_log_dir: Path) -> KRaftImage:
    """Read the image from `metadata_log_dir`, or from a copy of its `__cluster_metadata-0`.

    Raises LogDirectoryError when it cannot be read, MalformedFileError when it is damaged or of an unknown version.
    """
    directory = metadata_log_dir / DIRECTORY_NAME
    if metadata_log_dir.name == DIRECTORY_NAME:
        directory = metadata_log_dir
    return _read(directory, _NEWEST)


def read_leaders(metadata_log_dir: Path, topics: Collection[TopicId]) -> dict[TopicIdPartition, dict[int, int]]:
    """Return by partition who led in each leader epoch, as far back as this log goes; -1: nobody.

    It may be called while the broker runs: an epoch that a log on this host has is committed. Raises LogDirectoryError,
    MalformedFileError.
    """
    directory = metadata_log_dir / DIRECTORY_NAME
    try:
        image = _read(directory, _OLDEST, topics)
    except LogDirectoryError:  # the broker may have deleted old files meanwhile
        image = _read(directory, _OLDEST, topics)
    return {
        TopicIdPartition(topic_id, number): partition.leaders
        for topic_id in topics
        if topic_id in image.topics
        for number, partition in image.topics[topic_id].partitions.items()
    }


def _read(directory: Path, snapshot: int, only: Collection[TopicId] | None = None) -> KRaftImage:
    """Read the snapshot with this index among all, and what is behind it; `only` what names one of these topics."""
    image = KRaftImage()
    try:
        snapshots = sorted(path for path in directory.iterdir() if _SNAPSHOT.fullmatch(path.name))
        paths = [directory / log_file_name(base) for base in list_segments(directory)]
        is_whole = bool(paths) and not int(paths[0].stem)
        if not snapshots and not is_whole:
            raise MalformedFileError(directory, 0, "neither a snapshot nor the log from its beginning is here")
        if snapshots and not (is_whole and snapshot == _OLDEST):
            _apply_file(image, snapshots[snapshot], only, is_snapshot=True)
            image.end_offset = int(snapshots[snapshot].name[:20])
        for path in paths:
            _apply_file(image, path, only, is_snapshot=False)
    except OSError as error:
        raise LogDirectoryError(directory, str(error)) from error
    return image


def _apply_file(image: KRaftImage, path: Path, only: Collection[TopicId] | None, *, is_snapshot: bool) -> None:
    file = PlainFile(path)
    for batch in file.batches:
        if not is_snapshot:
            if batch.last_offset < image.end_offset:
                continue
            if batch.base_offset > image.end_offset:
                raise MalformedFileError(path, 0, f"what is from offset {image.end_offset} on is missing")
            image.end_offset = batch.last_offset + 1
        if only is not None and not any(file.raw.find(topic_id, batch.start, batch.end) >= 0 for topic_id in only):
            continue
        try:
            for record in file.records(batch):
                _apply(image, record.value or b"")
        except MalformedMessageError as error:
            raise MalformedFileError(path, 0, str(error)) from error
    if file.damaged is not None and is_snapshot:
        raise MalformedFileError(path, 0, f"batch {file.damaged.base_offset} has a wrong checksum")


def _apply(image: KRaftImage, value: bytes) -> None:
    reader = MessageReader(value)
    reader.unsigned_varint()
    api_key, version = reader.unsigned_varint(), reader.unsigned_varint()
    apply = _RECORDS.get(api_key)
    if apply is not None:
        apply(image, reader, version)


def _topic(image: KRaftImage, reader: MessageReader, _version: int) -> None:
    name, topic_id = reader.compact_string(), TopicId(reader.uuid())
    image.topics[topic_id] = KRaftTopic(name, topic_id)


def _remove_topic(image: KRaftImage, reader: MessageReader, _version: int) -> None:
    topic = image.topics.pop(TopicId(reader.uuid()), None)
    if topic is not None:
        image.topic_configs.pop(topic.name, None)


def _partition(image: KRaftImage, reader: MessageReader, version: int) -> None:
    number, topic_id = _int32(reader), TopicId(reader.uuid())
    replicas, in_sync, _removing, _adding = (_int32s(reader) for _ in range(4))
    leader, leader_epoch, _partition_epoch = (_int32(reader) for _ in range(3))
    directories = _uuids(reader) if version >= 1 else ()
    tagged = {tag: MessageReader(raw) for tag, raw in reader.tagged_fields().items()}
    eligible, last_known = (_int32s(tagged[tag]) if tag in tagged else () for tag in (1, 2))
    if topic_id in image.topics:
        image.topics[topic_id].partitions[number] = KRaftPartition(
            replicas, in_sync, leader, leader_epoch, directories, eligible, last_known
        )


def _partition_change(image: KRaftImage, reader: MessageReader, _version: int) -> None:
    number, topic_id = _int32(reader), TopicId(reader.uuid())
    topic = image.topics.get(topic_id)
    partition = topic.partitions.get(number) if topic else None
    if partition is None:
        return
    fields = {tag: MessageReader(raw) for tag, raw in reader.tagged_fields().items()}
    if 0 in fields:
        partition.in_sync = _int32s(fields[0])
    leader = _int32(fields[1]) if 1 in fields else _UNCHANGED_LEADER
    if leader != _UNCHANGED_LEADER:
        # As in Kafka's PartitionRegistration.merge: naming a leader starts a new leadership, even of the same broker.
        partition.leader = leader
        partition.leader_epoch += 1
        partition.leaders[partition.leader_epoch] = leader
    if 2 in fields:
        partition.replicas = _int32s(fields[2])
    if 6 in fields:
        partition.eligible = _int32s(fields[6])
    if 7 in fields:
        partition.last_known = _int32s(fields[7])
    if 8 in fields:
        partition.directories = _uuids(fields[8])


def _config(image: KRaftImage, reader: MessageReader, _version: int) -> None:
    resource = reader.take(1)[0]
    name, key = reader.compact_string(), reader.compact_string()
    value = reader.compact_nullable_bytes()
    if resource == _TOPIC_RESOURCE:
        settings = image.topic_configs.setdefault(name, {})
    elif resource == _BROKER_RESOURCE and key.startswith("log."):  # others may be secrets
        settings = image.broker_configs.setdefault(name, {})
    else:
        return
    if value is None:
        settings.pop(key, None)
    else:
        settings[key] = value.decode(errors="replace")


def _register_broker(image: KRaftImage, reader: MessageReader, version: int) -> None:
    broker_id = _int32(reader)
    reader.take((1 if version >= 2 else 0) + 16 + 8)
    for _ in range(reader.compact_array_count(7)):
        reader.compact_string()
        reader.compact_string()
        reader.take(4)
        reader.skip_tagged_fields()
    for _ in range(reader.compact_array_count(6)):
        reader.compact_string()
        reader.take(4)
        reader.skip_tagged_fields()
    reader.compact_nullable_bytes()
    reader.take(2 if version >= 1 else 1)
    fields = reader.tagged_fields()
    if 0 in fields:
        image.directories[broker_id] = _uuids(MessageReader(fields[0]))


def _change_broker(image: KRaftImage, reader: MessageReader, _version: int) -> None:
    broker_id = _int32(reader)
    reader.take(8)
    fields = reader.tagged_fields()
    if 2 in fields:
        image.directories[broker_id] = _uuids(MessageReader(fields[2]))


def _unregister_broker(image: KRaftImage, reader: MessageReader, _version: int) -> None:
    image.directories.pop(_int32(reader), None)


def _int32(reader: MessageReader) -> int:
    return reader.fields(_INT32)[0]


def _int32s(reader: MessageReader) -> tuple[int, ...]:
    return tuple(_int32(reader) for _ in range(reader.compact_array_count(4, nullable=True)))


def _uuids(reader: MessageReader) -> tuple[str, ...]:
    count = reader.compact_array_count(16, nullable=True)
    return tuple(topic_id_to_text(TopicId(reader.uuid())) for _ in range(count))


_RECORDS: Final[Mapping[int, Callable[[KRaftImage, MessageReader, int], None]]] = {
    0: _register_broker,
    1: _unregister_broker,
    2: _topic,
    3: _partition,
    4: _config,
    5: _partition_change,
    9: _remove_topic,
    17: _change_broker,
}
