"""Costs of clients that connect through gateways, compared with other ways, by the clients' zone and day.

Gateways count at both ends, so the bytes that their clients would have sent and received across zones are known, and
the bytes that crossed instead. The difference went through object storage. Bytes that producers sent this way are in
the RouterChannel: its PUTs are made by the zone's gateway, its GETs beside all brokers, and are shared out by the bytes
that each zone's clients sent this way. Bytes that consumers received this way come out of replication's objects, whose
reads are shared out by the linked bytes of followers and consumers (`counted_usage`).

Three ways are priced. Direct: everything crosses. Follower fetching (KIP-392), which needs only settings: the same
without the bytes that consumers received from partitions with a replica in their zone; if nobody looked for a replica,
that is between none and all of them. Through the gateway: the bytes that crossed, and the store.

Objects of the RouterChannel live for moments, so their storage is not counted; if a log adopts one, its storage is the
log's.
"""

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as fn

from plugin.prices import BYTES_PER_GB, PriceTable
from retention_job.cost.counted_usage import CountedUsage
from retention_job.cost.rates import DEFAULT_SECTIONS, Rates, StoreSections
from retention_job.cost.usage_table import GATEWAY, ROUTER
from retention_job.spark.joins import union

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CLIENT_AMOUNTS: Final = (
    "sent_bytes",  # from clients, to brokers of other zones
    "sent_crossed_bytes",  # bytes that crossed zones instead of these
    "given_bytes",  # to clients, by these brokers
    "given_crossed_bytes",
    "near_bytes",  # part of the given bytes: of partitions with a replica in the zone
    "untold_bytes",  # part of the given bytes: nobody looked for such a replica
    "puts",  # of the RouterChannel
    "upload_bytes",
    "gets",
    "retrieval_bytes",
    "consumer_gets",  # their share of the reads of replication's objects
    "consumer_retrieval_bytes",
)
CLIENT_PARTS: Final = {
    "clients_store_usd": ("put_usd", "upload_usd", "get_usd", "retrieval_usd", "read_fee_usd"),
    "clients_crossing_usd": ("crossing_usd",),
}
"""The parts of `gateway_usd`; for all clients together they stand beside `cost_tables.DOLLARS`."""
CLIENT_DOLLARS: Final = (
    *(name for names in CLIENT_PARTS.values() for name in names),
    "direct_usd",
    "follower_fetching_usd",  # counts only replicas that are known to be in the zone
    "follower_fetching_least_usd",  # also counts a replica in the zone if nobody looked for one
    "gateway_usd",
    "saved_usd",  # by the gateway, compared with direct connections
)


def client_costs(counted: CountedUsage, prices: PriceTable, sections: StoreSections = DEFAULT_SECTIONS) -> "DataFrame":
    """Return one row for each zone and day on which its gateways counted: CLIENT_AMOUNTS and CLIENT_DOLLARS.

    Raises PriceError if a price is missing.
    """
    rates = Rates.of(prices, sections)
    moved = counted.clients_by_day()
    reads = counted.reads_by_day(sections.wal)
    linked_given = fn.col("linked_given_bytes")
    near = fn.least("near_bytes", "given_bytes")
    with_reads = moved.join(fn.broadcast(reads), "day", "left").select(
        "zone",
        "day",
        "sent_bytes",
        "sent_crossed_bytes",
        "given_bytes",
        "given_crossed_bytes",
        near.alias("near_bytes"),
        fn.least(fn.col("untold_bytes"), fn.col("given_bytes") - near).alias("untold_bytes"),
        (linked_given * fn.col("gets_a_byte")).alias("consumer_gets"),
        (linked_given * fn.col("retrieved_a_byte")).alias("consumer_retrieval_bytes"),
    )
    rows = union(with_reads, _router_puts(counted, sections.wal), _router_gets(counted, moved, sections.wal))
    sums = (fn.coalesce(fn.sum(name), fn.lit(0)).cast("double").alias(name) for name in CLIENT_AMOUNTS)
    return _priced(rows.groupBy("zone", "day").agg(*sums), rates)


def _router_puts(counted: CountedUsage, store: str) -> "DataFrame":
    """Return (zone, day, puts, upload_bytes) by the gateway's zone."""
    zones = counted.amounts.where(fn.col("kind") == GATEWAY).select("broker_id", "day", fn.col("name").alias("zone"))
    router = counted.amounts.where((fn.col("kind") == ROUTER) & (fn.col("name") == store))
    made = router.groupBy("broker_id", "day").agg(fn.sum("a1").alias("puts"), fn.sum("a6").alias("upload_bytes"))
    zones = fn.broadcast(zones.dropDuplicates(["broker_id", "day"]))
    return made.where("puts > 0").join(zones, ["broker_id", "day"]).drop("broker_id")


def _router_gets(counted: CountedUsage, moved: "DataFrame", store: str) -> "DataFrame":
    """Return (zone, day, gets, retrieval_bytes):

    each zone's share, by the bytes that its clients sent through the store.
    """
    router = counted.amounts.where((fn.col("kind") == ROUTER) & (fn.col("name") == store))
    made = router.groupBy("day").agg(fn.sum("a2").alias("_gets"), fn.sum("a7").alias("_retrieved"))
    of_day = Window.partitionBy("day")
    linked, all_linked = fn.col("linked_sent_bytes"), fn.sum("linked_sent_bytes").over(of_day)
    # At midnight a request may be counted on one day, and its read on the next.
    share = fn.when(all_linked > 0, linked / all_linked).otherwise(1 / fn.count("*").over(of_day))
    shares = moved.select("zone", "day", share.alias("_share"))
    return shares.join(fn.broadcast(made), "day").select(
        "zone",
        "day",
        (fn.col("_share") * fn.col("_gets")).alias("gets"),
        (fn.col("_share") * fn.col("_retrieved")).alias("retrieval_bytes"),
    )


def _priced(amounts: "DataFrame", rates: Rates) -> "DataFrame":
    store, gb = rates.store, float(BYTES_PER_GB)

    def crossing(size: str) -> "Column":
        return fn.expr(size) * (rates.crossing_gb / gb)

    linked_given = fn.greatest(fn.expr("given_bytes - given_crossed_bytes"), fn.lit(0.0))
    usd = {
        "put_usd": fn.col("puts") * (store.put_per_1000 / 1000),
        "upload_usd": fn.col("upload_bytes") * (store.upload_gb / gb),
        "get_usd": fn.expr("gets + consumer_gets") * (store.get_per_1000 / 1000),
        "retrieval_usd": fn.expr("retrieval_bytes + consumer_retrieval_bytes") * (store.retrieval_gb / gb),
        "read_fee_usd": (fn.col("retrieval_bytes") + linked_given) * (rates.read_fee_gb / gb),
        "crossing_usd": crossing("sent_crossed_bytes + given_crossed_bytes"),
        "direct_usd": crossing("sent_bytes + given_bytes"),
        "follower_fetching_usd": crossing("sent_bytes + given_bytes - near_bytes"),
        "follower_fetching_least_usd": crossing("sent_bytes + given_bytes - near_bytes - untold_bytes"),
    }
    paid = " + ".join(name for names in CLIENT_PARTS.values() for name in names)
    return (
        amounts.withColumns(usd)
        .withColumn("gateway_usd", fn.expr(paid))
        .withColumn("saved_usd", fn.col("direct_usd") - fn.col("gateway_usd"))
    )
