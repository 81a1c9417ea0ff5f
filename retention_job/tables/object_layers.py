"""The table of objects of a kind in layers: a whole one, and above it the rows that each later run has changed.

A run reads news of few objects, and all others stay as they were. So a run writes complete rows of the objects that it
has news of, above the tables of the runs before it; the topmost row of an object counts. Each layer costs every reading
its keys, so the layers are merged into one when there are many.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from retention_job.spark.joins import small_side, union
from retention_job.tables.objects import ObjectKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_LAYERS: Final = 24
"""The maximum number of layers beneath a run's own."""


def topmost(kind: ObjectKind, layers: "Sequence[DataFrame]") -> "DataFrame":
    """Return `ObjectKind.schema_with_facts` from tables of earlier runs, the newest first."""
    found, above = layers[:1], layers[0].select(*kind.key)
    for layer in layers[1:]:
        found = [*found, layer.join(small_side(above).frame, list(kind.key), "left_anti")]
        above = union(above, layer.select(*kind.key))
    return union(*found)


def as_before(frame: "DataFrame") -> "DataFrame":
    """Return the rows as for a run that read nothing of these objects."""
    return frame.withColumns(
        {
            "is_new": fn.lit(False),
            "finished_records": fn.lit(0),
            "first_record": fn.expr("IF(finished_ms IS NULL, NULL, -1L)"),
            "refused_state": fn.expr("IF(has_metadata, NULL, refused_state)"),
        }
    )


def beneath(kind: ObjectKind, own: "DataFrame", before: "DataFrame") -> "DataFrame":
    """Put the run's own layer above the rows that the runs before it knew (`topmost`)."""
    untouched = before.join(small_side(own.select(*kind.key)).frame, list(kind.key), "left_anti")
    return union(own, as_before(untouched)).select(*kind.schema_with_facts.fieldNames())
