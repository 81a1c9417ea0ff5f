"""Reads which objects the stores have: by listing, with a task per broker for segments, or from an S3 Inventory.

S3 writes `<destination prefix>/<bucket>/<configuration>/<time>/manifest.json`, and all days' files into `<destination
prefix>/<bucket>/<configuration>/data/`. So a manifest names the files of one day, and they are beside it wherever both
were copied to.
"""

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import to_arrow_schema

from plugin.archive_storage import StoredArchiveObject, load_archive_storage
from plugin.errors import RemoteStorageError
from plugin.format.object_keys import ObjectKeyFactory
from plugin.remote_wal_storage_manager import StorageContext, StoredSegment
from plugin.store_loop import ask_each
from plugin.zones.bucket_loading import load_storage
from retention_job.errors import SourceError
from retention_job.schemas import INVENTORY
from retention_job.settings import InventoryFile, StoreListing
from retention_job.spark.file_system import FileSystem

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MANIFEST: Final = "manifest.json"
_FORMATS: Final = ("csv", "parquet")
_OBJECTS_PER_BATCH: Final = 10_000
_NO_BROKER: Final = 0
"""The broker that the storage manager is made for; any will do, because the job writes nothing."""

_NO_BROKERS_OBJECTS: Final = 2**31 - 1
"""The id of no broker, so that listing its objects is one request for each bucket."""

_SUFFIX_CHARACTERS: Final = len("/000000000000/000000000000.rwal")

Stored = StoredSegment | StoredArchiveObject


def list_store(spark: "SparkSession", listing: StoreListing, brokers: Iterable[int]) -> "DataFrame":
    """Return a table INVENTORY of these brokers' combined segments. It lists the store when used, a task per broker.

    The store is asked once from here, so that an unreachable store is reported at once. Raises SourceError.
    """
    _check("store", "the", _segments(listing, None))
    _check("store", "the", _segments(listing, _NO_BROKERS_OBJECTS))  # to its end, which tells of all buckets
    chosen = [(broker_id,) for broker_id in sorted(brokers)]
    frame = spark.createDataFrame(chosen, "broker_id INT").repartition(max(1, len(chosen)))
    return _listed(frame, lambda broker_id: _segments(listing, broker_id))


