"""Runs the whole job: reads, judges, hands over what may be deleted, and leaves the state for the next run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
from pyspark.errors import PySparkException

from retention_job.errors import RetentionJobError, one_line
from retention_job.findings.apply import Handover, hand_over
from retention_job.findings.find import find
from retention_job.settings import Sources
from retention_job.sources.kafka import Kafka
from retention_job.spark.session import tune
from retention_job.tables.history import History, load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RunSettings:
    sources: Sources
    now_ms: int
    run_id: str
    """Names the run's directory: letters, digits and `-`, different for each run."""
    apply: bool = False
    """Whether to hand safe deletions over to the agents; otherwise they are only counted."""
    progress: Callable[[str], None] = field(default=lambda _line: None)
    """Takes one short line that says what is being done."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The results of a run. Its tables are read from the run's directory when they are used."""

    history: History
    findings: "DataFrame"
    """The table FINDINGS, as written."""
    handover: Handover

    def finish(self) -> None:
        """Commit the state that the next incremental run continues from. Call it once the report is written."""
        self.history.commit()


def run(settings: RunSettings, spark: "SparkSession", kafka: Kafka | None = None) -> RunResult:
    """Run the report job. Raises RetentionJobError when a source cannot be read, or a state cannot be written."""
    tune(spark)
    sources = settings.sources
    try:
        history = load(spark, sources, settings.now_ms, settings.run_id, kafka, settings.progress)
        settings.progress(f"judging {history.read.records:,} records")
        findings = history.keep("findings", find(history, settings.now_ms, sources.life_times))
        for kind, severity, count in sorted(findings.groupBy("kind", "severity").count().collect()):
            log.info("findings", kind=kind, severity=severity, count=count)
        settings.progress("handing over deletions" if settings.apply else "counting what could be deleted")
        handover = hand_over(history, findings, sources, settings.now_ms, dry_run=not settings.apply)
    except PySparkException as error:
        raise RetentionJobError("run", settings.run_id, one_line(error)) from error
    return RunResult(history, findings, handover)
