"""A store's whole content as plain values, which are JSON in snapshots and in the store's file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple, Protocol

from pydantic import ConfigDict, Field, SkipValidation

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap
from metadata_topic.records.records import PublishedSegment
from metadata_topic.store.declared_ends import DeclaredEnd
from metadata_topic.store.fencing import PlacedRegistration
from metadata_topic.store.released_offsets import ReleasedUpTo
from plugin.segment_metadata import CombinedSegmentId

JSON_CONFIG: Final = ConfigDict(ser_json_bytes="hex", val_json_bytes="hex", arbitrary_types_allowed=True)


class WriterImage(NamedTuple):
    """The sequences of one incarnation's objects that are deleted or refused, as half-open intervals."""

    broker_id: int
    incarnation: int
    deleted: Sequence[tuple[int, int]]
    fenced: Sequence[tuple[int, int]]


class DeadTail(NamedTuple):
    """The dead end of an entry in an object: all of its records from `first_offset` on."""

    combined_segment_id: CombinedSegmentId
    topic_id_partition: TopicIdPartition
    leader_epoch: int
    first_offset: int


class Segments(Protocol):
    """Segments that can be counted, and read as often as wanted; they need not be in memory all at once."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[PublishedSegment]: ...


@dataclass(frozen=True, slots=True)
class StoreImage:
    """A store's content at one point of the topic, which `progress` names."""

    progress: dict[int, int]
    """Partition of the metadata topic to the offset that is to be read next."""
    writers: Sequence[WriterImage] = ()
    registrations: Sequence[PlacedRegistration] = ()
    dead: Sequence[DeadTail] = ()
    segments: Annotated[SkipValidation[Segments], Field(exclude=True)] = ()
    """All that are not deleted."""
    topic_id: TopicId | None = None
    """The id of the topic that was read; None: not known."""
    rebuilt_ms: int = -1
    """When the newest rebuild of the topic was made; -1: never."""
    epochs: Mapping[int, int] = field(default_factory=dict)
    """Partition to the leader epoch of the last record below `progress`, or a later one; lacks those not known."""
    released: Sequence[ReleasedUpTo] = ()
    log_starts: Sequence[ReleasedUpTo] = ()
    """Where logs begin, as the leaders of those epochs told."""
    gaps: Sequence[DeclaredGap] = ()
    ends: Sequence[DeclaredEnd] = ()
    """Where epochs end, as leaders declared it."""
    extras: Annotated[Mapping[str, bytes], Field(exclude=True)] = field(default_factory=dict)
    """What other readers of the same records know at the same point, by a name of their own."""
