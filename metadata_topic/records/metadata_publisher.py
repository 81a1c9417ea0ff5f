"""What publishes metadata, as all who publish see it."""

from typing import Protocol, TypeVar

RecordT_contra = TypeVar("RecordT_contra", contravariant=True)


class MetadataPublisher(Protocol[RecordT_contra]):
    """Publishes to __remote_wal_log_metadata without blocking, in the order of the calls."""

    def publish(self, record: RecordT_contra, /) -> None:
        """Raises PublicationBacklogFullError when too much waits to be published, MetadataRecordTooLargeError."""
