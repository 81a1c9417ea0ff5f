"""Runs the job for `remote-wal report`: session, engine, report, output, in this order."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cli.progress import shown_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from plugin.prices import PriceTable
    from retention_job.page.report_data import ReportData
    from retention_job.settings import Sources, StoreSections


@dataclass(frozen=True, slots=True)
class ReportJob:
    """The inputs of one report."""

    sources: "Sources"
    output: str
    cluster_id: str
    prices_file: Path | None
    sections: "StoreSections"
    apply: bool


def run_id_of(now_ms: int) -> str:
    """Return a run id; ids sort by time, and no two runs of one output have the same."""
    return datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y%m%dT%H%M%S") + f"{now_ms % 1000:03d}Z"


def run_report(job: ReportJob, master: str | None, memory: str) -> "ReportData":
    """Run the job.

    Raises RetentionJobError, PriceError: a source, a price or the output is missing; nothing is committed.
    """
    from pyspark.sql import SparkSession

    from plugin.prices import EXPRESS, STANDARD, PriceTable
    from retention_job.spark.session import spark_session

    prices = PriceTable.load(job.prices_file).with_network(job.sections.network)
    for section in {job.sections.wal, job.sections.archive, EXPRESS, STANDARD}:
        prices.store(section)  # a missing price must be reported now, not after the minutes that a run takes
    with shown_progress("starting Spark") as status:
        is_given = SparkSession.getActiveSession() is not None
        spark = spark_session(master, memory=memory)
        try:
            return _run(job, prices, spark, status.update)
        finally:
            if not is_given:
                spark.stop()


def _run(
    job: ReportJob, prices: "PriceTable", spark: "SparkSession", progress: "Callable[[str], None]"
) -> "ReportData":
    from plugin.wall_clock import wall_ms
    from retention_job.page.report import make_report
    from retention_job.page.report_output import ReportOutput
    from retention_job.run import RunSettings, run

    now_ms = wall_ms()
    output = ReportOutput(spark, job.output)
    output.begin()
    result = run(RunSettings(job.sources, now_ms, run_id_of(now_ms), job.apply, progress), spark)
    progress("computing costs")
    report = make_report(result, prices, job.sections, output, job.cluster_id)
    progress("writing the report")
    report.write(output)
    result.finish()
    return report.data
