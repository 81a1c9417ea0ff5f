"""The Spark session of the job: made here for this machine, given by spark-submit on a cluster.

A session that is made here needs the jars of Spark's Kafka connector. Clusters get them by `spark-submit --jars`.
"""

import os
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark

from jvm.ivy import IvyError, JarSet, fetch_jars, user_path
from jvm.java import QUICK_JVM_OPTIONS, Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT: Final = Path(__file__).resolve().parents[2]
_SPARK_VERSION: Final = str(pyspark.__version__)
_HOME_VARIABLE: Final = "REMOTE_WAL_SPARK_CONNECTOR_HOME"
"""Names the directory that has, or will have, the connector's jars under `connector`."""

TUNING: Final[Mapping[str, str]] = {
    # Decoding pays per batch, so batches are large; the second limit keeps large records from filling the memory.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32768",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(32 * 1024 * 1024),
    # The staged rows of one task go to a directory per kind; without this they would be sorted by kind first.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    "spark.sql.parquet.compression.codec": "zstd",
    # Tables smaller than this go by the driver where they are joined; there they are many times larger. Measured
    # (`perf spark`): with Spark's 10 MB, a driver of 512 MB was too small for a million objects.
    "spark.sql.autoBroadcastJoinThreshold": "1m",
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
_HERE: Final[Mapping[str, str]] = {"spark.driver.memory": "2560m"}
"""Where all runs in one JVM; the Python workers and Arrow's buffers need more, with one worker per core."""
DRIVER: Final[Mapping[str, str]] = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": " ".join(QUICK_JVM_OPTIONS),
}
"""Where executors have processes of their own. Python takes 200 MB more, and the JVM beside its heap 340 MB with G1 and
both compilers, less with these options (measured over 200,000 objects, `perf spark`)."""


class ConnectorError(Exception):
    """The jars of Spark's Kafka connector could not be fetched; the message names the cause."""


def _connector_home() -> Path:
    """Return the directory of the jars: the variable's, the checkout's `.spark`, or the user's cache."""
    if chosen := os.environ.get(_HOME_VARIABLE):
        return user_path(chosen).absolute()
    if (_ROOT / "pyproject.toml").is_file():
        return _ROOT / ".spark" / _SPARK_VERSION
    return user_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "remote-wal" / "spark" / _SPARK_VERSION


def connector_jars(java: Java) -> tuple[Path, ...]:
    """Return the jars that Spark lacks for reading Kafka; fetch them first if they are missing.

    Raises ConnectorError.
    """
    module = Path(str(resources.files("retention_job.spark") / "connector-ivy.xml"))
    jar_set = JarSet(
        f"Spark's Kafka connector {_SPARK_VERSION}", module, "connector", {"spark.version": _SPARK_VERSION}
    )
    try:
        directory = fetch_jars(jar_set, _connector_home(), java, lambda _line: None)
    except IvyError as error:
        raise ConnectorError(str(error)) from error
    jars = tuple(sorted(directory.glob("*.jar")))
    if not any(jar.name.startswith("spark-sql-kafka") for jar in jars):
        raise ConnectorError(f"{directory} holds no Kafka connector: remove it, or correct {_HOME_VARIABLE}")
    return jars


def spark_session(
    master: str | None = None,
    *,
    memory: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> "SparkSession":
    """Return the running Spark session (spark-submit's), else a new one on this machine, by default `local[*]`.

    `settings` are Spark's own. Raises ConnectorError, JavaNotFoundError.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    builder = SparkSession.builder.appName("remote-wal report")
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has started a JVM
    if not is_submitted:
        java = find_java()
        os.environ.setdefault("JAVA_HOME", str(java.home))
        # Workers must be this Python, with these packages; whatever `python3` is on the path may have none.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ["PYTHONPATH"] = _with_packages(os.environ.get("PYTHONPATH", ""))
        jars = connector_jars(java)
        builder = builder.master(master or "local[*]")
        given = {
            **_LOCAL,
            "spark.jars": ",".join(str(jar) for jar in jars),
            **(_HERE if (master or "local").split("[")[0] == "local" else DRIVER),
            **({} if memory is None else {"spark.driver.memory": memory}),
        }
        for name, value in given.items():
            builder = builder.config(name, value)
    for name, value in {**TUNING, **(settings or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _with_packages(path: str) -> str:
    """Return Python's path for the workers, which take over the variable, but not this process's own path."""
    return path if str(_ROOT) in path.split(os.pathsep) else os.pathsep.join(filter(None, (str(_ROOT), path)))


def tune(spark: "SparkSession") -> None:
    """Set the job's tuning on an existing Spark session, as far as it can still be set."""
    for name, value in TUNING.items():
        if spark.conf.isModifiable(name):
            spark.conf.set(name, value)
