"""Joins of few rows with very many, where Spark cannot know that they are few: it sees the files' size; and unions."""

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from retention_job.schemas import SEGMENT_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FEW: Final = 1_000_000
"""So many narrow rows go to every executor without harm."""


def small_side(frame: "DataFrame") -> "DataFrame":
    """The frame, computed now, and broadcast if it has few rows; else Spark joins by shuffling both sides."""
    computed = frame.localCheckpoint()
    return fn.broadcast(computed) if computed.limit(_FEW + 1).count() <= _FEW else computed


def of_segments(segments: "DataFrame", few: "DataFrame") -> "DataFrame":
    """The rows of `few` whose segments are among `segments`, which are many; nothing of the many is shuffled."""
    wanted = small_side(few.select(*SEGMENT_KEY).distinct())
    found = segments.select(*SEGMENT_KEY).join(wanted, list(SEGMENT_KEY), "left_semi")
    return few.join(small_side(found), list(SEGMENT_KEY), "left_semi")


def union(*frames: "DataFrame") -> "DataFrame":
    """All rows; null in the columns that a frame lacks."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
