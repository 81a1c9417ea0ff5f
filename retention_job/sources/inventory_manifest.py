"""Reads an S3 Inventory's manifest: which files are one day's inventory of one bucket, and when it was made.

S3 writes `<destination prefix>/<bucket>/<configuration>/<time>/manifest.json`, and all days' files into `<destination
prefix>/<bucket>/<configuration>/data/`. So a manifest names the files of one day, and they are beside it wherever both
were copied to.
"""

import json
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from retention_job.errors import SourceError
from retention_job.settings import InventoryFile
from retention_job.spark.file_system import FileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANIFEST: Final = "manifest.json"
_FORMATS: Final = ("csv", "parquet")


@dataclass(frozen=True, slots=True)
class InventoryFiles:
    """The files of one inventory, and how to read them."""

    paths: tuple[str, ...]
    format: str
    csv_schema: tuple[str, ...]
    made_ms: int | None = None
    """The time when S3 began to make it; None without a manifest."""


def files_of(spark: "SparkSession", source: InventoryFile) -> InventoryFiles:
    """Return the source's own path or, if that is a manifest, the files that it names. Raises SourceError,
    StateError.
    """
    directory, _, name = source.path.rpartition("/")
    if name != MANIFEST:
        return InventoryFiles((source.path,), source.format, source.csv_schema)
    text = FileSystem(spark, directory).read_text(MANIFEST)
    if text is None:
        raise SourceError("read", source.path, "there is no such file", "is that an inventory's manifest?")
    try:
        told = json.loads(text)
        chosen = str(told["fileFormat"]).lower()
        data = f"{directory.rpartition('/')[0]}/data"
        paths = tuple(f"{data}/{PurePosixPath(file['key']).name}" for file in told["files"])
        columns = tuple(column.strip() for column in str(told["fileSchema"]).split(",")) if chosen == "csv" else ()
        made_ms = int(told["creationTimestamp"])
    except (ValueError, TypeError, KeyError) as error:
        raise SourceError(
            "read", source.path, f"{type(error).__name__}: {error}", "is that an inventory's manifest?"
        ) from error
    if chosen not in _FORMATS:
        raise SourceError("read", source.path, f"an inventory in {chosen}", f"only {' and '.join(_FORMATS)} are read")
    return InventoryFiles(paths, chosen, columns, made_ms)
