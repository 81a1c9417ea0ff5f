"""Lists which objects the stores have, with a task per broker for segments, and one for the archive."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from plugin.archive_storage import StoredArchiveObject, load_archive_storage
from plugin.errors import RemoteStorageError
from plugin.remote_wal_storage_manager import StorageContext, StoredSegment
from plugin.store_loop import ask_each
from plugin.zones.bucket_loading import load_storage
from retention_job.errors import SourceError
from retention_job.schemas import LISTED
from retention_job.settings import StoreListing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OBJECTS_PER_BATCH: Final = 10_000
_NO_BROKER: Final = 0
"""The broker that the storage manager is made for; any will do, because the job writes nothing."""

_NO_BROKERS_OBJECTS: Final = 2**31 - 1
"""The id of no broker, so that listing its objects is one request for each bucket."""

Stored = StoredSegment | StoredArchiveObject


def list_store(spark: "SparkSession", listing: StoreListing, brokers: Iterable[int]) -> "DataFrame":
    """Return a table LISTED of these brokers' combined segments. It lists the store when used, a task per broker.

    The store is asked once from here, so that an unreachable store is reported at once. Raises SourceError.
    """
    _check("store", "the", _segments(listing, None))
    _check("store", "the", _segments(listing, _NO_BROKERS_OBJECTS))  # to its end, which tells of all buckets
    chosen = [(broker_id,) for broker_id in sorted(brokers)]
    frame = spark.createDataFrame(chosen, "broker_id INT").repartition(max(1, len(chosen)))
    return _listed(frame, lambda broker_id: _segments(listing, broker_id))


def list_archive(spark: "SparkSession", listing: StoreListing) -> "DataFrame":
    """Return a table LISTED of the archive's objects. It lists the store when used, in one task. Raises
    SourceError."""
    _check("archive", "the archive's", _archived(listing))
    return _listed(spark.range(1, numPartitions=1), lambda _: _archived(listing))


def _check(name: str, whose: str, stored: Generator[Stored, None, None]) -> None:
    try:
        with closing(stored):
            next(stored, None)
    except RemoteStorageError as error:
        hint = f"are {whose} storage manager's settings right?"
        raise SourceError("list", name, str(error), hint) from error


def _segments(listing: StoreListing, broker_id: int | None) -> Generator[Stored, None, None]:
    with closing(load_storage(listing.spec, _context(listing))) as manager:
        yield from ask_each(manager.list_log_segments(broker_id))


def _archived(listing: StoreListing) -> Generator[Stored, None, None]:
    with closing(load_archive_storage(listing.spec, _context(listing))) as archive:
        yield from ask_each(archive.list())


def _context(listing: StoreListing) -> StorageContext:
    return StorageContext(listing.cluster_id, _NO_BROKER, can_wait=True, is_written=False, makes_missing=False)


def _listed(asked: "DataFrame", list_objects: Callable[[int], Iterator[Stored]]) -> "DataFrame":
    """Return LISTED: what `list_objects` lists for each number in the one column of `asked`, on the executors."""

    def list_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(LISTED)
        for number in chain.from_iterable(batch.column(0).to_pylist() for batch in batches):
            stored = list_objects(number)
            while page := [_row(one) for one in islice(stored, _OBJECTS_PER_BATCH)]:
                columns = map(pa.array, zip(*page, strict=True), schema.types)
                yield pa.RecordBatch.from_arrays(list(columns), schema=schema)

    return asked.mapInArrow(list_all, LISTED)


def _row(stored: Stored) -> tuple[object, ...]:
    if isinstance(stored, StoredArchiveObject):
        (topic_id, partition), first_offset, last_offset, writer = stored.object_id
        archived: tuple[object, ...] = (bytes(topic_id), partition, first_offset, last_offset)
    else:
        writer, archived = stored.combined_segment_id, (None, None, None, None)
    return stored.size_bytes, stored.last_modified_ms, *writer, *archived
