"""How small agents would pack what a topic holds."""

import random

import pytest

from cli.costs.packed_samples import pack_ratio
from local_cluster.workload.json_events import json_event

EVENTS = [json_event(random.Random(number), number) for number in range(200)]
MEAN = sum(map(len, EVENTS)) / len(EVENTS)


@pytest.mark.parametrize(
    ("records", "stored_record_bytes", "low", "high"),
    [
        (EVENTS, MEAN + 15, 0.1, 0.25),
        (EVENTS, MEAN / 3, 1.0, 1.0),
        ([random.Random(1).randbytes(100_000)], 100_000, 0.99, 1.0),
        ([], 0.0, 1.0, 1.0),
    ],
)
def test_events_pack_and_what_is_random_or_compressed_does_not(
    records: list[bytes], stored_record_bytes: float, low: float, high: float
) -> None:
    assert low <= pack_ratio(records, stored_record_bytes) <= high
