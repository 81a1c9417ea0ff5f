"""The interface of the publisher of metadata."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from plugin.segment_metadata import CombinedSegmentId, RemoteWalCombinedLogSegmentMetadata

RecordT_contra = TypeVar("RecordT_contra", contravariant=True)


class MetadataPublisher(Protocol[RecordT_contra]):
    """Publishes to __remote_wal_log_metadata without blocking, in the order of the calls."""

    def publish(self, record: RecordT_contra, /) -> None:
        """Publish a record. Raises PublicationBacklogFullError when too much waits, MetadataRecordTooLargeError."""


class SegmentPublisher(MetadataPublisher[RemoteWalCombinedLogSegmentMetadata], Protocol):
    """Publishes the metadata of combined segments."""

    def is_pending(self, combined_segment_id: CombinedSegmentId, /) -> bool:
        """Whether a record of the segment waits, or is not acknowledged yet, so that nobody can have read it.

        On any thread.
        """

    def when_published(self, combined_segment_id: CombinedSegmentId, tell: Callable[[], object], /) -> None:
        """Call `tell` once no record of the segment waits, on any thread and maybe at once; it must not block.

        Lingering is off while such a callback waits.
        """
