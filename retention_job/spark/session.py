"""The Spark session of the job: made here for this machine, given by spark-submit on a cluster."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jvm.java import find_java
from retention_job.spark.connector import connector_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOMS: Final = Path(__file__).resolve().parents[2]

TUNING: Final[Mapping[str, str]] = {
    # Decoding pays per batch, so batches are large; the second limit keeps large records from filling the memory.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32768",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(32 * 1024 * 1024),
    # The staged rows of one task go to a directory per kind; without this they would be sorted by kind first.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings for any session; `run` sets those that can still be set."""

_LOCAL: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.shuffle.compress": "true",
}
DEFAULT_MEMORY: Final = "2560m"
"""The JVM's memory; the Python workers and Arrow's buffers need more, with one worker per core."""


def spark_session(
    master: str | None = None,
    *,
    memory: str = DEFAULT_MEMORY,
    settings: Mapping[str, str] | None = None,
) -> "SparkSession":
    """Return the running session (spark-submit's), else a new one on this machine, by default `local[*]`.

    `settings` are Spark's own. Raises ConnectorError, JavaNotFoundError.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    builder = SparkSession.builder.appName("remote-wal report")
    if not _is_submitted(os.environ):
        java = find_java()
        os.environ.setdefault("JAVA_HOME", str(java.home))
        # Workers must be this Python, with these packages; whatever `python3` is on the path may have none.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ["PYTHONPATH"] = _with_rooms(os.environ.get("PYTHONPATH", ""))
        jars = connector_jars(java)
        builder = builder.master(master or "local[*]")
        given = {
            **_LOCAL,
            "spark.jars": ",".join(str(jar) for jar in jars),
            "spark.driver.memory": memory,
        }
        for name, value in given.items():
            builder = builder.config(name, value)
    for name, value in {**TUNING, **(settings or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _with_rooms(path: str) -> str:
    """Return Python's path for the workers, which take over the variable, but not this process's own path."""
    return path if str(_ROOMS) in path.split(os.pathsep) else os.pathsep.join(filter(None, (str(_ROOMS), path)))


def tune(spark: "SparkSession") -> None:
    """Set the job's tuning on an existing session, as far as it can still be set."""
    for name, value in TUNING.items():
        if spark.conf.isModifiable(name):
            spark.conf.set(name, value)


def _is_submitted(environment: Mapping[str, str]) -> bool:
    """Return whether spark-submit has started a JVM, whose port it passes to this process."""
    return "PYSPARK_GATEWAY_PORT" in environment
