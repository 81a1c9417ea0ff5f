"""From the cost table to what a report shows: sums by day, topic and broker, verdicts and choices."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from plugin.prices import BYTES_PER_GB, PriceTable
from retention_job.cost.advice import BrokerLoad, TopicTotals, choices, topic_verdict
from retention_job.cost.client_costs import CLIENT_AMOUNTS, CLIENT_DOLLARS, CLIENT_PARTS
from retention_job.cost.cost_tables import AMOUNTS, DOLLARS, READERS
from retention_job.cost.rates import StoreSections
from retention_job.page.report_data import MAX_TOPICS, BrokerCosts, ClientZone, Costs, DayCosts, GroupReads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

_MS_PER_HOUR: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class CostFrames:
    """What `cost_tables` made, and the time that it is of."""

    daily: "DataFrame"
    """`cost_by_topic`"""
    tiered: "DataFrame"
    """`tiered_cost`"""
    seconds: float
    clients: "DataFrame"
    """`client_costs`"""


def summarise(frames: CostFrames, prices: PriceTable, sections: StoreSections, topics_now: "DataFrame") -> Costs:
    """`topics_now` is TOPICS. Raises PriceError."""
    store, zone_reads = sections.wal, sections.zone_reads
    daily = _with_produced(frames.daily, topics_now).cache()
    topics, left_out = _topics(daily)
    brokers = _brokers(daily)
    sums = (fn.sum(name).alias(name) for name in ("produced_bytes", "upload_bytes", "copied_bytes"))
    is_behind = bool(daily.where("produced_bytes IS NOT NULL").agg(*sums).where(_BEHIND).count())
    return Costs(
        prices.source,
        prices.confirmed,
        prices.cross_zone_read_gb,
        frames.seconds,
        _days(replace(frames, daily=daily)),
        topics,
        [topic_verdict(topic, frames.seconds, prices, store, zone_reads=zone_reads) for topic in topics],
        brokers,
        None
        if is_behind
        else choices([_load(broker, frames.seconds, zone_reads) for broker in brokers], prices, store),
        left_out,
        _clients(frames.clients),
        group_reads(brokers, prices),
    )


def group_reads(brokers: Sequence[BrokerCosts], prices: PriceTable) -> GroupReads | None:
    """As many zones are reckoned with as any leader's followers stand in, and its own. Raises PriceError."""
    produced = sum(broker.amounts["produced_bytes"] or 0.0 for broker in brokers)
    zones = 1 + max((int(broker.amounts["remote_zones"] or 0) for broker in brokers), default=0)
    if zones == 1 or not produced:
        return None
    crossed = produced * (1 - 1 / zones)
    return GroupReads(zones, crossed, crossed / BYTES_PER_GB * prices.zone_crossing_gb)


_TOPIC_SUMS: Final = (
    "upload_bytes",
    "objects",
    "linked_bytes",
    "inline_bytes",
    "stock_usd",
    "produced_bytes",
    "crossed_bytes",
)
_LOAD: Final = (*READERS, "object_hours", "produced_bytes", "crossed_bytes", "kept_bytes")
"""What is known of a broker's load beside AMOUNTS."""
_ARCHIVE_USD: Final = "archive_put_usd + archive_storage_usd"
_UNKNOWN_ROW: Final = "remote_wal_usd IS NULL AND objects > 0"


_BEHIND: Final = "produced_bytes < (upload_bytes - coalesce(copied_bytes, 0)) / 4"
"""Agents tell every ten minutes what followers were given, and the metadata at once what was uploaded. Where followers
were given less than a quarter of that, what was saved is not known yet. (Objects of one small batch each are three
times as large as it.)"""


def _with_produced(daily: "DataFrame", topics_now: "DataFrame") -> "DataFrame":
    """With `topic`, `produced_bytes`, by what followers were given, `crossed_bytes`, of what followers in other zones
    were, and how long objects are kept (`object_hours`, 0 where that is for more than links) and why (`is_kept`).
    """
    known = topics_now.select(
        "topic_id",
        "topic",
        "is_kept",
        (fn.col("replication_factor") - 1).alias("_followers"),
        fn.when(~fn.col("is_kept"), fn.greatest("wal_retention_ms", fn.lit(0)) / _MS_PER_HOUR).alias("object_hours"),
    )
    given = fn.when(fn.col("_followers") > 0, fn.expr("(linked_bytes + inline_bytes) / _followers"))
    crossed = fn.when(given.isNotNull(), fn.expr("linked_remote_bytes + inline_remote_bytes"))
    named = daily.join(fn.broadcast(known), "topic_id", "left")
    told = named.withColumns({"produced_bytes": given, "crossed_bytes": crossed}).drop("_followers")
    behind = fn.coalesce(fn.expr(_BEHIND), fn.lit(False))
    return told.withColumns({name: fn.when(~behind, fn.col(name)) for name in ("remote_wal_usd", "stock_usd")})


