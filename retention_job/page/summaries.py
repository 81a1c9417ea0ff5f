"""Summarises a run's tables for a report: costs by day, topic and broker, sizes of objects, and the upload lag."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from plugin.prices import BYTES_PER_GB, EXPRESS, PriceTable
from retention_job.cost.cost_tables import AMOUNTS, CLIENT_AMOUNTS, CLIENT_DOLLARS, CLIENT_PARTS, DOLLARS, READERS
from retention_job.page.report_data import (
    MAX_TOPICS,
    Bar,
    BrokerCosts,
    ClientZone,
    Costs,
    DayCosts,
    GroupReads,
    Objects,
    PartitionLag,
    TopicCosts,
)
from retention_job.schemas import EPOCH_KEY
from retention_job.tables.coverage import joined_ranges, known_ranges, no_loss, not_wanted_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from retention_job.tables.history import History

_TOPIC_SUMS: Final = ("upload_bytes", "linked_bytes", "inline_bytes", "stock_usd")
_BROKER_AMOUNTS: Final = (*AMOUNTS, *READERS, "produced_bytes")
_KNOWN_USD: Final = "put_usd + upload_usd + storage_usd + archive_put_usd + archive_storage_usd"
_UNKNOWN_ROW: Final = "remote_wal_usd IS NULL AND objects > 0"
_BEHIND: Final = "produced_bytes < upload_bytes / 4"
"""Agents record every ten minutes what followers were given, and the metadata has uploads at once. If followers were
given less than a quarter of the upload, the saving is not known yet. (Objects of one small batch each are three times
as large as it.)"""
_LAGS: Final = 20
_MAX_LOG2: Final = 40


def summarise_costs(
    by_topic: "DataFrame",
    tiered: "DataFrame",
    clients: "DataFrame",
    seconds: float,
    prices: PriceTable,
    topics_now: "DataFrame",
) -> Costs:
    """Summarise the tables of `cost_by_topic`, `tiered_cost` and `client_costs` for a report; `topics_now` is TOPICS.

    Raises PriceError.
    """
    daily = _with_produced(by_topic, topics_now).cache()
    topics, left_out = _topics(daily)
    brokers = _brokers(daily)
    return Costs(
        prices.source,
        prices.confirmed,
        prices.cross_zone_read_gb(EXPRESS),
        seconds,
        _days(daily, tiered, clients),
        topics,
        brokers,
        left_out,
        _clients(clients),
        group_reads(brokers, prices),
    )


def group_reads(brokers: Sequence[BrokerCosts], prices: PriceTable) -> GroupReads | None:
    """Return the cost of consumer groups' reads, for as many zones as any leader and its followers are in.

    Raises PriceError.
    """
    produced = sum(broker.amounts["produced_bytes"] or 0.0 for broker in brokers)
    zones = 1 + max((int(broker.amounts["remote_zones"] or 0) for broker in brokers), default=0)
    if zones == 1 or not produced:
        return None
    crossed = produced * (1 - 1 / zones)
    return GroupReads(zones, crossed, crossed / BYTES_PER_GB * prices.zone_crossing_gb)


def _with_produced(daily: "DataFrame", topics_now: "DataFrame") -> "DataFrame":
    """Add `topic`, and `produced_bytes` computed from the bytes that followers were given."""
    known = topics_now.select("topic_id", "topic", (fn.col("replication_factor") - 1).alias("_followers"))
    given = fn.when(fn.col("_followers") > 0, fn.expr("(linked_bytes + plain_bytes) / _followers"))
    named = daily.join(fn.broadcast(known), "topic_id", "left")
    told = named.withColumn("produced_bytes", given).drop("_followers")
    behind = fn.coalesce(fn.expr(_BEHIND), fn.lit(False))
    return told.withColumns({name: fn.when(~behind, fn.col(name)) for name in ("remote_wal_usd", "stock_usd")})


def _days(daily: "DataFrame", tiered: "DataFrame", clients: "DataFrame") -> list[DayCosts]:
    of_tier = {row.day: row.usd for row in tiered.groupBy("day").agg(fn.sum("storage_usd").alias("usd")).collect()}
    rows = daily.groupBy("day").agg(
        *(fn.sum(name).alias(name) for name in DOLLARS),
        fn.sum("stock_usd").alias("stock_usd"),
    ).orderBy("day").collect()  # fmt: skip
    has_usage = _usage_by_day(daily)
    days = {
        row.day: DayCosts(
            row.day,
            {name: row[name] for name in DOLLARS if row[name] is not None},
            row.stock_usd,
            of_tier.get(row.day, 0.0),
            has_usage[row.day],
        )
        for row in rows
    }
    nothing = DayCosts(0, {}, None, 0.0)
    for day, (parts, direct_usd) in _clients_by_day(clients).items():
        of_day = days.get(day, nothing)
        stock_usd = (of_day.stock_usd or 0.0) + direct_usd
        days[day] = replace(of_day, day=day, parts={**of_day.parts, **parts}, stock_usd=stock_usd)
    return [days[day] for day in sorted(days)]


def _usage_by_day(daily: "DataFrame") -> defaultdict[int, dict[int, bool]]:
    """Return `DayCosts.has_usage` by day."""
    is_unknown, is_known = (fn.count_if(fn.expr(one)) > 0 for one in (_UNKNOWN_ROW, "remote_wal_usd IS NOT NULL"))
    rows = daily.groupBy("day", "broker_id").agg(fn.when(is_unknown, False).when(is_known, True).alias("has_usage"))
    found: defaultdict[int, dict[int, bool]] = defaultdict(dict)
    for row in rows.where("has_usage IS NOT NULL").collect():
        found[row.day][row.broker_id] = row.has_usage
    return found


def _clients_by_day(clients: "DataFrame") -> dict[int, tuple[dict[str, float], float]]:
    """Return what clients paid by day, by CLIENT_PARTS, and the cost of direct connections."""
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


def _topics(daily: "DataFrame") -> tuple[list[TopicCosts], int]:
    """Return the costliest topics, and the number of others."""
    unknown = fn.count_if(fn.expr(_UNKNOWN_ROW))
    totals = daily.where("topic_id IS NOT NULL").groupBy("topic_id").agg(
        *(fn.sum(name).alias(name) for name in _TOPIC_SUMS),
        # A sum that leaves unknown days out would look like a saving.
        fn.when(unknown == 0, fn.sum("remote_wal_usd")).alias("remote_wal_usd"),
        fn.sum(fn.expr(_KNOWN_USD)).alias("known_usd"),
        fn.max("topic").alias("topic"),
        unknown.alias("unknown_days"),
    )  # fmt: skip
    costliest = totals.orderBy(fn.coalesce("remote_wal_usd", "known_usd").desc()).limit(MAX_TOPICS)
    rows = sorted(costliest.collect(), key=lambda row: -(row.remote_wal_usd or row.known_usd or 0))
    found = [
        TopicCosts(
            row.topic or f"(gone) {bytes(row.topic_id).hex()}",
            **{field.name: row[field.name] for field in fields(TopicCosts)[1:]},
        )
        for row in rows
    ]
    return found, totals.count() - len(rows)


def _brokers(daily: "DataFrame") -> list[BrokerCosts]:
    rows = daily.groupBy("broker_id").agg(
        *(fn.sum(name).alias(name) for name in (*AMOUNTS, "remote_wal_usd", "stock_usd", "produced_bytes")),
        *(fn.max(name).alias(name) for name in READERS),
    ).orderBy("broker_id").collect()  # fmt: skip
    return [
        BrokerCosts(row.broker_id, {name: row[name] for name in _BROKER_AMOUNTS}, row.remote_wal_usd, row.stock_usd)
        for row in rows
    ]


def summarise_objects(history: "History") -> Objects:
    """Summarise for a report all objects that are stored according to metadata."""
    stored = history.segments.where("state IN (1, 2) AND size_bytes >= 0")
    return Objects(_sizes(stored), _lags(history), not_wanted_offsets(history))


def _sizes(stored: "DataFrame") -> list[Bar]:
    power = fn.least(fn.floor(fn.log2(fn.greatest(fn.col("size_bytes"), fn.lit(1)))), fn.lit(_MAX_LOG2)).cast("int")
    counted = stored.groupBy(power.alias("power")).agg(fn.count("*"), fn.sum("size_bytes"))
    rows = {power: (count, size_bytes) for power, count, size_bytes in counted.collect()}
    if not rows:
        return []
    return [Bar(_size_label(power), *rows.get(power, (0, 0))) for power in range(min(rows), max(rows) + 1)]


def _size_label(power: int) -> str:
    """Return the smallest size of a bar, 2**power bytes."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    return f"{2 ** (power % 10)} {units[power // 10]}"


def _lags(history: "History") -> list[PartitionLag]:
    """Return the lags, by all that objects were ever known to hold and all that was declared as no loss, in any run."""
    held = known_ranges(history).select(*EPOCH_KEY, "first_offset", "last_offset", "epoch_end")
    stored = held.groupBy("topic_id", "partition").agg(
        (fn.max(fn.expr("least(last_offset, epoch_end - 1)")) + 1).alias("stored_up_to")
    )
    enabled = history.topics.where("is_enabled").select("topic_id", "topic")
    ends = history.partitions.where("log_end_offset IS NOT NULL")
    tails = ends.join(fn.broadcast(enabled), "topic_id").join(stored, ["topic_id", "partition"], "left")
    tails = tails.withColumn("tail_from", fn.expr("greatest(log_start_offset, coalesce(stored_up_to, 0))"))
    no_one_wants = joined_ranges(no_loss(held, history.declared).withColumn("leader_epoch", fn.lit(0)))
    left_out = (
        tails.join(
            no_one_wants.select("topic_id", "partition", "first_offset", "last_offset"), ["topic_id", "partition"]
        )
        .withColumn("first_offset", fn.greatest("first_offset", "tail_from"))
        .withColumn("last_offset", fn.expr("least(last_offset, log_end_offset - 1)"))
        .where("first_offset <= last_offset")
        .groupBy("topic_id", "partition")
        .agg(fn.sum(fn.expr("last_offset + 1 - first_offset")).alias("left_out"))
    )
    known = tails.join(left_out, ["topic_id", "partition"], "left").withColumn(
        "left_out", fn.coalesce("left_out", fn.lit(0))
    )
    behind = fn.expr("log_end_offset - tail_from - left_out")
    rows = known.where(behind > 0).orderBy(behind.desc(), "topic", "partition").limit(_LAGS)
    found = rows.select("topic", "partition", "log_end_offset", "stored_up_to", "left_out", behind.alias("behind"))
    return [
        PartitionLag(
            row.topic,
            row.partition,
            row.log_end_offset,
            row.stored_up_to,
            row.left_out,
            None if row.stored_up_to is None and not row.left_out else row.behind,
        )
        for row in found.collect()
    ]
