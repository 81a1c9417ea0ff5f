"""Makes the report of a run: costs, summaries, tables and pages, written as one."""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn
from pyspark.sql.types import DoubleType

from plugin.prices import PriceTable
from retention_job.cost.cost_tables import CostSources, client_costs, cost_by_topic
from retention_job.cost.stored_objects import tiered_cost
from retention_job.cost.usage_table import CountedUsage, counters, latest
from retention_job.findings.kinds import SEVERITIES
from retention_job.page.html_report import html_report
from retention_job.page.report_data import MAX_FINDINGS, DayCosts, Finding, FindingCount, ReportData, report_json
from retention_job.page.report_output import ReportOutput
from retention_job.page.summaries import summarise_costs, summarise_objects
from retention_job.settings import StoreSections
from retention_job.sources.decoding import OTHER_ROW
from retention_job.spark.joins import union

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from retention_job.run import RunResult
    from retention_job.tables.history import History
    from retention_job.tables.state import RunRecord

_DAYS: Final = (
    "day INT, parts STRING, stock_usd DOUBLE, tiered_storage_usd DOUBLE, "
    "is_complete BOOLEAN, has_usage MAP<INT, BOOLEAN>"
)
"""The table `cost_days`: the fields of `DayCosts`; `parts` is JSON."""


@dataclass(frozen=True, slots=True)
class Report:
    """A report that is complete in memory, and not written yet."""

    data: ReportData
    tables: "Mapping[str, DataFrame]"

    def write(self, output: ReportOutput) -> None:
        """Write the report to the output. Raises StateError; nothing is committed then."""
        data = self.data
        pages = {"report.html": html_report(data), "report.json": json.dumps(report_json(data), indent=1)}
        output.write(data.run_id, self.tables, pages, now_ms=data.now_ms, is_incremental=data.is_incremental)


def make_report(
    result: "RunResult", prices: PriceTable, sections: StoreSections, before: ReportOutput, cluster_id: str
) -> Report:
    """Make the report of a run; `before` has the reports of earlier runs, with days that this run does not see.

    Raises PriceError.
    """
    history = result.history
    sources = _cost_sources(history, before)
    counted = CountedUsage.of(sources.counters)
    daily = history.keep("cost_by_topic", cost_by_topic(sources, prices, sections, counted))
    clients = client_costs(counted, prices, sections).cache()
    tiered = tiered_cost(history.tiered, prices, sources.now_ms, sources.counted_until_ms).cache()
    seconds = max(0.0, (sources.now_ms - sources.since_ms) / 1000)
    costs = summarise_costs(daily, tiered, clients, seconds, prices, history.topics)
    earlier_days, is_incremental = days_before(before, history.last), history.read.is_incremental
    costs = dataclasses.replace(costs, days=merged_days(earlier_days, costs.days, is_incremental))
    kept_days = {day.day for day in costs.days if any(day is earlier for earlier in earlier_days)}

    def merged(name: str, now: "DataFrame", *key: str) -> "DataFrame":
        earlier = before.table(name, (history.last.run_id if history.last else before.last_run_id()) or "")
        return merged_rows(earlier, now, (*key, "day"), None if is_incremental else kept_days)

    data = ReportData(
        history.run_id,
        sources.now_ms,
        cluster_id,
        history.read.is_incremental,
        history.read.records,
        _counts(result.findings),
        _findings(result.findings),
        {row.reason: row["count"] for row in history.quarantine.groupBy("reason").count().collect()},
        costs,
        summarise_objects(history),
        result.handover,
    )
    tables = {
        "findings": result.findings,
        "quarantine": history.quarantine,
        "cost_daily": merged("cost_daily", history.with_topic_names(daily), "topic_id", "broker_id"),
        "cost_clients": merged("cost_clients", clients, "zone"),
        "cost_tiered": merged("cost_tiered", history.with_topic_names(tiered), "topic_id"),
        "cost_days": days_table(history.spark, costs.days),
        "usage_counters": latest(sources.counters),
    }
    return Report(data, tables)


def merged_days(before: Sequence[DayCosts], now: Sequence[DayCosts], is_incremental: bool) -> list[DayCosts]:
    """Return all known days.

    An incremental run adds to earlier counts, and the usage records that it reads may complete a day. A full run
    replaces them, except for its first day, which retention may have cut, and the days before it.
    """
    known = {day.day: day for day in before}
    first = min((day.day for day in now), default=0)
    for day in now:
        old = known.get(day.day)
        if old is None or (not is_incremental and (day.day > first or day.remote_wal_usd >= old.remote_wal_usd)):
            known[day.day] = day
        elif is_incremental:
            known[day.day] = _sum_of(old, day)
    return [known[day] for day in sorted(known)]


