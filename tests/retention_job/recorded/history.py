"""A history for `remote-wal report` with defects planted in it, and what must be found.

The bulk of it is healthy: each broker's agent writes segment after segment, each with an entry for the next few of its
partitions, and one for a partition that gets more than its share. The defects are made by `defects`; `Planted.expected`
says what the job must find: this, and nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records import serde
from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.topic.topic import METADATA_TOPIC
from plugin.archive_storage import StoredArchiveObject
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from retention_job.sources.kafka import Cluster, Offsets, Topic

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
CLUSTER_ID: Final = "perf-report-cluster"
ARCHIVED: Final = "archived"
"""The topic with the archive on."""
BULK_TOPICS: Final = 3
INCARNATION: Final = 1
_HEADER_BYTES: Final = 112
_ENTRY_BYTES: Final = 12_000
_RECORDS_PER_ENTRY: Final = 25
_INTERVAL_MS: Final = 250

Record = tuple[bytes, bytes]
Finding = tuple[str, str | None, int | None, str | None]
"""(kind, topic, partition, segment)"""


def topic_id(name: str) -> TopicId:
    return TopicId(name.encode().ljust(16, b".")[:16])


@dataclass(frozen=True, slots=True)
class HistorySpec:
    """How large, and how uneven."""

    segments: int
    now_ms: int
    brokers: int = 3
    entries_per_segment: int = 10
    """One of them is of its broker's crowded partition."""
    partitions_per_broker: int = 400
    defects: int = 3
    """Of each kind."""

    @property
    def per_broker(self) -> int:
        return self.segments // self.brokers

    @property
    def broker_ids(self) -> range:
        return range(1, self.brokers + 1)


@dataclass(frozen=True, slots=True)
class StoredObject:
    segment_id: CombinedSegmentId
    size_bytes: int
    last_modified_ms: int


@dataclass(slots=True)
class Planted:
    """Records and objects beside the bulk, and what must be found of all of it."""

    records: list[tuple[int, Record]] = field(default_factory=list)
    """Each with the broker to whose partition of the topic it goes."""
    objects: list[StoredObject] = field(default_factory=list)
    archive_objects: list[StoredArchiveObject] = field(default_factory=list)
    lost: set[tuple[int, int]] = field(default_factory=set)
    """(broker, sequence) of the bulk: no object."""
    unpublished: set[tuple[int, int]] = field(default_factory=set)
    """(broker, sequence) of the bulk: no record."""
    log_starts: dict[tuple[str, int], int] = field(default_factory=dict)
    expected: set[Finding] = field(default_factory=set)


def bulk_entries(spec: HistorySpec, broker_id: int, sequence: int) -> Iterator[tuple[str, int, int]]:
    """Topic, partition and first offset of each entry of a segment."""
    even = spec.entries_per_segment - 1
    visits = (divmod(visit, spec.partitions_per_broker) for visit in range(sequence * even, (sequence + 1) * even))
    for turn, partition in [(sequence, 0), *((turn, 1 + partition) for turn, partition in visits)]:
        number = broker_id * (spec.partitions_per_broker + 1) + partition
        yield f"bulk-{partition % BULK_TOPICS}", number, turn * _RECORDS_PER_ENTRY


def bulk_segments(
    spec: HistorySpec, broker_id: int, sequences: range | None = None
) -> Iterator[RemoteWalCombinedLogSegmentMetadata]:
    """The COPY_SEGMENT_FINISHED of each of a broker's segments, or of some, the newest an hour ago."""
    size_bytes = _HEADER_BYTES + spec.entries_per_segment * _ENTRY_BYTES + 200
    for sequence in sequences or range(spec.per_broker):
        entries = tuple(
            RemoteLogSegmentMetadataEntry(
                TopicIdPartition(topic_id(topic), partition), 0, first, first + _RECORDS_PER_ENTRY - 1,
                _HEADER_BYTES + at * _ENTRY_BYTES, _HEADER_BYTES + (at + 1) * _ENTRY_BYTES, sequence,
            )
            for at, (topic, partition, first) in enumerate(bulk_entries(spec, broker_id, sequence))
        )  # fmt: skip
        yield RemoteWalCombinedLogSegmentMetadata(
            CombinedSegmentId(broker_id, INCARNATION, sequence),
            entries,
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            spec.now_ms - HOUR_MS - (spec.per_broker - sequence) * _INTERVAL_MS,
            size_bytes,
        )


def record_of(segment: RemoteWalCombinedLogSegmentMetadata) -> Record:
    """Key and value, as agents write them."""
    return serde.key_of(segment), serde.encode(segment)


def cluster_of(spec: HistorySpec, planted: Planted, metadata_offsets: Offsets) -> Cluster:
    """The cluster in which the history took place."""
    found = (partition or 0 for _, topic, partition, _ in planted.expected if topic in ("kept", ARCHIVED))
    planted_partitions = 101 + max(found, default=0)
    sizes = {f"bulk-{i}": (spec.partitions_per_broker + 1) * (spec.brokers + 1) for i in range(BULK_TOPICS)}
    sizes |= dict.fromkeys(("kept", "short", ARCHIVED), planted_partitions)
    topics = [_topic(name, count) for name, count in sizes.items()]
    offsets = {
        topic.name: Offsets(
            {number: planted.log_starts.get((topic.name, number), 0) for number in topic.partitions},
            dict.fromkeys(topic.partitions, 2**40),
        )
        for topic in topics
    }
    config = {
        "cleanup.policy": "delete",
        "retention.ms": str(8 * DAY_MS),
        "retention.bytes": "-1",
        "local.retention.ms": "-2",
    }
    numbers = tuple(metadata_offsets.latest)
    metadata = Topic(topic_id(METADATA_TOPIC), METADATA_TOPIC, numbers, 1, TopicSettings(), config)
    return Cluster(frozenset(spec.broker_ids), (*topics, metadata), {**offsets, METADATA_TOPIC: metadata_offsets})


def _topic(name: str, partitions: int) -> Topic:
    """The WAL keeps `short` for an hour, whose local retention contradicts the other one, and all others for a week."""
    is_short = name == "short"
    config = {
        "cleanup.policy": "delete",
        "retention.ms": str(7 * DAY_MS if is_short else -1),
        "local.retention.ms": str(8 * DAY_MS if is_short else -2),
        "remote.storage.enable": str(is_short).lower(),
        "retention.bytes": "-1",
        "local.retention.bytes": "-2",
    }
    return Topic(
        topic_id(name),
        name,
        tuple(range(partitions)),
        3,
        TopicSettings(enable=True, archive=name == ARCHIVED, wal_retention_ms=HOUR_MS if is_short else 7 * DAY_MS),
        config,
    )
