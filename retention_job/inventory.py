"""What is in the store: by listing it, a task per broker, or from an S3 Inventory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from plugin.archive_storage import ObjectArchiveStorage, StoredArchiveObject, load_archive_storage
from plugin.errors import RemoteStorageError
from plugin.loading import load_storage_manager
from plugin.object_keys import ObjectKeyFactory
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StorageContext, StoredSegment
from plugin.segment_metadata import CombinedSegmentId
from retention_job.errors import SourceError
from retention_job.schemas import INVENTORY
from retention_job.settings import InventoryFile, StoreListing

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_OBJECTS_PER_BATCH: Final = 10_000
_NO_BROKER: Final = 0
"""A storage manager is made for a broker; the job writes nothing, so it does not matter which."""

_SUFFIX_CHARACTERS: Final = len("/000000000000/000000000000.rwal")


def list_store(spark: "SparkSession", listing: StoreListing, brokers: Iterable[int]) -> "DataFrame":
    """The combined segments of these brokers: INVENTORY. Lists when it is used.

    The store is asked once from here, so that a store that is away is told at once. Raises SourceError.
    """
    check_store(listing)
    chosen = sorted(brokers)
    frame = spark.createDataFrame([(broker_id,) for broker_id in chosen], "broker_id INT")
    return frame.repartition(max(1, len(chosen))).mapInArrow(_lister(listing), INVENTORY)


def check_store(listing: StoreListing) -> None:
    """Raises SourceError when the store does not answer a listing."""
    try:
        manager = _open(listing)
        try:
            for _ in islice(manager.list_log_segments(), 1):
                pass
        finally:
            manager.close()
    except RemoteStorageError as error:
        raise SourceError("list", "store", str(error), "are the storage manager's settings right?") from error


def list_archive(spark: "SparkSession", listing: StoreListing) -> "DataFrame":
    """The archive's objects: INVENTORY. Lists when it is used, in one task, as they are few. Raises SourceError."""
    try:
        archive = _open_archive(listing)
        try:
            for _ in islice(archive.list(), 1):
                pass
        finally:
            archive.close()
    except RemoteStorageError as error:
        raise SourceError(
            "list", "archive", str(error), "are the archive's storage manager's settings right?"
        ) from error
    return spark.range(1, numPartitions=1).mapInArrow(_archive_lister(listing), INVENTORY)


def _open_archive(listing: StoreListing) -> ObjectArchiveStorage:
    settings = {**listing.settings, "startup.self.test": "false"}
    context = StorageContext(listing.cluster_id, _NO_BROKER)
    return load_archive_storage(listing.class_name, listing.class_path, settings, context)