def merged_rows(
    before: "DataFrame | None", now: "DataFrame", key: Sequence[str], kept_days: Collection[int] | None
) -> "DataFrame":
    """Return all known rows, one for each key, by the rules of `merged_days`.

    `before` are those of the run before. `kept_days`: those that a full run leaves as they were; None: an incremental
    run adds.
    """
    if before is None:
        return now
    if kept_days is not None:
        is_kept = fn.col("day").isin(*kept_days) if kept_days else fn.lit(False)
        return union(before.filter(is_kept), now.filter(~is_kept)).select(*now.columns)
    summed = [field.name for field in now.schema if field.name not in key and field.dataType == DoubleType()]
    rest = [name for name in now.columns if name not in (*key, *summed)]
    sums = (*(fn.sum(name).alias(name) for name in summed), *(fn.max(name).alias(name) for name in rest))
    return union(before, now).groupBy(*key).agg(*sums).select(*now.columns)


def _sum_of(one: DayCosts, other: DayCosts) -> DayCosts:
    parts = {name: one.parts.get(name, 0.0) + other.parts.get(name, 0.0) for name in {**one.parts, **other.parts}}
    stock = [usd for usd in (one.stock_usd, other.stock_usd) if usd is not None]
    return DayCosts(
        one.day,
        parts,
        sum(stock) if stock else None,
        one.tiered_storage_usd + other.tiered_storage_usd,
        {**one.has_usage, **other.has_usage},
    )


def _cost_sources(history: "History", before: ReportOutput) -> CostSources:
    counted, counted_until_ms = counters(history.staged(OTHER_ROW)), 0
    if history.last is not None:
        counted_until_ms = history.last.now_ms
        carried = before.table("usage_counters", history.last.run_id)
        if carried is not None:
            counted = counted.unionByName(carried.select(*counted.columns))
    first_ms = history.segments.agg(fn.min("finished_ms")).collect()[0][0]
    return CostSources(
        history.segments,
        history.entries,
        history.tiered,
        history.archive,
        counted.cache(),
        history.read.now_ms,
        counted_until_ms,
        counted_until_ms or (history.read.now_ms if first_ms is None else int(first_ms)),
    )


def _counts(findings: "DataFrame") -> list[FindingCount]:
    rows = findings.groupBy("kind", "severity").agg(fn.count("*").alias("n"), fn.sum("size_bytes").alias("b")).collect()
    counts = [FindingCount(row.kind, row.severity, row.n, row.b or 0) for row in rows]
    return sorted(counts, key=lambda count: (SEVERITIES.index(count.severity), -count.count, count.kind))


def _findings(findings: "DataFrame") -> list[Finding]:
    gravity = fn.array_position(fn.array(*(fn.lit(severity) for severity in SEVERITIES)), fn.col("severity"))
    ordered = findings.orderBy(gravity, "kind", "topic", "partition", "segment").limit(MAX_FINDINGS)
    names = [field.name for field in dataclasses.fields(Finding)]
    return [Finding(**{name: row[name] for name in names}) for row in ordered.select(*names).collect()]


def days_table(spark: "SparkSession", days: Sequence[DayCosts]) -> "DataFrame":
    """Return the days' costs as the table `cost_days`."""
    rows = [
        {**dataclasses.asdict(day), "parts": json.dumps(dict(day.parts)), "is_complete": day.is_complete}
        for day in days
    ]
    return spark.createDataFrame(rows, _DAYS)


def days_before(before: ReportOutput, last: "RunRecord | None") -> list[DayCosts]:
    """Return the days of the last report, to which a run adds; `last` is the run that it continues from, None for a
    full run.

    A newer report does not count for an incremental run: its run stopped before its state was committed, so this run
    reads and counts the same records again.
    """
    table = before.table("cost_days", (last.run_id if last else before.last_run_id()) or "")
    if table is None:
        return []
    rows = (row.asDict() for row in table.select(*DayCosts.__slots__).collect())
    return [DayCosts(**{**row, "parts": json.loads(row["parts"])}) for row in rows]
