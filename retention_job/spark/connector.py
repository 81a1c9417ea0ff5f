"""The jars of Spark's Kafka connector, for sessions on this machine. Clusters get them by `spark-submit --jars`."""

import os
from importlib import resources
from pathlib import Path
from typing import Final

from jvm.ivy import IvyError, JarSet, fetch_jars
from jvm.java import Java

SPARK_VERSION: Final = "4.1.1"
CONNECTOR_HOME_VARIABLE: Final = "REMOTE_WAL_SPARK_CONNECTOR_HOME"
"""Names the directory that has, or will have, the connector's jars under `connector`."""


class ConnectorError(Exception):
    """The connector's jars could not be fetched; the message names the cause."""


def connector_home() -> Path:
    """Return the directory of the jars: the variable's, the checkout's `.spark`, or the user's cache."""
    if chosen := os.environ.get(CONNECTOR_HOME_VARIABLE):
        return Path(chosen).expanduser().absolute()
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file():
        return checkout / ".spark" / SPARK_VERSION
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "remote-wal" / "spark" / SPARK_VERSION


def connector_jars(java: Java) -> tuple[Path, ...]:
    """Return the jars that Spark lacks for reading Kafka; fetch them first if they are missing.

    Raises ConnectorError.
    """
    module = Path(str(resources.files("retention_job.spark") / "connector-ivy.xml"))
    jar_set = JarSet(f"Spark's Kafka connector {SPARK_VERSION}", module, "connector", {"spark.version": SPARK_VERSION})
    try:
        directory = fetch_jars(jar_set, connector_home(), java, lambda _line: None)
    except IvyError as error:
        raise ConnectorError(str(error)) from error
    jars = tuple(sorted(directory.glob("*.jar")))
    if not any(jar.name.startswith("spark-sql-kafka") for jar in jars):
        raise ConnectorError(f"{directory} holds no Kafka connector: remove it, or correct {CONNECTOR_HOME_VARIABLE}")
    return jars
