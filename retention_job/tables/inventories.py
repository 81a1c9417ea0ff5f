"""Tables of the stored objects, by listings or inventories, and the parts of an inventory that the last run read.

An inventory's files do not change. So an incremental run reads only files that the run before did not have, as long as
it finds all of those again; their contents are in the tables of objects (`objects`). A new day's inventory has
none of the old files and is read completely; so is a listing, each time.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from retention_job.schemas import INVENTORY
from retention_job.settings import Sources, StoreListing
from retention_job.sources.inventory import S3Inventory, list_archive, list_store
from retention_job.spark.joins import union
from retention_job.tables.objects import ARCHIVE_OBJECT, COMBINED_SEGMENT, ObjectKind
from retention_job.tables.state import InventoryRead, RunRecord, RunState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BUCKET: Final = "bucket"
"""A column besides INVENTORY's: the inventory that an object is in, if there are several."""

_Bucket = tuple[S3Inventory, Mapping[str, Sequence[int]]]
"""One bucket's inventory, and length and time of change of its files by path."""


class Inventories:
    """The listings and inventories of one run. Its methods raise SourceError."""

    def __init__(self, spark: "SparkSession", sources: Sources, state: RunState, run_id: str) -> None:
        self._spark, self._state, self._run_id = spark, state, run_id
        self._sources = {
            kind: source
            for kind, source in ((COMBINED_SEGMENT, sources.inventory), (ARCHIVE_OBJECT, sources.archive))
            if source is not None
        }
        files = {kind: source for kind, source in self._sources.items() if not isinstance(source, StoreListing)}
        found = {one: S3Inventory.find(spark, one) for one in set(chain.from_iterable(files.values()))}
        stored = {one: (inventory, inventory.files()) for one, inventory in found.items()}
        self._buckets: dict[ObjectKind, list[_Bucket]] = {
            kind: [stored[one] for one in source] for kind, source in files.items()
        }
        self._is_shared = sources.archive == sources.inventory
        """Whether both kinds are in the same buckets."""
        self._listed: frozenset[int] = frozenset()
        self.known_ms: dict[str, int] = {}
        """The time up to which each inventory is complete, by the table of its kind. A listing is complete up to now,
        an inventory only up to its newest object."""
        self.read: dict[str, InventoryRead] = {}
        """The parts that the next run need not read again."""

    @property
    def are_listings(self) -> bool:
        """Whether any source of objects is a listing."""
        return any(isinstance(source, StoreListing) for source in self._sources.values())

    def write_listings(self, brokers: frozenset[int], now_ms: int) -> None:
        """Write the listings as tables, because they are used several times."""
        self._listed = brokers
        for kind, source in self._sources.items():
            if isinstance(source, StoreListing):
                is_archive = kind is ARCHIVE_OBJECT
                found = list_archive(self._spark, source) if is_archive else list_store(self._spark, source, brokers)
                self._write(kind, found)
                self.known_ms[kind.table] = now_ms

    def list_others(self, brokers: frozenset[int]) -> None:
        """Add listings of brokers that were not listed yet."""
        source = self._sources.get(COMBINED_SEGMENT)
        if isinstance(source, StoreListing) and (others := brokers - self._listed):
            self._write(COMBINED_SEGMENT, list_store(self._spark, source, others), mode="append")

    def goes_on_from(self, last: RunRecord) -> bool:
        """Return whether all sources are inventories, as in run `last`, with all files that it read, unchanged."""
        return {kind.table for kind in self._sources} == last.inventories.keys() and all(
            kind in self._buckets and last.inventories[kind.table].files.items() <= self._files(kind).items()
            for kind in self._sources
        )

    def _files(self, kind: ObjectKind) -> dict[str, list[int]]:
        return {
            path: [number, *status]
            for number, (_, stored) in enumerate(self._buckets[kind])
            for path, status in stored.items()
        }

    def write_files(self, last: RunRecord | None) -> None:
        """Write those files of inventories as tables that run `last` has not read; None: all files."""
        for kind, buckets in self._buckets.items():
            if kind is ARCHIVE_OBJECT and self._is_shared:
                first = COMBINED_SEGMENT
                self._write(kind, self._spark.read.parquet(self._path_of(first)))
                self.read[kind.table], self.known_ms[kind.table] = self.read[first.table], self.known_ms[first.table]
                continue
            before = InventoryRead({}, {}) if last is None else last.inventories[kind.table]
            new = (
                inventory.objects([path for path in stored if path not in before.files]).withColumn(
                    _BUCKET, fn.lit(number)
                )
                for number, (inventory, stored) in enumerate(buckets)
            )
            self._write(kind, union(*new))
            newest_ms = dict(before.newest_ms)
            rows = self._spark.read.parquet(self._path_of(kind)).groupBy(_BUCKET).agg(fn.max("last_modified_ms"))
            for number, found_ms in rows.collect():
                newest_ms[str(number)] = max(int(found_ms), newest_ms.get(str(number), 0))
            self.read[kind.table] = InventoryRead(self._files(kind), newest_ms)
            # If a bucket has none of the cluster's objects, its manifest has the time when it was looked at.
            self.known_ms[kind.table] = min(
                newest_ms.get(str(number), inventory.made_ms or 0) for number, (inventory, _) in enumerate(buckets)
            )

    def _path_of(self, kind: ObjectKind) -> str:
        return self._state.path_of(self._run_id, kind.inventory)

    def _write(self, kind: ObjectKind, found: "DataFrame", mode: str = "error") -> None:
        listed = found.filter(kind.is_listed) if kind is ARCHIVE_OBJECT else found
        listed.write.mode(mode).parquet(self._path_of(kind))

    def table(self, kind: ObjectKind) -> "DataFrame | None":
        """Return the table INVENTORY of one kind of objects; None if no source lists them."""
        return self._spark.read.schema(INVENTORY).parquet(self._path_of(kind)) if kind in self._sources else None
