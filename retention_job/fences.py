"""Which records the agents' stores refuse, as their writer was fenced: `metadata_topic.fencing`, over tables.

Theory. A record counts for nothing when a registration of a higher incarnation of its broker stands before it in the
same partition of the topic, or anywhere in another one. Registrations are few (one for each start of an agent), so
those that count are found on the driver, in the topic's order, by the very class that agents use. For an incarnation
the rule then comes down to one place, from which on its records are refused; so each record needs one look into a
small table.

What a registration says of records in its own partition never changes later, so an incremental run keeps what runs
before it took in or refused, and is handed their registrations. (Only where the topic was given more partitions would
a whole run refuse more.) A registration that the topic's retention has removed is not known to a whole run; agents
know it from their snapshots.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from metadata_topic import serde
from metadata_topic.fencing import PlacedRegistration, Registrations
from metadata_topic.records import RemoteWalNodeRegistration
from retention_job.decoding import PARTITION_SHIFT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

REGISTRATIONS: Final = "key BINARY, value BINARY, record_id LONG"
_FENCES: Final = "broker_id INT, fenced_incarnation LONG, fence_partition INT, fence_record_id LONG"
_EVERYWHERE: Final = -1


def registrations_of(rows: "Iterable[Row]") -> Registrations:
    """From rows of REGISTRATIONS, in any order."""
    found = Registrations()
    for row in sorted(rows, key=lambda row: row.record_id):
        record = serde.decode(bytes(row.key), bytes(row.value))
        if isinstance(record, RemoteWalNodeRegistration):
            found.add(record, (row.record_id >> PARTITION_SHIFT, row.record_id & ((1 << PARTITION_SHIFT) - 1)))
    return found


def with_refusals(records: "DataFrame", registrations: Registrations, publisher: str) -> "DataFrame":
    """The records, which have `broker_id`, `record_id` and the column `publisher` (an incarnation), with `is_fenced`:
    whether the publisher was fenced when it published. Which kinds of records that refuses is for the caller to say.
    """
    from pyspark.sql import functions as f

    placed = registrations.placed()
    if not placed:
        return records.withColumn("is_fenced", f.lit(False))
    writers = records.select("broker_id", publisher).distinct().collect()
    rows = [fence for writer in writers if (fence := _fence(placed, writer[0], writer[1])) is not None]
    table = records.sparkSession.createDataFrame(rows, _FENCES)
    fences = f.broadcast(table.withColumnRenamed("broker_id", "_fenced_broker"))
    matches = (f.col("broker_id") == f.col("_fenced_broker")) & (f.col(publisher) == f.col("fenced_incarnation"))
    joined = records.join(fences, matches, "left")
    return joined.withColumn("is_fenced", _is_behind_fence()).drop("_fenced_broker", *_columns(_FENCES)[1:])


def _is_behind_fence() -> "Column":
    from pyspark.sql import functions as f

    partition = f.shiftright("record_id", PARTITION_SHIFT)
    is_behind = (partition != f.col("fence_partition")) | (f.col("record_id") > f.col("fence_record_id"))
    return f.coalesce(is_behind, f.lit(False))


def _columns(schema: str) -> list[str]:
    return [column.split()[0] for column in schema.split(", ")]


def _fence(placed: list[PlacedRegistration], broker_id: int, incarnation: int) -> tuple[int, int, int, int] | None:
    """The row of _FENCES for an incarnation; None when nothing fences it."""
    sources = [
        one.source
        for one in placed
        if one.registration.broker_id == broker_id and one.registration.incarnation > incarnation and one.source
    ]
    if not sources:
        return None
    first = min(sources)
    if any(partition != first[0] for partition, _ in sources):
        return broker_id, incarnation, _EVERYWHERE, _EVERYWHERE
    return broker_id, incarnation, first[0], (first[0] << PARTITION_SHIFT) | first[1]