def _days(frames: CostFrames) -> list[DayCosts]:
    tiered = {
        row.day: row.usd for row in frames.tiered.groupBy("day").agg(fn.sum("storage_usd").alias("usd")).collect()
    }
    clients = _clients_by_day(frames.clients)
    rows = frames.daily.groupBy("day").agg(
        *(fn.sum(name).alias(name) for name in DOLLARS),
        fn.sum("stock_usd").alias("stock_usd"),
        fn.count_if(fn.expr(_UNKNOWN_ROW)).alias("unknown"),
    ).orderBy("day").collect()  # fmt: skip
    days = {
        row.day: DayCosts(
            row.day,
            {name: row[name] for name in DOLLARS if row[name] is not None},
            row.stock_usd,
            tiered.get(row.day, 0.0),
            row.unknown == 0,
        )
        for row in rows
    }
    nothing = DayCosts(0, {}, None, 0.0, is_complete=True)
    for day, (parts, direct_usd) in clients.items():
        of_day = days.get(day, nothing)
        stock_usd = (of_day.stock_usd or 0.0) + direct_usd
        days[day] = replace(of_day, day=day, parts={**of_day.parts, **parts}, stock_usd=stock_usd)
    return [days[day] for day in sorted(days)]


def _clients_by_day(clients: "DataFrame") -> dict[int, tuple[dict[str, float], float]]:
    """What clients paid by day, by CLIENT_PARTS, and what they would have directly."""
    sums = (fn.sum(fn.expr(" + ".join(names))).alias(part) for part, names in CLIENT_PARTS.items())
    rows = clients.groupBy("day").agg(*sums, fn.sum("direct_usd").alias("direct_usd")).collect()
    return {row.day: ({part: row[part] for part in CLIENT_PARTS}, row.direct_usd) for row in rows}


def _clients(clients: "DataFrame") -> list[ClientZone]:
    sums = (fn.sum(name).alias(name) for name in (*CLIENT_AMOUNTS, *CLIENT_DOLLARS))
    rows = clients.groupBy("zone").agg(*sums).orderBy("zone").collect()
    return [
        ClientZone(row.zone, *({name: row[name] for name in names} for names in (CLIENT_AMOUNTS, CLIENT_DOLLARS)))
        for row in rows
    ]


def _topics(daily: "DataFrame") -> tuple[list[TopicTotals], int]:
    """The costliest topics, and how many others there are."""
    unknown = fn.count_if(fn.expr(_UNKNOWN_ROW))
    totals = daily.where("topic_id IS NOT NULL").groupBy("topic_id").agg(
        *(fn.sum(name).alias(name) for name in _TOPIC_SUMS),
        # A sum that leaves unknown days out would look like a saving.
        fn.when(unknown == 0, fn.sum("remote_wal_usd")).alias("remote_wal_usd"),
        fn.sum(fn.expr(f"put_usd + upload_usd + storage_usd + {_ARCHIVE_USD}")).alias("known_usd"),
        fn.sum(fn.expr(_ARCHIVE_USD)).alias("archive_usd"),
        *(fn.max(name).alias(name) for name in READERS),
        fn.coalesce(fn.max("object_hours"), fn.lit(0.0)).alias("object_hours"),
        fn.coalesce(fn.max("is_kept"), fn.lit(False)).alias("is_kept"),
        fn.max("topic").alias("topic"),
        unknown.alias("unknown_days"),
    ).cache()  # fmt: skip
    count = totals.count()
    costliest = totals.orderBy(fn.coalesce("remote_wal_usd", "known_usd").desc()).limit(MAX_TOPICS)
    rows = sorted(costliest.collect(), key=lambda row: -(row.remote_wal_usd or row.known_usd or 0))
    return [_topic(row) for row in rows], max(0, count - MAX_TOPICS)


def _topic(row: "Row") -> TopicTotals:
    name = row.topic or f"(gone) {bytes(row.topic_id).hex()}"
    crossings = row.crossed_bytes / row.produced_bytes if row.produced_bytes else None
    told = {field.name: row[field.name] for field in fields(TopicTotals)[1:] if field.name != "crossings"}
    return TopicTotals(name, crossings=crossings, **told)


def _brokers(daily: "DataFrame") -> list[BrokerCosts]:
    rows = daily.groupBy("broker_id").agg(
        *(fn.sum(name).alias(name) for name in (*AMOUNTS, "remote_wal_usd", "stock_usd")),
        *(fn.max(name).alias(name) for name in READERS),
        fn.max("object_hours").alias("object_hours"),
        *(fn.sum(name).alias(name) for name in ("produced_bytes", "crossed_bytes")),
        fn.sum(fn.col("produced_bytes") * fn.col("is_kept").cast("int")).alias("kept_bytes"),
    ).orderBy("broker_id").collect()  # fmt: skip
    return [
        BrokerCosts(
            row.broker_id,
            {name: row[name] for name in (*AMOUNTS, *_LOAD)},
            row.remote_wal_usd,
            row.stock_usd,
        )
        for row in rows
    ]


def _load(broker: BrokerCosts, seconds: float, zone_reads: bool) -> BrokerLoad:
    of = {name: broker.amounts[name] or 0.0 for name in _LOAD}
    produced = of["produced_bytes"]
    return BrokerLoad(
        broker.broker_id,
        produced / seconds / 1e6 if seconds > 0 else 0.0,
        of["crossed_bytes"] / produced if produced else 0.0,
        of["remote_followers"],
        of["object_hours"],
        of["kept_bytes"] > produced / 2,
        of["remote_zones"],
        zone_reads,
    )