def _archive_lister(listing: StoreListing) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def list_objects(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            archive = _open_archive(listing)
            try:
                stored = archive.list()
                while page := list(islice(stored, _OBJECTS_PER_BATCH)):
                    yield _archive_batch(page, listing.store_class)
            finally:
                archive.close()

    return list_objects


def _archive_batch(page: list[StoredArchiveObject], store_class: str | None) -> pa.RecordBatch:
    ids = [stored.object_id for stored in page]
    return pa.RecordBatch.from_arrays(
        [
            *_stored_columns(page, [object_id.writer_id for object_id in ids], store_class),
            pa.array([bytes(object_id.topic_id_partition.topic_id) for object_id in ids], pa.binary()),
            pa.array([object_id.topic_id_partition.partition for object_id in ids], pa.int32()),
            pa.array([object_id.first_offset for object_id in ids], pa.int64()),
            pa.array([object_id.last_offset for object_id in ids], pa.int64()),
        ],
        names=INVENTORY.fieldNames(),
    )


def _open(listing: StoreListing) -> RemoteWalStorageManager:
    settings = {**listing.settings, "startup.self.test": "false"}
    context = StorageContext(listing.cluster_id, _NO_BROKER)
    return load_storage_manager(listing.class_name, listing.class_path, settings, context)


def _lister(listing: StoreListing) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def list_brokers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        manager = _open(listing)
        try:
            for batch in batches:
                for broker_id in batch.column("broker_id").to_pylist():
                    stored = manager.list_log_segments(broker_id)
                    while page := list(islice(stored, _OBJECTS_PER_BATCH)):
                        yield _inventory_batch(page, listing.store_class)
        finally:
            manager.close()

    return list_brokers


def _inventory_batch(page: list[StoredSegment], store_class: str | None) -> pa.RecordBatch:
    rows = len(page)
    return pa.RecordBatch.from_arrays(
        [
            *_stored_columns(page, [stored.combined_segment_id for stored in page], store_class),
            pa.nulls(rows, pa.binary()),
            pa.nulls(rows, pa.int32()),
            pa.nulls(rows, pa.int64()),
            pa.nulls(rows, pa.int64()),
        ],
        names=INVENTORY.fieldNames(),
    )


def _stored_columns(
    page: Sequence[StoredSegment | StoredArchiveObject], ids: Sequence[CombinedSegmentId], store_class: str | None
) -> list[pa.Array]:
    """The columns of INVENTORY that objects of all kinds have; `ids` are the segments', or the archive's writers'."""
    return [
        pa.array([stored.key for stored in page], pa.string()),
        pa.array([stored.size_bytes for stored in page], pa.int64()),
        pa.array([stored.last_modified_ms for stored in page], pa.int64()),
        pa.array([store_class] * len(page), pa.string()),
        pa.array([segment_id.broker_id for segment_id in ids], pa.int32()),
        pa.array([segment_id.incarnation for segment_id in ids], pa.int64()),
        pa.array([segment_id.sequence for segment_id in ids], pa.int64()),
    ]


def read_inventory_file(spark: "SparkSession", source: InventoryFile) -> "DataFrame":
    """The objects of this cluster out of an S3 Inventory: INVENTORY. Raises SourceError."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    try:
        if source.format == "csv":
            raw = spark.read.csv(source.path).toDF(*source.csv_schema)
        else:
            raw = spark.read.parquet(source.path)
    except (AnalysisException, ValueError) as error:
        raise SourceError("read", source.path, str(error).splitlines()[0], "is that an inventory?") from error
    names = {name.replace("_", "").lower(): name for name in raw.columns}
    if missing := [name for name in ("key", "size", "lastmodifieddate") if name not in names]:
        raise SourceError("read", source.path, f"the inventory has no column {', '.join(missing)}")
    key = f.col(names["key"])
    if source.format == "csv":
        key = f.url_decode(key)  # as S3 documents it for CSV inventories alone
    plain = raw.select(
        key.alias("key"),
        f.col(names["size"]).cast("long").alias("size_bytes"),
        f.unix_millis(f.col(names["lastmodifieddate"]).cast("timestamp")).alias("last_modified_ms"),
        (f.col(names["storageclass"]) if "storageclass" in names else f.lit(source.store_class).cast("string")).alias(
            "store_class"
        ),
    )
    return _with_ids(plain, ObjectKeyFactory.of(source.prefix, source.cluster_id))


def _with_ids(plain: "DataFrame", keys: ObjectKeyFactory) -> "DataFrame":
    """The ids that `ObjectKeyFactory.parse` and `parse_archive` find, by Spark's own functions; others are left out."""
    from pyspark.sql import functions as f

    def hexadecimal(text: "Column") -> "Column":
        return f.conv(text, 16, 10).cast("long")

    start = keys.list_prefix()
    key = f.col("key")
    rest = f.substring(key, len(start) + 1, 10_000)
    is_ours = key.startswith(start)
    is_segment = is_ours & rest.rlike(r"^(0|[1-9][0-9]{0,9})/[0-9a-f]{12}/[0-9a-f]{12}\.rwal\z")
    segment_broker = f.expr(f"substring(key, {len(start) + 1}, length(key) - {len(start) + _SUFFIX_CHARACTERS})")
    archive = (
        r"^archive/([0-9a-f]{32})/(0|[1-9][0-9]{0,9})/([0-9]{20})-([0-9]{20})"
        r"-(0|[1-9][0-9]{0,9})-[0-9a-f]{12}-[0-9a-f]{12}\.rwal\z"
    )
    is_archive = is_ours & rest.rlike(archive)

    def archived(group: int) -> "Column":
        return f.when(is_archive, f.regexp_extract(rest, archive, group))

    segments_sequence = hexadecimal(f.substring(key, -17, 12))
    segments_incarnation = hexadecimal(f.substring(key, -30, 12))
    with_ids = plain.filter(is_segment | is_archive).select(
        "*",
        f.when(is_segment, segment_broker).otherwise(archived(5)).cast("long").alias("broker_id"),
        segments_incarnation.alias("incarnation"),
        segments_sequence.alias("sequence"),
        f.unhex(archived(1)).alias("archive_topic_id"),
        archived(2).cast("long").alias("archive_partition"),
        archived(3).cast("long").alias("archive_first_offset"),
        archived(4).cast("long").alias("archive_last_offset"),
    )
    in_range = (f.col("broker_id") < 2**31) & f.coalesce(f.col("archive_partition"), f.lit(0)).between(0, 2**31 - 1)
    return with_ids.filter(in_range).select(*(f.col(field.name).cast(field.dataType) for field in INVENTORY.fields))
