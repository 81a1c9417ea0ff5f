"""Writes a report: tables as Parquet, and pages beside them, committed as one.

A run's tables are written to `unfinished/<run id>/` first, and moved to `<table>/run=<run id>/` when all of them are
written; then the pages are replaced, and last of all `COMMITTED.json`, which names the runs that count. A run that it
does not name is unfinished, whatever files it has, and `begin` removes it. One run at a time writes to an output.

Any file system that Spark can write to will do. Delta Lake's CONVERT TO DELTA and Iceberg's add_files accept this
partitioned Parquet as it is. When the state is committed, too, `prune` removes what the newest run replaces.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import structlog

from retention_job.errors import StateError, one_line
from retention_job.spark.file_system import FileSystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = structlog.get_logger(__name__)

TABLES: Final = (
    "findings", "quarantine", "cost_daily", "cost_clients", "cost_days", "cost_tiered", "usage_counters",
)  # fmt: skip
DAILY: Final = ("cost_daily", "cost_clients", "cost_days", "cost_tiered", "usage_counters")
"""Tables that have all that is known in each run: the newest replaces the others."""
_UNFINISHED: Final = "unfinished"
_COMMITTED: Final = "COMMITTED.json"


class ReportOutput:
    """The output directory of reports, with all committed runs. On the driver only; every method raises StateError."""

    def __init__(self, spark: "SparkSession", root: str) -> None:
        self._spark = spark
        self._files = FileSystem(spark, root)

    def runs(self) -> list[dict[str, Any]]:
        """Return the descriptions of all committed runs, the oldest first."""
        text = self._files.read_text(_COMMITTED)
        if text is None:
            return []
        try:
            return [dict(run) for run in json.loads(text)["runs"]]
        except (ValueError, TypeError, KeyError) as error:
            hint = "remove it, and the tables beside it, to start anew"
            raise StateError("read", self._files.resolve(_COMMITTED), f"not a list of runs: {error}", hint) from error

    def last_run_id(self) -> str | None:
        """Return the id of the newest committed run; None if there is none."""
        runs = self.runs()
        return str(runs[-1]["run_id"]) if runs else None

    def begin(self) -> list[str]:
        """Remove the files of unfinished runs; returns their ids."""
        committed = {run["run_id"] for run in self.runs()}
        found = set(self._files.directories(_UNFINISHED))
        for table in TABLES:
            runs = {name.removeprefix("run=") for name in self._files.directories(table) if name.startswith("run=")}
            found |= {run_id for run_id in runs if run_id not in committed}
        for run_id in sorted(found):
            log.warning("half_written_report_removed", run=run_id)
            self._files.delete(f"{_UNFINISHED}/{run_id}")
            for table in TABLES if run_id not in committed else ():
                self._files.delete(f"{table}/run={run_id}")
        return sorted(found)

    def prune(self, run_id: str, oldest_ms: int) -> None:
        """Remove runs from before `oldest_ms`, and, of tables keyed by day, those of all runs but this one."""
        kept = [run for run in self.runs() if run["run_id"] == run_id or int(run.get("now_ms", 0)) >= oldest_ms]
        self._files.replace_text(_COMMITTED, json.dumps({"runs": kept}, indent=1))
        names = {f"run={run['run_id']}" for run in kept}
        for table in TABLES:
            for found in self._files.directories(table):
                if found.startswith("run=") and found not in ({f"run={run_id}"} if table in DAILY else names):
                    self._files.delete(f"{table}/{found}")

    def table(self, name: str, run_id: str) -> "DataFrame | None":
        """Return a table of a committed run; None if there is no such run, or it has no such table."""
        is_committed = any(run["run_id"] == run_id for run in self.runs())
        if not is_committed or f"run={run_id}" not in self._files.directories(name):
            return None
        return self._spark.read.parquet(self._files.resolve(f"{name}/run={run_id}"))

    def write(self, run_id: str, tables: "Mapping[str, DataFrame]", pages: Mapping[str, str], **about: object) -> None:
        """Write a run completely, or commit nothing.

        `pages` are texts by file name, each replaced as a whole; `about` becomes part of the run's description in
        `runs`.
        """
        unknown = tables.keys() - set(TABLES)
        if unknown:
            raise ValueError(f"tables without a place: {', '.join(sorted(unknown))}")
        for name, frame in tables.items():
            path = self._files.resolve(f"{_UNFINISHED}/{run_id}/{name}")
            try:
                frame.write.mode("overwrite").parquet(path)
            except Exception as error:  # Spark, Java and py4j each have their own
                raise StateError("write", path, one_line(error)) from error
        for name in tables:
            self._files.move(f"{_UNFINISHED}/{run_id}/{name}", f"{name}/run={run_id}")
        for name, text in pages.items():
            self._files.replace_text(name, text)
        runs = [run for run in self.runs() if run["run_id"] != run_id]
        told = {"runs": [*runs, {"run_id": run_id, **about}]}
        self._files.replace_text(_COMMITTED, json.dumps(told, indent=1))
        self._files.delete(f"{_UNFINISHED}/{run_id}")
