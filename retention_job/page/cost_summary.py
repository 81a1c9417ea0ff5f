"""From the cost table to what a report shows: sums by day, topic and broker, verdicts and choices."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from plugin.prices import PriceTable
from retention_job.cost.advice import BrokerLoad, TopicTotals, choices, topic_verdict
from retention_job.cost.cost_tables import AMOUNTS, DOLLARS
from retention_job.page.report_data import MAX_TOPICS, BrokerCosts, Costs, DayCosts

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, Row

_MS_PER_HOUR = 3_600_000


@dataclass(frozen=True, slots=True)
class CostFrames:
    """What `cost_tables` made, and the time that it is of."""

    daily: "DataFrame"
    """`cost_by_topic`"""
    tiered: "DataFrame"
    """`tiered_cost`"""
    seconds: float


def summarise(
    frames: CostFrames, prices: PriceTable, store: str, with_names: "Callable[[DataFrame], DataFrame]"
) -> Costs:
    """`store` names the section of its prices; `with_names` adds the column `topic` to a table with `topic_id`
    (`History.with_topic_names`).

    Raises PriceError.
    """
    topics, left_out = _topics(frames.daily, with_names)
    brokers = _brokers(frames.daily)
    return Costs(
        prices.source,
        prices.confirmed,
        prices.cross_zone_read_gb,
        frames.seconds,
        _days(frames),
        topics,
        [topic_verdict(topic, frames.seconds, prices, store) for topic in topics],
        brokers,
        choices([_load(broker, frames.seconds) for broker in brokers], prices, store),
        left_out,
    )


_TOPIC_SUMS = ("upload_bytes", "objects", "linked_bytes", "inline_bytes", "stock_usd")
_ARCHIVE_USD = "archive_put_usd + archive_storage_usd"
_UNKNOWN_ROW = "remote_wal_usd IS NULL AND objects > 0"


def _days(frames: CostFrames) -> list[DayCosts]:
    tiered = {
        row.day: row.usd for row in frames.tiered.groupBy("day").agg(fn.sum("storage_usd").alias("usd")).collect()
    }
    rows = frames.daily.groupBy("day").agg(
        *(fn.sum(name).alias(name) for name in DOLLARS),
        fn.sum("stock_usd").alias("stock_usd"),
        fn.count_if(fn.expr(_UNKNOWN_ROW)).alias("unknown"),
    ).orderBy("day").collect()  # fmt: skip
    return [
        DayCosts(
            row.day,
            {name: row[name] for name in DOLLARS if row[name] is not None},
            row.stock_usd,
            tiered.get(row.day, 0.0),
            row.unknown == 0,
        )
        for row in rows
    ]


def _topics(daily: "DataFrame", with_names: "Callable[[DataFrame], DataFrame]") -> tuple[list[TopicTotals], int]:
    """The costliest topics, and how many others there are."""
    unknown = fn.count_if(fn.expr(_UNKNOWN_ROW))
    totals = daily.where("topic_id IS NOT NULL").groupBy("topic_id").agg(
        *(fn.sum(name).alias(name) for name in _TOPIC_SUMS),
        # A sum that leaves unknown days out would look like a saving.
        fn.when(unknown == 0, fn.sum("remote_wal_usd")).alias("remote_wal_usd"),
        fn.sum(fn.expr(f"put_usd + upload_usd + storage_usd + {_ARCHIVE_USD}")).alias("known_usd"),
        fn.sum(fn.expr(_ARCHIVE_USD)).alias("archive_usd"),
        fn.max("remote_followers").alias("remote_followers"),
        unknown.alias("unknown_days"),
    ).cache()  # fmt: skip
    count = totals.count()
    costliest = totals.orderBy(fn.coalesce("remote_wal_usd", "known_usd").desc()).limit(MAX_TOPICS)
    rows = sorted(with_names(costliest).collect(), key=lambda row: -(row.remote_wal_usd or row.known_usd or 0))
    return [_topic(row) for row in rows], max(0, count - MAX_TOPICS)


def _topic(row: "Row") -> TopicTotals:
    name = row.topic or f"(gone) {bytes(row.topic_id).hex()}"
    return TopicTotals(name, **{field.name: row[field.name] for field in fields(TopicTotals)[1:]})


def _brokers(daily: "DataFrame") -> list[BrokerCosts]:
    rows = daily.groupBy("broker_id").agg(
        *(fn.sum(name).alias(name) for name in (*AMOUNTS, "remote_wal_usd", "stock_usd")),
        fn.max("remote_followers").alias("remote_followers"),
    ).orderBy("broker_id").collect()  # fmt: skip
    return [
        BrokerCosts(
            row.broker_id,
            {name: row[name] for name in (*AMOUNTS, "remote_followers")},
            row.remote_wal_usd,
            row.stock_usd,
        )
        for row in rows
    ]


def _load(broker: BrokerCosts, seconds: float) -> BrokerLoad:
    uploaded, stored = broker.amounts["upload_bytes"] or 0.0, broker.amounts["stored_byte_ms"] or 0.0
    return BrokerLoad(
        uploaded / seconds / 1e6 if seconds > 0 else 0.0,
        int(broker.amounts["remote_followers"] or 0),
        stored / uploaded / _MS_PER_HOUR if uploaded else 0.0,
    )
