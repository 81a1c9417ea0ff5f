"""Joins few rows with very many, which Spark cannot know to be few, because it sees the files' size; and unions tables.

Few rows are taken to the driver, once. From there they are broadcast without another job, the driver knows without
asking when there are none, and tables in the order of their objects are read only where the wanted ones can be: Parquet
has the lowest and highest value of each page of a column.
"""

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyspark.sql import functions as fn

from retention_job.schemas import SEGMENT_KEY

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

_FEW: Final = 250_000
"""The number of narrow rows that go to every executor, by way of a driver of 512 MB, without harm (guessed)."""
_MOST_RANGES: Final = 128


@dataclass(frozen=True, slots=True)
class SmallSide:
    """The few rows of a join, already computed."""

    frame: "DataFrame"
    """The rows, to be broadcast if they are few."""
    rows: "pa.Table | None"
    """The rows on the driver; None: they are many."""

    @property
    def is_empty(self) -> bool:
        return self.rows is not None and self.rows.num_rows == 0

    def where_to_look(self) -> "Column":
        """Return a filter over SEGMENT_KEY that is true for all rows with one of these keys, and for few others."""
        ranges = None if self.rows is None else key_ranges(*(self.rows.column(name).to_numpy() for name in SEGMENT_KEY))
        if ranges is None:
            return fn.lit(True)
        broker, incarnation, sequence = map(fn.col, SEGMENT_KEY)
        within = (
            (broker == of_broker) & (incarnation == of_incarnation) & sequence.between(first, last)
            for of_broker, of_incarnation, first, last in ranges
        )
        return reduce(or_, within, fn.lit(False))


def key_ranges(broker: Any, incarnation: Any, sequence: Any, most: int = _MOST_RANGES) -> list[tuple[int, ...]] | None:
    """Return at most `most` ranges (broker, incarnation, first, last sequence) that hold all keys and few others.

    The keys are numpy arrays. None: there are more writers than `most`.
    """
    order = np.lexsort((sequence, incarnation, broker))
    broker, incarnation, sequence = (one[order].astype(np.int64) for one in (broker, incarnation, sequence))
    other_writer = (np.diff(broker) != 0) | (np.diff(incarnation) != 0)
    if np.count_nonzero(other_writer) >= most:
        return None
    gaps = np.where(other_writer, np.iinfo(np.int64).max, np.diff(sequence))
    widest = np.argsort(-gaps, kind="stable")[: most - 1]
    widest = np.sort(widest[gaps[widest] > 1])
    begins = np.concatenate(([0], widest + 1))[: len(order)]
    ends = np.concatenate((widest, [len(order) - 1]))[: len(order)]
    found = zip(broker[begins], incarnation[begins], sequence[begins], sequence[ends], strict=True)
    return [tuple(map(int, one)) for one in found]


def small_side(frame: "DataFrame") -> SmallSide:
    """Compute the frame now; if it has many rows, Spark joins by shuffling both sides."""
    rows = frame.limit(_FEW + 1).toArrow()
    if rows.num_rows > _FEW:
        return SmallSide(frame.checkpoint(), None)
    return SmallSide(fn.broadcast(frame.sparkSession.createDataFrame(rows, frame.schema)), rows)


def of_segments(segments: "DataFrame", few: "DataFrame") -> "DataFrame":
    """Return the rows of `few` whose segments are among `segments`, which are many and not shuffled."""
    asked = small_side(few)
    if asked.is_empty:
        return asked.frame
    found = segments.filter(asked.where_to_look()).select(*SEGMENT_KEY)
    known = small_side(found.join(asked.frame.select(*SEGMENT_KEY), list(SEGMENT_KEY), "left_semi"))
    return asked.frame.join(known.frame, list(SEGMENT_KEY), "left_semi")


def union(*frames: "DataFrame") -> "DataFrame":
    """Return the rows of all tables; columns that a table lacks are null."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
