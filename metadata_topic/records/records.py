"""The records of the metadata topic, beside the whole-segment records of `plugin.segment_metadata`."""

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

    A store holds millions of entries, and most of them are never read.
    """

    combined_segment_id: CombinedSegmentId
    state: RemoteLogSegmentState
    event_timestamp_ms: int
    size_bytes: int
    custom_metadata: bytes
    entry_block: bytes
    """The entries as `plugin.format.entry_columns` encodes them, checked. Empty for no entries."""
    is_rebuilt: bool = False
    """Whether it comes from a rebuild: then no earlier registration in the topic refuses it."""

    @classmethod
    def of(cls, metadata: RemoteWalCombinedLogSegmentMetadata) -> Self:
        """Build a published segment from its metadata. Raises ValueError when the entries cannot be encoded."""
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
        """The metadata with the entries decoded; decodes them at each call."""
        return RemoteWalCombinedLogSegmentMetadata(
            self.combined_segment_id,
            decode_entries(self.entry_block),
            self.state,
            self.event_timestamp_ms,
            self.size_bytes,
            self.custom_metadata,
        )


def encode_entries(entries: tuple[RemoteLogSegmentMetadataEntry, ...], *, digests: bool = False) -> bytes:
    """Encode entries as the entry columns of a record's value; without entries it is empty."""
    return entry_columns.encode(entries, digests=digests) if entries else b""


def decode_entries(entry_block: bytes | memoryview) -> tuple[RemoteLogSegmentMetadataEntry, ...]:
    """Decode entry columns. Raises ValueError when they are malformed."""
    return entry_columns.decode(entry_block) if len(entry_block) else ()


@dataclass(frozen=True, slots=True)
class RemoteWalLogSegmentMetadataUpdate:
    """Declares the end of a partition's entry in an object dead: a leader of a newer epoch does not have these offsets.

    The KIP lets the new leader publish DELETE events after a failover. Ours is a separate record, because the object
    lives on while other partitions' entries in it are alive. A truncation always kills a tail, so an entry here means:
    of that object's records of that partition and epoch, all from `first_offset` on are dead.
    """

    combined_segment_id: CombinedSegmentId
    entries: tuple[RemoteLogSegmentMetadataEntry, ...]
    """All of one partition."""
    broker_id: int
    """The broker that leads the partition now and publishes this."""
    leader_epoch: int
    """The epoch in which it leads; higher than that of the entries."""
    event_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class RemoteWalNodeRegistration:
    """Start of an agent's incarnation (a node epoch): later records of older ones of its broker are refused.

    It is published before the incarnation's first object, to the partition of the topic that holds all records of that
    broker's objects.
    """

    broker_id: int
    incarnation: int
    caretaker_broker_id: int
    """The broker whose agent cares for the broker's objects: itself, or another when the broker is gone for good."""
    event_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class RemoteWalRebuiltSegment:
    """A finished combined segment, published again by a rebuild of the topic, from the object itself.

    It counts although, in a recreated topic, newer incarnations of its writer are registered before it.
    """

    segment: PublishedSegment

    @property
    def combined_segment_id(self) -> CombinedSegmentId:
        return self.segment.combined_segment_id


@dataclass(frozen=True, slots=True)
class RemoteWalTopicRebuilt:
    """Marks that everything in object storage was published again: what the topic lacks from here on does not exist.

    Published behind the records of the rebuild, when they were read back.
    """

    topic_id: TopicId
    """The id of the rebuilt topic; in another topic the record has no meaning."""
    event_timestamp_ms: int
    """Grows from one rebuild to the next."""


@dataclass(frozen=True, slots=True)
class UnknownRecord:
    """Stands for a record that could not be decoded, and says why. It is counted, and not kept."""

    reason: str
    """A short label, the same for all records with this fault."""
    detail: str


PublishableRecord = (
    RemoteWalCombinedLogSegmentMetadata
    | RemoteWalLogSegmentMetadataUpdate
    | RemoteWalNodeRegistration
    | RemoteWalRebuiltSegment
    | RemoteWalTopicRebuilt
    | RemoteWalGapDeclaration
)
"""The records that an agent publishes."""

MetadataRecord = PublishedSegment | PublishableRecord | UnknownRecord
