"""A combined segment that is stored, as listeners are told of it."""

from dataclasses import dataclass

from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry
from rlm.write_path.uploads.segment_queue import MetaQueueItem


@dataclass(frozen=True, slots=True)
class UploadedSegment:
    """A combined segment that is stored."""

    combined_segment_id: CombinedSegmentId
    items: tuple[MetaQueueItem, ...]
    entries: tuple[RemoteLogSegmentMetadataEntry, ...]
    """`entries[i]` says where `items[i]` lies in the object."""
    size_bytes: int
    stored_s: float
    """Monotonic."""
    custom_metadata: bytes = b""
    """The storage manager's."""
    digests: tuple[tuple[bytes, ...], ...] = ()
    """Of each batch of each item its SHA-256; empty where none are taken."""

    @property
    def oldest_item(self) -> MetaQueueItem | None:
        """What was appended first; None where all of it was void by the time that it was stored."""
        return min(self.items, key=lambda item: item.seen_s, default=None)
