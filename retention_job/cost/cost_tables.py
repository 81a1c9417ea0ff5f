"""Computes what was uploaded, stored, fetched and sent, and its cost: of replication, and of gateways' clients.

Replication, by topic, broker and day. There are two sources for a topic's amounts. The metadata has objects, their
sizes, life times and whose bytes are in them; an object's PUT, upload and storage are shared out by the bytes of its
entries. The agents' usage records have what followers were given, linked or inline, and each agent's requests. GETs
belong to no topic by themselves, because one range holds several topics' batches: each day's GETs and retrieved bytes
are shared out by the bytes that were linked, to followers, and to consumers that connect through gateways, whose share
is among the other costs of clients. So the sum over topics is what was paid, and nothing is counted twice.

An archive object belongs to one topic, and has the prices of its own store. Amounts without a topic are in rows with a
null topic: requests that concern no objects (snapshots, listings, failed attempts, reads of the archive), and all
cross-zone traffic besides record bytes. In an incremental run, combined segments of earlier runs have no entries here;
their storage is in such a row, too.

The broker of a row is the one that led. Stock Kafka's cost is that of the same records sent to the same followers in
other zones; a broker whose zone is unknown counts as a zone of its own. If no usage record has a broker's day, amounts
and dollars that follow from usage are null, which is unknown and not 0.

All of it is linear aggregation; `entries` is shuffled once, by object.

Clients that connect through gateways, by their zone and day, compared with other ways. Gateways count at both ends, so
the bytes that their clients would have sent and received across zones are known, and the bytes that crossed instead.
The difference went through object storage. Bytes that producers sent this way are in the RouterChannel: its PUTs are
made by the zone's gateway, its GETs beside all brokers, and are shared out by the bytes that each zone's clients sent
this way. Bytes that consumers received this way come out of replication's objects, whose reads are shared out by the
linked bytes of followers and consumers.

Three ways are priced. Direct: everything crosses. Follower fetching (KIP-392), which needs only settings: the same
without the bytes that consumers received from partitions with a replica in their zone; if nobody looked for a replica,
that is between none and all of them. Through the gateway: the bytes that crossed, and the store.

Objects of the RouterChannel live for moments, so their storage is not counted; if a log adopts one, its storage is the
log's.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as fn

from plugin.prices import BYTES_PER_GB, PriceTable, StorePrices
from retention_job.cost.stored_objects import ARCHIVE_AMOUNTS, BYTE_MS_PER_GB_MONTH, archive_by_topic, segments_by_topic
from retention_job.cost.usage_table import AGENT, FOLLOWER, GATEWAY, ROUTER, STORE, TOPIC, CountedUsage
from retention_job.settings import StoreSections
from retention_job.spark.joins import union

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KEY: Final = ("topic_id", "broker_id", "day")
_OF_TOPICS: Final = (
    "puts", "upload_bytes", "linked_remote_bytes", "inline_remote_bytes", "plain_remote_bytes", "archive_puts",
    "archive_upload_bytes",
)  # fmt: skip

AMOUNTS: Final = (
    "objects",  # that the topic has bytes in
    "puts",  # its share of their PUTs
    "upload_bytes",
    "stored_byte_ms",
    "linked_bytes",  # to all followers
    "linked_remote_bytes",  # to those in other zones
    "inline_bytes",  # as they crossed: packed
    "inline_remote_bytes",
    "plain_bytes",  # those, before they were packed
    "plain_remote_bytes",
    "gets",
    "retrieval_bytes",
    "protocol_bytes",  # cross-zone traffic besides record bytes: requests, links, topics with the feature off
    "protocol_stock_bytes",  # the same traffic in stock Kafka
    "archive_objects",  # that were written
    "archive_puts",  # theirs and, without a topic, all else that is paid as a PUT in a store with other prices
    "archive_upload_bytes",
    "archive_stored_byte_ms",
    "archive_gets",  # from a store with other prices
)
READERS: Final = (
    "remote_followers",  # brokers in other zones
    "remote_zones",  # that these stand in; one of which no zone is known has one of its own
)
DOLLARS: Final = (
    "put_usd",
    "upload_usd",  # with what the way to other zones' buckets adds
    "storage_usd",
    "get_usd",
    "retrieval_usd",
    "read_fee_usd",
    "crossing_usd",  # cross-zone traffic that remains
    "archive_put_usd",
    "archive_get_usd",
    "archive_storage_usd",
)
"""The parts of `remote_wal_usd`."""
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
"""The parts of `gateway_usd`; for all clients together they stand beside DOLLARS."""
CLIENT_DOLLARS: Final = (
    *(name for names in CLIENT_PARTS.values() for name in names),
    "direct_usd",
    "follower_fetching_usd",  # counts only replicas that are known to be in the zone
    "follower_fetching_least_usd",  # also counts a replica in the zone if nobody looked for one
    "gateway_usd",
    "saved_usd",  # by the gateway, compared with direct connections
)


DEFAULT_SECTIONS: Final = StoreSections()


@dataclass(frozen=True, slots=True)
class Rates:
    """Prices in dollars for the requests, the storage and the traffic that a report counts."""

    store: StorePrices
    archive: StorePrices
    crossing_gb: float

    @classmethod
    def of(cls, prices: PriceTable, sections: StoreSections) -> "Rates":
        """Take the prices that a report needs out of a table. Raises PriceError if a price is missing."""
        return cls(prices.store(sections.wal), prices.store(sections.archive), prices.zone_crossing_gb)


# Replication.


@dataclass(frozen=True, slots=True)
class CostSources:
    """The tables of a run from which costs are calculated: SEGMENTS, ENTRIES, TIERED, ARCHIVE_OBJECTS and COUNTERS."""

    segments: "DataFrame"
    entries: "DataFrame"
    tiered: "DataFrame"
    archive: "DataFrame"
    counters: "DataFrame"
    now_ms: int
    counted_until_ms: int = 0
    """Earlier runs have counted what was stored before this time; 0 if this run counts everything."""
    since_ms: int = 0
    """The start of the time that the amounts cover."""


def cost_by_topic(
    sources: CostSources,
    prices: PriceTable,
    sections: StoreSections = DEFAULT_SECTIONS,
    counted: CountedUsage | None = None,
) -> "DataFrame":
    """Return one row for each topic id, broker and day: AMOUNTS, READERS, DOLLARS, and totals.

    The totals are `remote_wal_usd`, `stock_usd` and `saved_usd`. `counted` comes from the sources' counters. Raises
    PriceError if a price is missing.
    """
    rates = Rates.of(prices, sections)
    counted = counted or CountedUsage.of(sources.counters)
    uploads = segments_by_topic(sources.segments, sources.entries, sources.now_ms, sources.counted_until_ms).cache()
    moved = _moved(counted).cache()
    archived = archive_by_topic(sources.archive, sources.now_ms, sources.since_ms).cache()
    reads = counted.reads_by_day(sections.wal).cache()
    by_broker = _without_topic(counted, [uploads, moved, archived], reads, sections)
    # GETs and retrieved bytes of a day are shared out by the bytes that were linked.
    given = (
        moved.join(fn.broadcast(reads), "day", "left")
        .withColumn("gets", fn.col("linked_bytes") * fn.col("gets_a_byte"))
        .withColumn("retrieval_bytes", fn.col("linked_bytes") * fn.col("retrieved_a_byte"))
        .drop("gets_a_byte", "retrieved_a_byte")
    )
    amounts = (
        union(uploads, given, archived, by_broker)
        .groupBy(*_KEY)
        .agg(*(fn.sum(name).alias(name) for name in AMOUNTS), *(fn.max(name).alias(name) for name in READERS))
    )
    known = counted.rows(AGENT).select("broker_id", "day", fn.lit(True).alias("_known"))
    return _priced(amounts.join(fn.broadcast(known), ["broker_id", "day"], "left"), rates)


def _moved(counted: CountedUsage) -> "DataFrame":
    """Return (key, linked and inline bytes, READERS) from usage."""
    topics = _with_zones(counted.rows(TOPIC), counted.zones)
    remote = fn.col("is_remote").cast("long")
    given = ((fn.col("a1") + fn.col("a2")) > 0).cast("int")
    return topics.groupBy(fn.unhex("name").alias("topic_id"), "broker_id", "day").agg(
        fn.sum("a1").alias("linked_bytes"),
        fn.sum(fn.col("a1") * remote).alias("linked_remote_bytes"),
        fn.sum("a2").alias("inline_bytes"),
        fn.sum(fn.col("a2") * remote).alias("inline_remote_bytes"),
        fn.sum("a3").alias("plain_bytes"),
        fn.sum(fn.col("a3") * remote).alias("plain_remote_bytes"),
        fn.sum(remote * given).alias("remote_followers"),
        fn.countDistinct(fn.when(fn.col("is_remote") & (given > 0), fn.col("zone"))).alias("remote_zones"),
    )


def _with_zones(rows: "DataFrame", zones: "DataFrame") -> "DataFrame":
    """Add `zone`, the follower's or one of its own, and `is_remote`: whether it differs from the leader's."""
    own = fn.broadcast(zones.withColumnRenamed("rack", "_own"))
    theirs = fn.broadcast(zones.select(fn.col("broker_id").alias("follower"), fn.col("rack").alias("_theirs")))
    joined = rows.join(own, "broker_id", "left").join(theirs, "follower", "left")
    return joined.withColumns(
        {
            "is_remote": ~fn.coalesce(fn.col("_own") == fn.col("_theirs"), fn.lit(False)),
            "zone": fn.coalesce("_theirs", fn.concat(fn.lit("broker "), fn.col("follower").cast("string"))),
        }
    )


def _without_topic(
    counted: CountedUsage, by_topic: "list[DataFrame]", reads: "DataFrame", sections: StoreSections
) -> "DataFrame":
    """Return rows with a null topic: what an agent did besides the topics' records (`by_topic`) and clients'
    records.
    """
    together = union(*by_topic)
    of_topics = together.groupBy("broker_id", "day").agg(
        *(fn.coalesce(fn.sum(name), fn.lit(0)).alias(f"_{name}") for name in _OF_TOPICS)
    ).cache()  # fmt: skip
    rows = union(
        _requests(counted.store_by_day(sections.wal), of_topics, reads, sections),
        _crossing(counted, of_topics),
        _other_store(counted, of_topics, sections),
    )
    return rows.withColumn("topic_id", fn.lit(None).cast("binary"))


def _left(counted: str, *told: str) -> "Column":
    """Return SQL for the part of a count in usage records that the objects do not explain."""
    return fn.greatest(fn.expr(" - ".join((counted, *(f"coalesce({name}, 0)" for name in told)))), fn.lit(0))


def _requests(store: "DataFrame", of_topics: "DataFrame", reads: "DataFrame", sections: StoreSections) -> "DataFrame":
    """Return requests to the combined segments' store, which may hold archive objects too, less the `reads` shared
    out.
    """
    both = sections.wal == sections.archive
    beside = store.join(of_topics, ["broker_id", "day"], "left").join(fn.broadcast(reads), "day", "left")
    unlinked = fn.col("gets_a_byte").isNull()
    return beside.select(
        "broker_id",
        "day",
        # A listing has the price of a PUT.
        (_left("a1", "_puts", *(["_archive_puts"] if both else [])) + fn.col("a5")).alias("puts"),
        _left("a6", "_upload_bytes", *(["_archive_upload_bytes"] if both else [])).alias("upload_bytes"),
        fn.when(unlinked, fn.col("a2") + fn.col("a3")).alias("gets"),
        fn.when(unlinked, fn.col("a7")).alias("retrieval_bytes"),
    )


def _crossing(counted: CountedUsage, of_topics: "DataFrame") -> "DataFrame":
    """Return cross-zone traffic besides record bytes."""
    crossing = (
        _with_zones(counted.rows(FOLLOWER).where("follower >= 0"), counted.zones)
        .where("is_remote")
        .groupBy("broker_id", "day")
        .agg(
            fn.sum("a1").alias("_peer"),
            fn.sum("a2").alias("_stock"),
            fn.countDistinct("follower").alias("remote_followers"),
            fn.countDistinct("zone").alias("remote_zones"),
        )
        .join(of_topics, ["broker_id", "day"], "left")
    )
    crossed, plain, linked = (fn.coalesce(f"_{way}_remote_bytes", fn.lit(0)) for way in ("inline", "plain", "linked"))
    return crossing.select(
        "broker_id",
        "day",
        (fn.col("_peer") - crossed).alias("protocol_bytes"),
        (fn.col("_stock") - plain - linked).alias("protocol_stock_bytes"),
        *READERS,
    )


def _other_store(counted: CountedUsage, of_topics: "DataFrame", sections: StoreSections) -> "DataFrame":
    """Return requests to the archive's store, if it has other prices than the combined segments'."""
    other = counted.rows(STORE).where(fn.col("name") != sections.wal).groupBy("broker_id", "day")
    made = other.agg(*(fn.sum(name).alias(name) for name in ("a1", "a2", "a3", "a5", "a6")))
    return made.join(of_topics, ["broker_id", "day"], "left").select(
        "broker_id",
        "day",
        (_left("a1", "_archive_puts") + fn.col("a5")).alias("archive_puts"),
        _left("a6", "_archive_upload_bytes").alias("archive_upload_bytes"),
        fn.expr("a2 + a3").alias("archive_gets"),
    )


def _priced(amounts: "DataFrame", rates: Rates) -> "DataFrame":
    known = fn.coalesce("_known", fn.lit(False))

    def usage(name: str) -> "Column":
        return fn.when(known, fn.coalesce(name, fn.lit(0)))

    def metadata(name: str) -> "Column":
        return fn.coalesce(name, fn.lit(0))

    from_metadata = ("objects", "puts", "upload_bytes", "stored_byte_ms", *ARCHIVE_AMOUNTS)
    counted = amounts.select(
        *_KEY,
        *((metadata(name) if name in from_metadata else usage(name)).cast("double").alias(name) for name in AMOUNTS),
        *READERS,
    )
    store, gb = rates.store, float(BYTES_PER_GB)
    usd = {
        "put_usd": fn.col("puts") * (store.put_per_1000 / 1000),
        "upload_usd": fn.col("upload_bytes") * (store.upload_gb / gb),
        "storage_usd": fn.col("stored_byte_ms") * (store.storage_gb_month / BYTE_MS_PER_GB_MONTH),
        "get_usd": fn.col("gets") * (store.get_per_1000 / 1000),
        "retrieval_usd": fn.col("retrieval_bytes") * (store.retrieval_gb / gb),
        "read_fee_usd": fn.col("linked_remote_bytes") * (rates.store.cross_zone_read_gb / gb),
        "crossing_usd": fn.expr("inline_remote_bytes + protocol_bytes") * (rates.crossing_gb / gb),
        "archive_put_usd": fn.col("archive_puts") * (rates.archive.put_per_1000 / 1000)
        + fn.col("archive_upload_bytes") * (rates.archive.upload_gb / gb),
        "archive_get_usd": fn.col("archive_gets") * (rates.archive.get_per_1000 / 1000),
        "archive_storage_usd": fn.col("archive_stored_byte_ms")
        * (rates.archive.storage_gb_month / BYTE_MS_PER_GB_MONTH),
    }
    stock = fn.expr("linked_remote_bytes + plain_remote_bytes + protocol_stock_bytes") * (rates.crossing_gb / gb)
    return (
        counted.withColumns(usd)
        .withColumn("remote_wal_usd", fn.expr(" + ".join(DOLLARS)))
        .withColumn("stock_usd", stock)
        .withColumn("saved_usd", fn.col("stock_usd") - fn.col("remote_wal_usd"))
    )


# Gateways' clients.


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
    return _clients_priced(rows.groupBy("zone", "day").agg(*sums), rates)


def _router_puts(counted: CountedUsage, store: str) -> "DataFrame":
    """Return (zone, day, puts, upload_bytes) by the gateway's zone."""
    zones = counted.rows(GATEWAY).select("broker_id", "day", fn.col("name").alias("zone"))
    made = (
        counted.rows(ROUTER, store)
        .groupBy("broker_id", "day")
        .agg(fn.sum("a1").alias("puts"), fn.sum("a6").alias("upload_bytes"))
    )
    zones = fn.broadcast(zones.dropDuplicates(["broker_id", "day"]))
    return made.where("puts > 0").join(zones, ["broker_id", "day"]).drop("broker_id")


