"""Rebuilds the archive's metadata from its objects alone, for when the metadata topic is lost."""

from collections.abc import Iterator

import structlog

from metadata_topic.records.archive_records import ArchiveObjectCommitted
from plugin.archive_storage import ArchiveStorage, StoredArchiveObject
from plugin.errors import RemoteResourceNotFoundError, RemoteSegmentCorruptError
from plugin.store_loop import ask, ask_each

log = structlog.get_logger(__name__)


def records_from_objects(storage: ArchiveStorage) -> Iterator[ArchiveObjectCommitted]:
    """Yield a Committed record for every sound object, to be applied to a store or published. Blocks.

    An object that was written and never committed is sound too, because a write is all or nothing; another object may
    hold the same records. Objects that are damaged, or gone since they were listed, are logged and skipped. Raises
    RemoteStorageError when the store fails.
    """
    for stored in ask_each(storage.list()):
        try:
            yield record_from_object(storage, stored)
        except (RemoteSegmentCorruptError, RemoteResourceNotFoundError) as error:
            log.warning("archive_object_unusable", key=stored.key, error=str(error))


def record_from_object(storage: ArchiveStorage, stored: StoredArchiveObject) -> ArchiveObjectCommitted:
    """Return the record of one archive object, from the object itself. Raises RemoteStorageError."""
    runs = ask(storage.fetch_runs(stored))
    incarnation = stored.object_id.writer_id.incarnation
    return ArchiveObjectCommitted(stored.object_id, incarnation, runs, stored.size_bytes, stored.last_modified_ms)
