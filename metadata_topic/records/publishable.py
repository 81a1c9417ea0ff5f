"""The records that can be published: their bytes, names in messages, and brokers; and the publisher's interface."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from metadata_topic.records import archive_records, serde
from metadata_topic.records.archive_records import ArchiveRecord
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.records import PublishableRecord, RemoteWalNodeRegistration, RemoteWalTopicRebuilt
from metadata_topic.records.usage_record import UsageRecord, encode_usage, encode_usage_key
from plugin.segment_metadata import CombinedSegmentId, RemoteWalCombinedLogSegmentMetadata

_OF_A_BROKER = RemoteWalNodeRegistration | UsageRecord | RemoteWalGapDeclaration

Publishable = PublishableRecord | ArchiveRecord | UsageRecord


def encoded(record: Publishable) -> tuple[bytes, bytes]:
    """Encode a record as its key and value."""
    if isinstance(record, UsageRecord):
        return encode_usage_key(record), encode_usage(record)
    if isinstance(record, ArchiveRecord):
        return archive_records.encode_key(record.object_id), archive_records.encode(record)
    return serde.key_of(record), serde.encode(record)


def name_of(record: Publishable) -> str:
    """Return the record's name for messages."""
    if isinstance(record, RemoteWalTopicRebuilt):
        return "rebuild"
    if isinstance(record, ArchiveRecord):
        return str(record.object_id)
    if isinstance(record, _OF_A_BROKER):
        return f"broker {record.broker_id}"
    return str(record.combined_segment_id)


def broker_of(record: Publishable) -> int:
    """Return the broker whose partition of the topic takes the record: fencing needs all of a broker's records in
    order.

    0 for records about the topic itself, so that they are in the first partition.
    """
    if isinstance(record, RemoteWalTopicRebuilt):
        return 0
    if isinstance(record, ArchiveRecord):
        return record.object_id.writer_id.broker_id
    if isinstance(record, _OF_A_BROKER):
        return record.broker_id
    return record.combined_segment_id.broker_id


RecordT_contra = TypeVar("RecordT_contra", contravariant=True)


class MetadataPublisher(Protocol[RecordT_contra]):
    """Publishes to __remote_wal_log_metadata without blocking, in the order of the calls."""

    def publish(self, record: RecordT_contra, /) -> None:
        """Queue a record. Raises PublicationBacklogFullError or MetadataRecordTooLargeError; then nothing was
        queued."""


class SegmentPublisher(MetadataPublisher[RemoteWalCombinedLogSegmentMetadata], Protocol):
    """Publishes the metadata of combined segments."""

    def is_pending(self, combined_segment_id: CombinedSegmentId, /) -> bool:
        """Whether a record of the segment is queued, or sent and not acknowledged, so that nobody can have read it.

        On any thread.
        """

    def when_published(self, combined_segment_id: CombinedSegmentId, tell: Callable[[], object], /) -> None:
        """Call `tell` once every record of the segment is acknowledged, on any thread and maybe at once; it must not
        block.

        Lingering is off while such a callback waits.
        """
