"""The tables of the stored objects, by listings of the stores.

A store is listed completely each time: only a listing shows that an object is gone, and S3 Express lists in no order. A
request lists a thousand objects. What costs more is to put objects and records together, and that is done for those
objects alone that the listing shows otherwise than the one before (`objects.listed_otherwise`).
"""

from typing import TYPE_CHECKING

from retention_job.schemas import LISTED
from retention_job.settings import Sources
from retention_job.sources.listing import list_archive, list_store
from retention_job.tables.objects import ARCHIVE_OBJECT, COMBINED_SEGMENT, ObjectKind
from retention_job.tables.state import RunState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Listings:
    """The listings of one run. Its methods raise SourceError."""

    def __init__(self, spark: "SparkSession", sources: Sources, state: RunState, run_id: str) -> None:
        self._spark, self._sources, self._state, self._run_id = spark, sources, state, run_id
        self._brokers = frozenset[int]()

    @property
    def kinds(self) -> list[str]:
        """The kinds of objects that are listed, by their tables."""
        of_kind = {COMBINED_SEGMENT.table: self._sources.store, ARCHIVE_OBJECT.table: self._sources.archive}
        return [table for table, source in of_kind.items() if source is not None]

    def write(self, brokers: frozenset[int]) -> None:
        """Write the listings as tables, because they are used several times."""
        if self._sources.archive is not None:
            list_archive(self._spark, self._sources.archive).write.parquet(self._path_of(ARCHIVE_OBJECT))
        self.add_brokers(brokers)

    def add_brokers(self, brokers: frozenset[int]) -> None:
        """Add listings of those of these brokers that were not listed yet."""
        others = brokers - self._brokers
        if self._sources.store is not None and (others or not self._brokers):
            found = list_store(self._spark, self._sources.store, others)
            found.write.mode("append").parquet(self._path_of(COMBINED_SEGMENT))
        self._brokers |= others

    def table(self, kind: ObjectKind) -> "DataFrame | None":
        """Return the table LISTED of one kind of objects; None if its store is not listed."""
        return self._spark.read.schema(LISTED).parquet(self._path_of(kind)) if kind.table in self.kinds else None

    def _path_of(self, kind: ObjectKind) -> str:
        return self._state.path_of(self._run_id, kind.listing)
