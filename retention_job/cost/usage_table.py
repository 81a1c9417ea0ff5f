"""Turns agents' cumulative usage records into amounts by broker and day.

Each counter of an agent's incarnation grows from 0. Two consecutive records of one incarnation differ by what happened
between them. The difference belongs to the day (UTC) of the middle of that time; because agents write a record at
midnight, it lies in one day. A record that is read twice counts once; one that is missing widens the difference. A
counter that shrinks was reset (its store was opened again), and counts from 0.

If the first record of an incarnation is gone (removed by the topic's retention, or read by an earlier run), the first
remaining one is only a baseline. An incremental run gets the last counters of the run before, and then nothing is
missing.

`CountedUsage` has the amounts for both halves of the costs: replication's and the gateways' clients'. An agent's store
counters include all of its requests. Those for the RouterChannel are counted separately, and are clients'. The rest is
replication's, except for reads of consumers of other zones by links: one range serves followers and consumers alike, so
reads are shared out by the bytes that were linked to each.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import from_arrow_schema

from metadata_topic.records.record_fields import UndecodableRecordError
from metadata_topic.records.usage_record import USAGE, UsageRecord, decode_usage
from retention_job.spark.joins import union

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DAY_MS: Final = 86_400_000

STORE: Final = "store"
FOLLOWER: Final = "follower"
TOPIC: Final = "topic"
AGENT: Final = "agent"
CLIENTS: Final = "clients"
ROUTER: Final = "router"
GATEWAY: Final = "gateway"

AMOUNTS: Final = ("a1", "a2", "a3", "a4", "a5", "a6", "a7")
"""The amounts by kind.

- store: put, get, head, delete, list, put bytes, get bytes; as `follower`, -1 for the first store of a price section,
  and -2, -3, ... for others of the same section
- follower: peer bytes, stock bytes
- topic: linked bytes, inline bytes as they crossed (packed), the same plain
- agent: none, one row for each record, which is unknown without it
- clients: by their zone, the fields of `ClientZoneUsage`
- router: the same as of a store, of which it is a part
- gateway: none, one row for each record of a gateway, by its own zone
"""

_OF_CLIENTS: Final = (
    "sent_bytes", "sent_crossed_bytes", "given_bytes", "given_crossed_bytes", "untold_bytes", "near_bytes",
)  # fmt: skip
"""The amounts of kind CLIENTS, in the order of AMOUNTS."""

_COUNTER: Final = ("kind", "name", "follower")
_RECORD: Final = ("broker_id", "incarnation", "usage_sequence")

_ARROW: Final = pa.schema(
    {
        "broker_id": pa.int32(),
        "incarnation": pa.int64(),
        "usage_sequence": pa.int64(),
        "event_ms": pa.int64(),
        "rack": pa.string(),
        "kind": pa.string(),
        "name": pa.string(),  # a store's prices, a topic's id in hexadecimal digits, or a zone
        "follower": pa.int32(),
        **dict.fromkeys(AMOUNTS, pa.int64()),
    }
)
COUNTERS: Final = from_arrow_schema(_ARROW)
"""Cumulative counters, one row for each counter of each usage record."""


def counters(staged: "DataFrame") -> "DataFrame":
    """Return COUNTERS of the usage records in staged rows; records that cannot be decoded are skipped."""
    usage = staged.where(fn.col("record_type") == USAGE).select("key", "value")
    return usage.mapInArrow(_decoded, COUNTERS)


def _decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows: list[dict[str, object]] = []
        for key, value in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            try:
                rows += _rows(decode_usage(key, value))
            except UndecodableRecordError:
                continue
        yield pa.RecordBatch.from_pylist(rows, schema=_ARROW)


def _row(record: UsageRecord, kind: str, name: str, follower: int, *amounts: int) -> dict[str, object]:
    return {
        "broker_id": record.broker_id,
        "incarnation": record.incarnation,
        "usage_sequence": record.sequence,
        "event_ms": record.event_timestamp_ms,
        "rack": record.rack,
        "kind": kind,
        "name": name,
        "follower": follower,
        **dict(zip(AMOUNTS, [*amounts, *[0] * (len(AMOUNTS) - len(amounts))], strict=True)),
    }


def _rows(record: UsageRecord) -> Iterator[dict[str, object]]:
    row = partial(_row, record)
    if not record.is_rest:
        yield row(AGENT, "", -1)
    # Each store has a counter of its own: a sum would shrink, as if it was reset, when one of the stores is closed.
    of_section: Counter[str] = Counter()
    for store in record.stores:
        of_section[store.prices] += 1
        yield row(STORE, store.prices, -of_section[store.prices], *store[1:])
    for follower in record.followers:
        yield row(FOLLOWER, "", follower.follower, follower.peer_bytes, follower.stock_bytes)
    for topic in record.topics:
        yield row(TOPIC, topic.topic_id.hex(), topic.follower, *topic[2:])
    if (clients := record.clients) is not None:
        router = clients.router
        yield row(GATEWAY, clients.zone, -1)
        yield row(ROUTER, clients.prices, -1, router.put, router.get, 0, 0, 0, router.put_bytes, router.get_bytes)
        for zone in clients.zones:
            yield row(CLIENTS, zone.zone, -1, *astuple(zone)[1:])


def latest(counted: "DataFrame") -> "DataFrame":
    """Return COUNTERS of each incarnation's last usage record, for the next incremental run."""
    last = fn.max("usage_sequence").over(Window.partitionBy("broker_id", "incarnation"))
    return counted.withColumn("_last", last).where("usage_sequence = _last").drop("_last")


