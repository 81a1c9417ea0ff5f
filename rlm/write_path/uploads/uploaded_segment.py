"""A stored combined segment, as listeners get it."""

from dataclasses import dataclass

from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry
from rlm.write_path.uploads.segment_queue import MetaQueueItem


@dataclass(frozen=True, slots=True)
class UploadedSegment:
    """A stored combined segment."""

    combined_segment_id: CombinedSegmentId
    items: tuple[MetaQueueItem, ...]
    entries: tuple[RemoteLogSegmentMetadataEntry, ...]
    """`entries[i]` says where `items[i]` lies in the object."""
    size_bytes: int
    stored_s: float
    """Monotonic."""
    custom_metadata: bytes = b""
    """The storage manager's custom metadata."""
    digests: tuple[tuple[bytes, ...], ...] = ()
    """The SHA-256 of each batch of each item; empty if none are taken."""

    @property
    def oldest_item(self) -> MetaQueueItem | None:
        """The item that was appended first; None if all of it was void when it was stored."""
        return min(self.items, key=lambda item: item.seen_s, default=None)