def _router_gets(counted: CountedUsage, moved: "DataFrame", store: str) -> "DataFrame":
    """Return (zone, day, gets, retrieval_bytes): each zone's share by the bytes that its clients sent through the
    store.
    """
    made = counted.rows(ROUTER, store).groupBy("day").agg(fn.sum("a2").alias("_gets"), fn.sum("a7").alias("_retrieved"))
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


def _clients_priced(amounts: "DataFrame", rates: Rates) -> "DataFrame":
    store, gb = rates.store, float(BYTES_PER_GB)

    def crossing(size: str) -> "Column":
        return fn.expr(size) * (rates.crossing_gb / gb)

    linked_given = fn.greatest(fn.expr("given_bytes - given_crossed_bytes"), fn.lit(0.0))
    usd = {
        "put_usd": fn.col("puts") * (store.put_per_1000 / 1000),
        "upload_usd": fn.col("upload_bytes") * (store.upload_gb / gb),
        "get_usd": fn.expr("gets + consumer_gets") * (store.get_per_1000 / 1000),
        "retrieval_usd": fn.expr("retrieval_bytes + consumer_retrieval_bytes") * (store.retrieval_gb / gb),
        "read_fee_usd": (fn.col("retrieval_bytes") + linked_given) * (rates.store.cross_zone_read_gb / gb),
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
