"""Finds the records that agents' stores refuse because their writer was fenced.

The rule is that of `metadata_topic.store.fencing`, on tables.

A record does not count if a registration of a higher incarnation of its broker comes before it in the same partition of
the topic; partitions have no order between them. Registrations are few (one for each start of an agent), so those that
count are found on the driver, in the topic's order, by the class that agents use. For an incarnation the rule then
becomes one offset in each partition from which its records are refused, so each record needs one look-up in a small
table.

The effect of a registration on records of its partition never changes later. So an incremental run keeps the decisions
of the runs before it, and takes over their registrations. A registration that the topic's retention has removed is
unknown to a full run; agents know it from their snapshots.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from metadata_topic.records import serde
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.store.fencing import PlacedRegistration, Registrations
from retention_job.sources.decoding import PARTITION_SHIFT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

REGISTRATIONS: Final = "key BINARY, value BINARY, record_id LONG"
_FENCES: Final = "_fenced_broker INT, _fenced_incarnation LONG, _fence_partition INT, _fence_record_id LONG"


def registrations_of(rows: "Iterable[Row]") -> Registrations:
    """Build `Registrations` from rows of REGISTRATIONS, in any order."""
    found = Registrations()
    for row in sorted(rows, key=lambda row: row.record_id):
        record = serde.decode(bytes(row.key), bytes(row.value))
        if isinstance(record, RemoteWalNodeRegistration):
            found.add(record, (row.record_id >> PARTITION_SHIFT, row.record_id & ((1 << PARTITION_SHIFT) - 1)))
    return found


def known_writers(registrations: Registrations) -> list[str]:
    """Return the registered incarnations, as the beginnings of their segments' names."""
    placed = (one.registration for one in registrations.placed())
    return sorted({f"{one.broker_id}-{one.incarnation:012x}" for one in placed})


def with_refusals(records: "DataFrame", registrations: Registrations, publisher: str) -> "DataFrame":
    """Add `is_fenced` to the records: whether the publisher was fenced when it published.

    The records have `broker_id`, `record_id` and the column `publisher` (an incarnation). The caller decides which
    kinds of records are refused.
    """
    placed = registrations.placed()
    if not placed:
        return records.withColumn("is_fenced", fn.lit(False))
    writers = records.select("broker_id", publisher).distinct().collect()
    rows = [fence for writer in writers for fence in _fences(placed, writer[0], writer[1])]
    fences = fn.broadcast(records.sparkSession.createDataFrame(rows, _FENCES))
    matches = (
        (fn.col("broker_id") == fn.col("_fenced_broker"))
        & (fn.col(publisher) == fn.col("_fenced_incarnation"))
        & (fn.shiftright("record_id", PARTITION_SHIFT) == fn.col("_fence_partition"))
    )
    is_behind_fence = fn.coalesce(fn.col("record_id") > fn.col("_fence_record_id"), fn.lit(False))
    joined = records.join(fences, matches, "left").withColumn("is_fenced", is_behind_fence)
    return joined.drop(*fences.columns)


def _fences(placed: list[PlacedRegistration], broker_id: int, incarnation: int) -> list[tuple[int, int, int, int]]:
    """Return the rows of _FENCES for an incarnation: in each partition the first registration that fences it."""
    first: dict[int, int] = {}
    for registration, source in placed:
        if registration.broker_id == broker_id and registration.incarnation > incarnation and source is not None:
            partition, offset = source
            first[partition] = min(offset, first.get(partition, offset))
    return [
        (broker_id, incarnation, partition, (partition << PARTITION_SHIFT) | offset)
        for partition, offset in first.items()
    ]
