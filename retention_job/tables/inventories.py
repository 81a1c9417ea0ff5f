"""Tables of the stored objects, by listings or inventories, and the parts of an inventory that the last run read.

An inventory's files do not change. So an incremental run reads only files that the run before did not have, as long as
it finds all of those again; their contents are in the tables of objects (`objects`). A new day's inventory has
none of the old files and is read completely; so is a listing, each time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from retention_job.schemas import INVENTORY
from retention_job.settings import InventoryFile, Sources, StoreListing
from retention_job.sources.inventory import (
    InventoryFiles,
    list_archive,
    list_store,
    read_inventory_file,
    stored_files,
)
from retention_job.spark.joins import union
from retention_job.tables.objects import ARCHIVE_OBJECT, COMBINED_SEGMENT, ObjectKind
from retention_job.tables.state import InventoryRead, RunRecord, RunState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BUCKET: Final = "bucket"
"""A column besides INVENTORY's: the inventory that an object is in, if there are several."""


@dataclass(frozen=True, slots=True)
class _Bucket:
    """One bucket's inventory as it is now."""

    source: InventoryFile
    files: InventoryFiles
    stored: Mapping[str, Sequence[int]]
    """Length and time of change by path."""


class Inventories:
    """The inventories of one run. Its methods raise SourceError."""

    def __init__(self, spark: "SparkSession", sources: Sources, state: RunState, run_id: str) -> None:
        self._spark, self._state, self._run_id = spark, state, run_id
        self._sources = {
            kind: source
            for kind, source in ((COMBINED_SEGMENT, sources.inventory), (ARCHIVE_OBJECT, sources.archive))
            if source is not None
        }
        files = {kind: source for kind, source in self._sources.items() if not isinstance(source, StoreListing)}
        found = {one: self._bucket(one) for one in set(chain.from_iterable(files.values()))}
        self._buckets = {kind: [found[one] for one in source] for kind, source in files.items()}
        self._is_shared = sources.archive == sources.inventory
        """Whether both kinds are in the same buckets."""
        self.known_ms: dict[str, int] = {}
        """The time up to which each inventory is complete, by the table of its kind. A listing is complete up to now,
        an inventory only up to its newest object."""
        self.read: dict[str, InventoryRead] = {}
        """The parts that the next run need not read again."""

    def _bucket(self, source: InventoryFile) -> _Bucket:
        return _Bucket(source, *stored_files(self._spark, source))

    @property
    def are_listings(self) -> bool:
        """Whether any of them is a listing."""
        return any(isinstance(source, StoreListing) for source in self._sources.values())

    def write_listings(self, brokers: "frozenset[int]", now_ms: int) -> None:
        """Write the listings as tables, because they are used several times."""
        for kind, source in self._sources.items():
            if isinstance(source, StoreListing):
                is_archive = kind is ARCHIVE_OBJECT
                found = list_archive(self._spark, source) if is_archive else list_store(self._spark, source, brokers)
                self._write(kind, found)
                self.known_ms[kind.table] = now_ms

    def goes_on_from(self, last: RunRecord) -> bool:
        """Return whether all sources are inventories, as in `last`, with all files that `last` read, unchanged."""
        return {kind.table for kind in self._sources} == last.inventories.keys() and all(
            kind in self._buckets and last.inventories[kind.table].files.items() <= self._files(kind).items()
            for kind in self._sources
        )

    def _files(self, kind: ObjectKind) -> dict[str, list[int]]:
        return {
            path: [number, *status]
            for number, bucket in enumerate(self._buckets[kind])
            for path, status in bucket.stored.items()
        }

    def write_files(self, last: RunRecord | None) -> None:
        """Write the parts of inventories that `last` has not read; None: all parts."""
        for kind, buckets in self._buckets.items():
            if kind is ARCHIVE_OBJECT and self._is_shared:
                first = COMBINED_SEGMENT
                self._write(kind, self._spark.read.parquet(self._state.path_of(self._run_id, first.inventory)))
                self.read[kind.table], self.known_ms[kind.table] = self.read[first.table], self.known_ms[first.table]
                continue
            before = InventoryRead({}, {}) if last is None else last.inventories[kind.table]
            self._write(kind, union(*(self._new_of(number, one, before) for number, one in enumerate(buckets))))
            newest_ms = {**before.newest_ms, **self._newest_ms(kind, before)}
            self.read[kind.table] = InventoryRead(self._files(kind), newest_ms)
            # If a bucket has none of the cluster's objects, its manifest has the time when it was looked at.
            self.known_ms[kind.table] = min(
                newest_ms.get(str(number), bucket.files.made_ms or 0) for number, bucket in enumerate(buckets)
            )

    def _new_of(self, number: int, bucket: _Bucket, before: InventoryRead) -> "DataFrame":
        new = tuple(path for path in bucket.stored if path not in before.files)
        found = read_inventory_file(self._spark, bucket.source, replace(bucket.files, paths=new))
        return found.withColumn(_BUCKET, fn.lit(number))

    def _newest_ms(self, kind: ObjectKind, before: InventoryRead) -> dict[str, int]:
        frame = self._spark.read.parquet(self._state.path_of(self._run_id, kind.inventory))
        rows = frame.groupBy(_BUCKET).agg(fn.max("last_modified_ms").alias("newest_ms")).collect()
        return {str(row[_BUCKET]): max(int(row.newest_ms), before.newest_ms.get(str(row[_BUCKET]), 0)) for row in rows}

    def _write(self, kind: ObjectKind, found: "DataFrame") -> None:
        listed = found.filter(kind.is_listed) if kind is ARCHIVE_OBJECT else found
        listed.write.parquet(self._state.path_of(self._run_id, kind.inventory))

    def table(self, kind: ObjectKind) -> "DataFrame | None":
        """Return INVENTORY; None if there is none of this kind."""
        if kind not in self._sources:
            return None
        return self._spark.read.schema(INVENTORY).parquet(self._state.path_of(self._run_id, kind.inventory))
