"""A history for `remote-wal report`, as large as wanted, with defects planted in it, and what must be found.

The bulk of it is healthy: each broker's agent writes segment after segment, each with an entry for the next few of its
partitions, and now and then one for a partition that gets more than its share. A segment's record follows from its
number alone, so any part of the history is made by a few numpy operations, wherever it is needed. The defects are made
by `defects`; `Planted.expected` says what the job must find: this, and nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kafka_log.topic_partition import TopicId
from metadata_topic.records import serde
from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.topic.topic import METADATA_TOPIC
from plugin.archive_storage import StoredArchiveObject
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from retention_job.sources.kafka_cluster import Cluster, Offsets, Topic

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
CLUSTER_ID: Final = "perf-report-cluster"
ARCHIVED: Final = "archived"
"""The topic with the archive on."""
ENTRY_BYTES: Final = 12_000
BULK_TOPICS: Final = 3
INCARNATION: Final = 1
_HEADER_BYTES: Final = 112

Record = tuple[bytes, bytes]
Finding = tuple[str, str | None, int | None, str | None]
"""(kind, topic, partition, segment)"""


def topic_id(name: str) -> TopicId:
    """An id that follows from the name."""
    return TopicId(name.encode().ljust(16, b".")[:16])


@dataclass(frozen=True, slots=True)
class HistorySpec:
    """How large, and how uneven."""

    segments: int
    now_ms: int
    brokers: int = 3
    entries_per_segment: int = 10
    hot_entries: int = 1
    """So many of a segment's entries are of its broker's one crowded partition."""
    partitions_per_broker: int = 400
    records_per_entry: int = 25
    defects: int = 3
    """Of each kind."""
    interval_ms: int = 250
    first_segment: int = 0
    """Of each broker; a later part of the same history begins where an earlier one ended."""
    part: int = 0
    """Which part it is, so that its defects are others."""
    with_starts: bool = False
    """Whether each segment's upload is told of before its end, as agents do."""

    @property
    def per_broker(self) -> int:
        """Segments of each broker."""
        return self.segments // self.brokers


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A line of the inventory."""

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


# The bulk.

_ENTRY_COLUMNS: Final = (
    ("topic", 1),
    ("partition", 2),
    ("epoch", 1),
    ("first", 8),
    ("delta", 2),
    ("length", 4),
    ("crc", 4),
)


def _value_dtype(entries: int) -> np.dtype[np.void]:
    head = [
        ("version", "u1"), ("type", "u1"), ("id", "V16"), ("event_ms", ">i8"), ("state", "u1"), ("size", ">i8"),
        ("custom", ">u2"), ("block_version", "u1"), ("positions", "u1"), ("reserved", "<u2"), ("count", "<u4"),
        ("topics", "<u4"), ("first_position", "<i8"),
    ]  # fmt: skip
    heads = [part for name, _ in _ENTRY_COLUMNS for part in ((f"{name}_min", "<i8"), (f"{name}_width", "u1"))]
    columns = [(name, f"<u{width}", (entries,)) for name, width in _ENTRY_COLUMNS]
    return np.dtype([*head, *heads, ("topic_ids", "V16", (BULK_TOPICS,)), *columns])


def bulk_entries(spec: HistorySpec, sequences: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(partition, first offset) of each entry of these segments of any broker, shape (segments, entries)."""
    even = spec.entries_per_segment - spec.hot_entries
    hot = sequences[:, None] * spec.hot_entries + np.arange(spec.hot_entries)
    visit = sequences[:, None] * even + np.arange(even)
    partition = np.concatenate((np.zeros_like(hot), 1 + visit % spec.partitions_per_broker), axis=1)
    turn = np.concatenate((hot, visit // spec.partitions_per_broker), axis=1)
    return partition, turn * spec.records_per_entry


def event_ms(spec: HistorySpec, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
    """When the bulk's segments were finished; the newest an hour ago."""
    last = spec.first_segment + spec.per_broker
    return spec.now_ms - HOUR_MS - (last - sequences) * spec.interval_ms


def object_bytes(spec: HistorySpec) -> int:
    """The size of each of the bulk's objects."""
    return _HEADER_BYTES + spec.entries_per_segment * ENTRY_BYTES + 200


def bulk_records(spec: HistorySpec, broker_id: int, sequences: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """(keys, values) of these segments' COPY_SEGMENT_FINISHED, as arrays of equally long voids."""
    n = len(sequences)
    ids = np.zeros(n, dtype=[("broker", ">u4"), ("high", ">u2"), ("low", ">u4"), ("zero", ">u2"), ("sequence", ">u4")])
    ids["broker"], ids["low"], ids["sequence"] = broker_id, INCARNATION, sequences
    keys = ids.view("V16").reshape(n)
    partition, first = bulk_entries(spec, sequences)
    values = np.zeros(n, dtype=_value_dtype(spec.entries_per_segment))
    values["version"] = values["type"] = values["state"] = values["block_version"] = 1
    values["id"], values["event_ms"], values["size"] = keys, event_ms(spec, sequences), object_bytes(spec)
    values["count"], values["topics"], values["first_position"] = spec.entries_per_segment, BULK_TOPICS, _HEADER_BYTES
    for name, width in _ENTRY_COLUMNS:
        values[f"{name}_width"] = width
    values["topic_ids"] = np.frombuffer(b"".join(topic_id(f"bulk-{i}") for i in range(BULK_TOPICS)), dtype="V16")
    values["topic"] = partition % BULK_TOPICS
    values["partition"] = broker_id * (spec.partitions_per_broker + 1) + partition
    values["first"] = first
    values["delta"] = spec.records_per_entry - 1
    values["length"] = ENTRY_BYTES
    values["crc"] = (sequences[:, None] * 2654435761 + np.arange(spec.entries_per_segment)) % 2**32
    return keys, values.view(f"V{values.dtype.itemsize}").reshape(n)


def bulk_starts(spec: HistorySpec, keys: NDArray[Any], sequences: NDArray[np.int64]) -> NDArray[Any]:
    """Values of these segments' COPY_SEGMENT_STARTED."""
    started = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    one = serde.encode(RemoteWalCombinedLogSegmentMetadata(CombinedSegmentId(0, 0, 0), (), started, 0))
    head = [("of_all", "V2"), ("id", "V16"), ("event_ms", ">i8")]
    values = np.empty(len(sequences), np.dtype([*head, ("rest", f"V{len(one) - 26}")]))
    values[:] = np.frombuffer(one, values.dtype)[0]
    values["id"], values["event_ms"] = keys, event_ms(spec, sequences) - 5
    return values.view(f"V{len(one)}").reshape(len(sequences))


def broker_ids(spec: HistorySpec) -> range:
    """Their ids."""
    return range(1, spec.brokers + 1)


def sequences_of(spec: HistorySpec, start: int, stop: int) -> NDArray[np.int64]:
    """The numbers of the segments [start, stop) of a broker's part."""
    return np.arange(spec.first_segment + start, spec.first_segment + stop, dtype=np.int64)


def metadata_partition_of(broker_id: int) -> int:
    """The partition of the metadata topic, of as many as there are brokers and one."""
    return broker_id


# The cluster around it.


def cluster_of(
    spec: HistorySpec,
    defects: Sequence[Planted],
    metadata_offsets: Offsets,
    partitions_of: Mapping[str, int] | None = None,
) -> Cluster:
    """The cluster in which the history took place."""
    log_starts = {where: offset for part in defects for where, offset in part.log_starts.items()}
    bulk = (spec.partitions_per_broker + 1) * (spec.brokers + 1)
    planted_partitions = 1 + max(
        (int(p or 0) for part in defects for _, t, p, _ in part.expected if t in ("kept", ARCHIVED)), default=0
    )
    sizes = {f"bulk-{i}": bulk for i in range(BULK_TOPICS)} | {
        "kept": planted_partitions + 100,
        "short": planted_partitions + 100,
        ARCHIVED: planted_partitions + 100,
    }
    topics = [_topic(name, count) for name, count in sizes.items()]
    offsets = {
        topic.name: Offsets(
            {number: log_starts.get((topic.name, number), 0) for number in topic.partitions},
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
    return Cluster(frozenset(broker_ids(spec)), (*topics, metadata), {**offsets, METADATA_TOPIC: metadata_offsets})


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


def bulk_inventory(
    spec: HistorySpec, broker_id: int, sequences: NDArray[np.int64], losses: Planted
) -> Iterator[StoredObject]:
    """The bulk's objects, for small histories."""
    for sequence, at_ms in zip(sequences.tolist(), event_ms(spec, sequences).tolist(), strict=True):
        if (broker_id, sequence) not in losses.lost:
            yield StoredObject(CombinedSegmentId(broker_id, INCARNATION, sequence), object_bytes(spec), at_ms)
