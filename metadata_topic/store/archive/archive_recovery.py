"""The archive's metadata out of its objects alone, for when the metadata topic is lost."""

from collections.abc import Iterator

import structlog

from metadata_topic.records.archive_records import ArchiveObjectCommitted
from plugin.archive_storage import ArchiveStorage, StoredArchiveObject
from plugin.errors import RemoteResourceNotFoundError, RemoteSegmentCorruptError

log = structlog.get_logger(__name__)


def records_from_objects(storage: ArchiveStorage) -> Iterator[ArchiveObjectCommitted]:
    """A Committed record for every sound object, to be applied to a store or published. Blocks.

    An object that was written and never committed is whole and right as well, since a write is all or nothing; it may
    hold what another one holds. What the objects cannot tell is what they were made of, which nothing depends on.
    Objects that are damaged, or gone since they were listed, are logged and passed over. Raises RemoteStorageError when
    the store fails.
    """
    for stored in storage.list():
        try:
            yield record_from_object(storage, stored)
        except (RemoteSegmentCorruptError, RemoteResourceNotFoundError) as error:
            log.warning("archive_object_unusable", key=stored.key, error=str(error))


def record_from_object(storage: ArchiveStorage, stored: StoredArchiveObject) -> ArchiveObjectCommitted:
    """Return the record of one archive object, from the object itself. Raises RemoteStorageError."""
    runs = storage.fetch_runs(stored)
    incarnation = stored.object_id.writer_id.incarnation
    return ArchiveObjectCommitted(stored.object_id, incarnation, runs, stored.size_bytes, (), stored.last_modified_ms)