def list_archive(spark: "SparkSession", listing: StoreListing) -> "DataFrame":
    """Return a table INVENTORY of the archive's objects. It lists the store when used, in one task. Raises
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
    with closing(load_storage(listing.spec, StorageContext(listing.cluster_id, _NO_BROKER, can_wait=True))) as manager:
        yield from ask_each(manager.list_log_segments(broker_id))


def _archived(listing: StoreListing) -> Generator[Stored, None, None]:
    context = StorageContext(listing.cluster_id, _NO_BROKER, can_wait=True, is_written=False)
    with closing(load_archive_storage(listing.spec, context)) as archive:
        yield from ask_each(archive.list())


def _listed(asked: "DataFrame", list_objects: Callable[[int], Iterator[Stored]]) -> "DataFrame":
    """Return INVENTORY: what `list_objects` lists for each number in the one column of `asked`, on the executors."""

    def list_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(INVENTORY)
        for number in chain.from_iterable(batch.column(0).to_pylist() for batch in batches):
            stored = list_objects(number)
            while page := [_row(one) for one in islice(stored, _OBJECTS_PER_BATCH)]:
                columns = map(pa.array, zip(*page, strict=True), schema.types)
                yield pa.RecordBatch.from_arrays(list(columns), schema=schema)

    return asked.mapInArrow(list_all, INVENTORY)


def _row(stored: Stored) -> tuple[object, ...]:
    if isinstance(stored, StoredArchiveObject):
        (topic_id, partition), first_offset, last_offset, writer = stored.object_id
        archived: tuple[object, ...] = (bytes(topic_id), partition, first_offset, last_offset)
    else:
        writer, archived = stored.combined_segment_id, (None, None, None, None)
    return stored.key, stored.size_bytes, stored.last_modified_ms, *writer, *archived


@dataclass(frozen=True, slots=True)
class S3Inventory:
    """One bucket's S3 Inventory as it is now: its files, and how to read them. Made by `find`."""

    spark: "SparkSession"
    source: InventoryFile
    """With the format and columns that are true."""
    paths: Sequence[str]
    made_ms: int | None = None
    """The time when S3 began to make it; None without a manifest."""

    @classmethod
    def find(cls, spark: "SparkSession", source: InventoryFile) -> Self:
        """Take the source's own path or, if that is a manifest, the files that it names. Raises SourceError,
        StateError.
        """
        directory, _, name = source.path.rpartition("/")
        if name != MANIFEST:
            return cls(spark, source, (source.path,))
        text = FileSystem(spark, directory).read_text(MANIFEST)
        if text is None:
            raise SourceError("read", source.path, "there is no such file", "is that an inventory's manifest?")
        try:
            told = json.loads(text)
            chosen = str(told["fileFormat"]).lower()
            data = f"{directory.rpartition('/')[0]}/data"
            paths = [f"{data}/{PurePosixPath(file['key']).name}" for file in told["files"]]
            columns = tuple(column.strip() for column in str(told["fileSchema"]).split(",")) if chosen == "csv" else ()
            made_ms = int(told["creationTimestamp"])
        except (ValueError, TypeError, KeyError) as error:
            raise SourceError(
                "read", source.path, f"{type(error).__name__}: {error}", "is that an inventory's manifest?"
            ) from error
        if chosen not in _FORMATS:
            hint = f"only {' and '.join(_FORMATS)} are read"
            raise SourceError("read", source.path, f"an inventory in {chosen}", hint)
        return cls(spark, replace(source, format=chosen, csv_schema=columns), paths, made_ms)

    def files(self) -> dict[str, tuple[int, int]]:
        """Return length and modification time of each file, by path. Raises SourceError, StateError."""
        paths = sorted(self._raw(self.paths).inputFiles()) if self.paths else []
        return FileSystem(self.spark, self.source.path).statuses(paths) if paths else {}

    def _raw(self, paths: Sequence[str]) -> "DataFrame":
        """Read files with their own columns."""
        from pyspark.errors import AnalysisException

        try:
            if self.source.format == "csv":
                return self.spark.read.csv(list(paths)).toDF(*self.source.csv_schema)
            return self.spark.read.parquet(*paths)
        except (AnalysisException, ValueError) as error:
            raise SourceError("read", self.source.path, str(error).splitlines()[0], "is that an inventory?") from error

    def objects(self, paths: Sequence[str]) -> "DataFrame":
        """Return a table INVENTORY of this cluster's objects in some of the inventory's files. Raises SourceError."""
        if not paths:
            return self.spark.createDataFrame([], INVENTORY)
        raw = self._raw(paths)
        names = {name.replace("_", "").lower(): name for name in raw.columns}
        if missing := [name for name in ("key", "size", "lastmodifieddate") if name not in names]:
            raise SourceError("read", self.source.path, f"the inventory has no column {', '.join(missing)}")
        # An inventory of all versions lists what was deleted or replaced, too, and says so in these columns.
        for column, is_there in (("islatest", True), ("isdeletemarker", False)):
            if column in names:
                raw = raw.filter(fn.col(names[column]).cast("boolean") == is_there)
        key = fn.col(names["key"])
        if self.source.format == "csv":
            key = fn.url_decode(key)  # as S3 documents it for CSV inventories alone
        plain = raw.select(
            key.alias("key"),
            fn.col(names["size"]).cast("long").alias("size_bytes"),
            fn.unix_millis(fn.col(names["lastmodifieddate"]).cast("timestamp")).alias("last_modified_ms"),
        )
        return _with_ids(plain, ObjectKeyFactory.of(self.source.prefix, self.source.cluster_id))


def _with_ids(plain: "DataFrame", keys: ObjectKeyFactory) -> "DataFrame":
    """Add the ids that `ObjectKeyFactory.parse` and `parse_archive` find, by Spark's functions; drop other objects."""

    def hexadecimal(text: "Column") -> "Column":
        return fn.conv(text, 16, 10).cast("long")

    start = keys.list_prefix()
    key = fn.col("key")
    rest = fn.substring(key, len(start) + 1, 10_000)
    is_ours = key.startswith(start)
    is_segment = is_ours & rest.rlike(r"^(0|[1-9][0-9]{0,9})/[0-9a-f]{12}/[0-9a-f]{12}\.rwal\z")
    segment_broker = fn.expr(f"substring(key, {len(start) + 1}, length(key) - {len(start) + _SUFFIX_CHARACTERS})")
    archive = (
        r"^archive/([0-9a-f]{32})/(0|[1-9][0-9]{0,9})/([0-9]{20})-([0-9]{20})"
        r"-(0|[1-9][0-9]{0,9})-[0-9a-f]{12}-[0-9a-f]{12}\.rwal\z"
    )
    is_archive = is_ours & rest.rlike(archive)

    def archived(group: int) -> "Column":
        return fn.when(is_archive, fn.regexp_extract(rest, archive, group))

    with_ids = plain.filter(is_segment | is_archive).select(
        "*",
        fn.when(is_segment, segment_broker).otherwise(archived(5)).cast("long").alias("broker_id"),
        hexadecimal(fn.substring(key, -30, 12)).alias("incarnation"),
        hexadecimal(fn.substring(key, -17, 12)).alias("sequence"),
        fn.unhex(archived(1)).alias("archive_topic_id"),
        archived(2).cast("long").alias("archive_partition"),
        archived(3).cast("long").alias("archive_first_offset"),
        archived(4).cast("long").alias("archive_last_offset"),
    )
    in_range = (fn.col("broker_id") < 2**31) & fn.coalesce(fn.col("archive_partition"), fn.lit(0)).between(0, 2**31 - 1)
    return with_ids.filter(in_range).select(*(fn.col(field.name).cast(field.dataType) for field in INVENTORY.fields))
