"""The table of objects of a kind in layers: a whole one, and above it what each later run has touched.

Theory. What a run reads tells of few objects, and of an object that it does not tell of, all stays as it was. So a run
writes down those that it was told of, each as a whole, above the tables of the runs before it; the topmost row of an
object counts. A layer costs each reading its keys, so the layers become one again when there are many.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from retention_job.spark.joins import small_side, union
from retention_job.tables.objects import ObjectKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_LAYERS: Final = 24
"""Beneath a run's own."""


def topmost(kind: ObjectKind, layers: "Sequence[DataFrame]") -> "DataFrame":
    """`ObjectKind.schema_with_facts` of tables of runs before, the newest first."""
    found, above = layers[:1], layers[0].select(*kind.key)
    for layer in layers[1:]:
        found = [*found, layer.join(small_side(above).frame, list(kind.key), "left_anti")]
        above = union(above, layer.select(*kind.key))
    return union(*found)


def as_before(frame: "DataFrame") -> "DataFrame":
    """As a run finds it that read nothing of these objects."""
    return frame.withColumns(
        {
            "is_new": fn.lit(False),
            "finished_records": fn.lit(0),
            "first_record": fn.expr("IF(finished_ms IS NULL, NULL, -1L)"),
            "refused_state": fn.expr("IF(has_metadata, NULL, refused_state)"),
        }
    )


def beneath(kind: ObjectKind, own: "DataFrame", before: "DataFrame") -> "DataFrame":
    """The run's own layer above what the runs before it knew (`topmost`)."""
    untouched = before.join(small_side(own.select(*kind.key)).frame, list(kind.key), "left_anti")
    return union(own, as_before(untouched)).select(*kind.schema_with_facts.fieldNames())