def amounts_by_day(counted: "DataFrame") -> "DataFrame":
    """Return what was done between each two consecutive records, summed by day: (kind, broker_id, day, name, follower,
    AMOUNTS).

    `counted` has COUNTERS, including those of an earlier run. `day` counts days since 1970, UTC. Kind AGENT has a row
    for each known broker and day.
    """
    agents = counted.where(fn.col("kind") == AGENT).select(*_RECORD)
    once = counted.dropDuplicates([*_RECORD, *_COUNTER]).join(agents, list(_RECORD), "left_semi")
    incarnation = Window.partitionBy("broker_id", "incarnation")
    counter = Window.partitionBy("broker_id", "incarnation", *_COUNTER).orderBy("usage_sequence")
    once = once.withColumn("_first", fn.min("usage_sequence").over(incarnation))
    begins = fn.lag("usage_sequence").over(counter).isNull()
    # The record before this one, whether or not it had this counter: counters appear when they are first used.
    before_ms = fn.lag("event_ms").over(incarnation.orderBy("usage_sequence"))
    records = once.where(fn.col("kind") == AGENT).select(
        *_RECORD, fn.coalesce(before_ms, fn.col("event_ms")).alias("_before_ms")
    )
    before = {amount: fn.coalesce(fn.lag(amount).over(counter), fn.lit(0)) for amount in AMOUNTS}
    grown = [
        fn.when(fn.col(amount) >= before[amount], fn.col(amount) - before[amount])
        .otherwise(fn.col(amount)).alias(amount)
        for amount in AMOUNTS
    ]  # fmt: skip
    # The start of the first record's counters is unknown, unless it is the incarnation's very first record.
    is_baseline = begins & (fn.col("usage_sequence") == fn.col("_first")) & (fn.col("usage_sequence") > 0)
    steps = once.select(*_RECORD, *_COUNTER, "event_ms", *grown, is_baseline.alias("_is_baseline")).where(
        "not _is_baseline"
    )
    day = fn.floor((fn.col("_before_ms") + fn.col("event_ms")) / 2 / DAY_MS).cast("int")
    return (
        steps.join(records, list(_RECORD))
        .groupBy("kind", "broker_id", day.alias("day"), "name", "follower")
        .agg(*(fn.sum(amount).alias(amount) for amount in AMOUNTS))
    )


@dataclass(frozen=True, slots=True)
class CountedUsage:
    """The decoded usage records: few rows, used many times."""

    amounts: "DataFrame"
    """`amounts_by_day`"""
    zones: "DataFrame"
    """(broker_id, rack): the zone of each broker by its agent's newest record; brokers without one are left out."""

    @classmethod
    def of(cls, counters: "DataFrame") -> "CountedUsage":
        """Decode COUNTERS once."""
        counters = counters.cache()
        known = counters.where((fn.col("kind") == AGENT) & fn.col("rack").isNotNull())
        racks = known.groupBy("broker_id").agg(fn.max_by("rack", "event_ms").alias("rack"))
        return cls(amounts_by_day(counters).cache(), racks.cache())

    def rows(self, kind: str, name: str | None = None) -> "DataFrame":
        found = self.amounts.where(fn.col("kind") == kind)
        return found if name is None else found.where(fn.col("name") == name)

    def store_by_day(self, prices: str) -> "DataFrame":
        """Return (broker_id, day, AMOUNTS): replication's requests to the store with this section's prices."""
        left = [fn.greatest(fn.sum(amount), fn.lit(0)).alias(amount) for amount in AMOUNTS]
        negated = self.rows(ROUTER, prices).select(
            "broker_id", "day", *((-fn.col(amount)).alias(amount) for amount in AMOUNTS)
        )
        # Without a row of the store there is nothing to subtract: the same agent counts both.
        counted = union(self.rows(STORE, prices).select("broker_id", "day", *AMOUNTS), negated)
        return counted.groupBy("broker_id", "day").agg(*left)

    def clients_by_day(self) -> "DataFrame":
        """Return (zone, day, the fields of `ClientZoneUsage`, linked_sent_bytes, linked_given_bytes)."""
        sums = [fn.sum(amount).alias(name) for amount, name in zip(AMOUNTS, _OF_CLIENTS, strict=False)]
        moved = self.rows(CLIENTS).groupBy(fn.col("name").alias("zone"), "day").agg(*sums)
        linked = {
            f"linked_{way}_bytes": fn.greatest(fn.col(f"{way}_bytes") - fn.col(f"{way}_crossed_bytes"), fn.lit(0))
            for way in ("sent", "given")
        }
        return moved.withColumns(linked)

    def reads_by_day(self, prices: str) -> "DataFrame":
        """Return (day, gets_a_byte, retrieved_a_byte) for days with linked bytes.

        These are GETs and HEADs, and bytes read from the store, divided by the bytes linked to followers and consumers.
        """
        made = self.store_by_day(prices).groupBy("day").agg(
            fn.sum(fn.col("a2") + fn.col("a3")).alias("_gets"), fn.sum("a7").alias("_retrieved")
        )  # fmt: skip
        followers = self.rows(TOPIC).select("day", fn.col("a1").alias("_linked"))
        consumers = self.clients_by_day().select("day", fn.col("linked_given_bytes").alias("_linked"))
        linked = union(followers, consumers).groupBy("day").agg(fn.sum("_linked").alias("_linked"))
        return made.join(linked.where("_linked > 0"), "day").select(
            "day",
            (fn.col("_gets") / fn.col("_linked")).alias("gets_a_byte"),
            (fn.col("_retrieved") / fn.col("_linked")).alias("retrieved_a_byte"),
        )
