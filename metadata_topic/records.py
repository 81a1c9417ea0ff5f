"""What stands in the metadata topic, beside the whole-segment records of `plugin.segment_metadata`."""

from dataclasses import dataclass

from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteWalCombinedLogSegmentMetadata,
)


@dataclass(frozen=True, slots=True)
class PublishedSegment:
    """A combined segment's record as read from the topic."""

    metadata: RemoteWalCombinedLogSegmentMetadata
    entry_block: bytes
    """`metadata.entries` as `plugin.entry_columns` encodes them; what the store keeps. Empty for no entries.
    """


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
class UnknownRecord:
    """A record that could not be decoded: foreign, damaged, or written by a newer agent. It is kept out, and
    counted.
    """

    reason: str
    """A short label, the same for all records with this fault."""
    detail: str


MetadataRecord = (
    PublishedSegment | RemoteWalCombinedLogSegmentMetadata | RemoteWalLogSegmentMetadataUpdate | UnknownRecord
)
