"""What stands in the metadata topic, beside the whole-segment records of `plugin.segment_metadata`."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from kafka_log.topic_partition import TopicId
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from plugin.format import entry_columns
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)


class PublishedSegment(NamedTuple):
    """A combined segment's record as read from the topic, its entries left as bytes.

    A store holds millions of entries, and nobody asks for most of them.
    """

    combined_segment_id: CombinedSegmentId
    state: RemoteLogSegmentState
    event_timestamp_ms: int
    size_bytes: int
    custom_metadata: bytes
    entry_block: bytes
    """The entries as `plugin.format.entry_columns` encodes them, checked. Empty for no entries."""
    is_rebuilt: bool = False
    """Whether a rebuild told of it: then no registration before it in the topic refuses it."""

    @classmethod
    def of(cls, metadata: RemoteWalCombinedLogSegmentMetadata) -> Self:
        """Raises ValueError when the entries cannot be encoded."""
        return cls(
            metadata.combined_segment_id,
            metadata.state,
            metadata.event_timestamp_ms,
            metadata.size_bytes,
            metadata.custom_metadata,
            encode_entries(metadata.entries, digests=True),
        )

    @property
    def entry_count(self) -> int:
        """How many entries the segment has."""
        return entry_columns.entry_count(self.entry_block) if self.entry_block else 0

    @property
    def metadata(self) -> RemoteWalCombinedLogSegmentMetadata:
        """With the entries decoded, anew at each call."""
        return RemoteWalCombinedLogSegmentMetadata(
            self.combined_segment_id,
            decode_entries(self.entry_block),
            self.state,
            self.event_timestamp_ms,
            self.size_bytes,
            self.custom_metadata,
        )


def encode_entries(entries: tuple[RemoteLogSegmentMetadataEntry, ...], *, digests: bool = False) -> bytes:
    """The entry columns as they stand in a value: nothing at all when there are no entries."""
    return entry_columns.encode(entries, digests=digests) if entries else b""


def decode_entries(entry_block: bytes | memoryview) -> tuple[RemoteLogSegmentMetadataEntry, ...]:
    """The inverse of `encode_entries`. Raises ValueError."""
    return entry_columns.decode(entry_block) if len(entry_block) else ()


@dataclass(frozen=True, slots=True)
class RemoteWalLogSegmentMetadataUpdate:
    """Entries of one partition that are dead: a leader of a newer epoch does not have these offsets.

    The KIP lets the new leader publish DELETE events after a failover. Ours is a record of its own, as the
    object lives on while other partitions' entries in it are alive. What a truncation kills is always a tail,
    so an entry here means: of that object's records of that partition and epoch, all from `first_offset` on
    are dead.
    """

    combined_segment_id: CombinedSegmentId
    entries: tuple[RemoteLogSegmentMetadataEntry, ...]
    """All of one partition."""
    broker_id: int
    """Who says so: the broker that leads the partition now."""
    leader_epoch: int
    """The epoch in which it leads; higher than that of the entries."""
    event_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class RemoteWalNodeRegistration:
    """An agent's incarnation begins (a node epoch): what older ones of its broker still publish is refused.

    It is published before the incarnation's first object, to the partition of the topic that holds all
    records of that broker's objects.
    """

    broker_id: int
    incarnation: int
    caretaker_broker_id: int
    """Whose agent cares for the broker's objects: its own, or another when the broker is gone for good."""
    event_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class RemoteWalRebuiltSegment:
    """A finished combined segment, told again by a rebuild of the topic, out of the object itself.

    In a topic that began anew its writer's successors are registered before it, and yet it counts.
    """

    segment: PublishedSegment

    @property
    def combined_segment_id(self) -> CombinedSegmentId:
        """The segment's."""
        return self.segment.combined_segment_id


@dataclass(frozen=True, slots=True)
class RemoteWalTopicRebuilt:
    """All that object storage held was told again: what the topic does not tell from here on is not there.

    Published behind the records of the rebuild, when they were read back.
    """

    topic_id: TopicId
    """Of the topic that was rebuilt; in another one the record says nothing."""
    event_timestamp_ms: int
    """Grows from one rebuild to the next."""


@dataclass(frozen=True, slots=True)
class UnknownRecord:
    """A record that could not be decoded, and why. It is counted; a newer agent's is kept as it is."""

    reason: str
    """A short label, the same for all records with this fault."""
    detail: str
    kept: tuple[bytes, bytes] | None = None
    """Key and value, where a newer version or record type is all that is wrong: an upgraded agent decodes it.
    None for what is foreign or damaged.
    """


PublishableRecord = (
    RemoteWalCombinedLogSegmentMetadata
    | RemoteWalLogSegmentMetadataUpdate
    | RemoteWalNodeRegistration
    | RemoteWalRebuiltSegment
    | RemoteWalTopicRebuilt
    | RemoteWalGapDeclaration
)
"""What an agent publishes."""

MetadataRecord = PublishedSegment | PublishableRecord | UnknownRecord
