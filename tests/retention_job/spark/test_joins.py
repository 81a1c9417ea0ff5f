"""Where to look for few keys among very many."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from retention_job.schemas import SEGMENT_KEY
from retention_job.spark.joins import key_ranges, of_segments, small_side

Key = tuple[int, int, int]
KEY_SCHEMA = "broker_id INT, incarnation LONG, sequence LONG"


def ranges(keys: list[Key], most: int) -> list[tuple[int, ...]] | None:
    columns = np.array(keys, dtype=np.int64).reshape(-1, 3).T
    return key_ranges(columns[0].astype(np.int32), columns[1], columns[2], most)


@given(
    keys=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(0, 60)), max_size=40),
    most=st.integers(1, 12),
)
def test_ranges_hold_all_keys_and_are_as_few_as_was_asked(keys: list[Key], most: int) -> None:
    found = ranges(keys, most)
    writers = {key[:2] for key in keys}
    if found is None:
        assert len(writers) > most
        return
    assert len(found) <= most
    for broker, incarnation, sequence in keys:
        holding = [one for one in found if one[:2] == (broker, incarnation) and one[2] <= sequence <= one[3]]
        assert len(holding) == 1
    assert all((*one[:2], one[bound]) in keys for one in found for bound in (2, 3)), "each begins and ends with a key"


def test_the_widest_gaps_are_left_out() -> None:
    assert ranges([(1, 1, n) for n in (0, 1, 5, 100, 101, 40)], 3) == [(1, 1, 0, 5), (1, 1, 40, 40), (1, 1, 100, 101)]


@pytest.mark.parametrize("wanted", [[], [(1, 1, 5), (2, 1, 7)]])
def test_the_rows_of_segments_that_are_there_are_found(spark: SparkSession, wanted: list[Key]) -> None:
    segments = spark.createDataFrame([(1, 1, n) for n in range(10)], KEY_SCHEMA)
    few = spark.createDataFrame([(*key, "told") for key in wanted], f"{KEY_SCHEMA}, what STRING")
    assert [tuple(row) for row in of_segments(segments, few).select(*SEGMENT_KEY).collect()] == wanted[:1]
    assert small_side(few).is_empty == (not wanted)
