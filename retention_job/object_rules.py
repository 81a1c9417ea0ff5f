"""Rules that one row of a table of objects decides: all of them in one pass over the table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from retention_job.finding_kinds import SEVERITIES, Kind
from retention_job.schemas import SEGMENT_KEY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AGENT: Final = "remote-wal agent --broker-config <server.properties of broker {}>"


@dataclass(frozen=True, slots=True)
class ObjectRule:
    """What is wrong with an object, and what to do about it."""

    kind: Kind
    condition: str
    """SQL over the table; `{now}` and the like are filled in by `judged`."""
    since: str
    """The age's beginning."""
    detail: str
    """A format string of SQL for the columns in `shown`."""
    shown: tuple[str, ...]
    heal: str
    """`{}` stands for the broker of the object's writer."""


def writer_name() -> "Column":
    """CombinedSegmentId's text form, of the segment or the archive object's writer."""
    from pyspark.sql import functions as f

    return f.format_string(
        "%d-%s-%s",
        f.col("broker_id"),
        *(f.lpad(f.lower(f.hex(f.col(name))), 12, "0") for name in SEGMENT_KEY[1:]),
    )


def judged(named: "DataFrame", rules: Sequence[ObjectRule], times: Mapping[str, int]) -> "DataFrame":
    """FINDINGS of the rows, which have `topic`, `topic_partition` and `segment` beside the table's columns.

    `times` are in milliseconds; there must be `now`.
    """
    from pyspark.sql import functions as f

    def as_finding(rule: ObjectRule) -> "Column":
        shown = (f.coalesce(f.col(name), f.lit(-1)) for name in rule.shown)
        before, _, after = rule.heal.partition("{}")
        return f.struct(
            f.lit(rule.kind.value).alias("kind"),
            f.lit(SEVERITIES[rule.kind].value).alias("severity"),
            f.format_string(rule.detail, *shown).alias("detail"),
            (f.lit(times["now"]) - f.col(rule.since)).alias("age_ms"),
            (
                f.concat(f.lit(before), f.col("broker_id").cast("string"), f.lit(after)) if after else f.lit(before)
            ).alias("heal"),
        )

    conditions = [rule.condition.format(**times) for rule in rules]
    found = f.array(*(f.when(f.expr(one), as_finding(rule)) for one, rule in zip(conditions, rules, strict=True)))
    wrong = named.filter(" OR ".join(f"({one})" for one in conditions))
    return wrong.withColumn("finding", f.explode(f.filter(found, lambda one: one.isNotNull()))).select(
        "finding.kind",
        "finding.severity",
        f.col("topic").cast("string").alias("topic"),
        f.col("topic_partition").cast("int").alias("partition"),
        "segment",
        "finding.detail",
        "finding.age_ms",
        f.coalesce("stored_bytes", "size_bytes").alias("size_bytes"),
        "finding.heal",
    )
