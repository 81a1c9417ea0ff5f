"""Daily amounts that agents counted, for both halves of the costs: replication's and the gateways' clients'.

An agent's store counters include all of its requests. Those for the RouterChannel are counted separately, and are
clients'. The rest is replication's, except for reads of consumers of other zones by links: one range serves followers
and consumers alike, so reads are shared out by the bytes that were linked to each.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from retention_job.cost.usage_table import AMOUNTS, CLIENTS, ROUTER, STORE, TOPIC, amounts_by_day, racks
from retention_job.spark.joins import union

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OF_CLIENTS: Final = (
    "sent_bytes", "sent_crossed_bytes", "given_bytes", "given_crossed_bytes", "untold_bytes", "near_bytes",
)  # fmt: skip
"""The amounts of kind CLIENTS, in the order of `usage_table.AMOUNTS`."""


@dataclass(frozen=True, slots=True)
class CountedUsage:
    """The decoded usage records: few rows, used many times."""

    amounts: "DataFrame"
    """`usage_table.amounts_by_day`"""
    zones: "DataFrame"
    """`usage_table.racks`"""

    @classmethod
    def of(cls, counters: "DataFrame") -> "CountedUsage":
        """Decode `usage_table.COUNTERS` once."""
        counters = counters.cache()
        return cls(amounts_by_day(counters).cache(), racks(counters).cache())

    def store_by_day(self, prices: str) -> "DataFrame":
        """Return (broker_id, day, a1 to a7): replication's requests to the store with this section's prices."""
        of_store = self.amounts.where((fn.col("kind") == STORE) & (fn.col("name") == prices))
        of_clients = self.amounts.where((fn.col("kind") == ROUTER) & (fn.col("name") == prices))
        left = [fn.greatest(fn.sum(amount), fn.lit(0)).alias(amount) for amount in AMOUNTS]
        negated = of_clients.select("broker_id", "day", *((-fn.col(amount)).alias(amount) for amount in AMOUNTS))
        # Without a row of the store there is nothing to subtract: the same agent counts both.
        counted = union(of_store.select("broker_id", "day", *AMOUNTS), negated)
        return counted.groupBy("broker_id", "day").agg(*left)

    def clients_by_day(self) -> "DataFrame":
        """Return (zone, day, the fields of `ClientZoneUsage`, linked_sent_bytes, linked_given_bytes)."""
        sums = [fn.sum(amount).alias(name) for amount, name in zip(AMOUNTS, _OF_CLIENTS, strict=False)]
        moved = self.amounts.where(fn.col("kind") == CLIENTS).groupBy(fn.col("name").alias("zone"), "day").agg(*sums)
        linked = {
            f"linked_{way}_bytes": fn.greatest(fn.col(f"{way}_bytes") - fn.col(f"{way}_crossed_bytes"), fn.lit(0))
            for way in ("sent", "given")
        }
        return moved.withColumns(linked)

    def reads_by_day(self, prices: str) -> "DataFrame":
        """Return (day, gets_a_byte, retrieved_a_byte) for days with linked bytes.

        These are each linked byte's share of the GETs, HEADs and bytes that replication and consumers read from the
        store.
        """
        made = self.store_by_day(prices).groupBy("day").agg(
            fn.sum(fn.col("a2") + fn.col("a3")).alias("_gets"), fn.sum("a7").alias("_retrieved")
        )  # fmt: skip
        followers = self.amounts.where(fn.col("kind") == TOPIC).select("day", fn.col("a1").alias("_linked"))
        consumers = self.clients_by_day().select("day", fn.col("linked_given_bytes").alias("_linked"))
        linked = union(followers, consumers).groupBy("day").agg(fn.sum("_linked").alias("_linked"))
        return made.join(linked.where("_linked > 0"), "day").select(
            "day",
            (fn.col("_gets") / fn.col("_linked")).alias("gets_a_byte"),
            (fn.col("_retrieved") / fn.col("_linked")).alias("retrieved_a_byte"),
        )
