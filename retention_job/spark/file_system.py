"""Small files and directories beside the job's tables, wherever Spark can write: a disk, HDFS, an object store."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from retention_job.errors import StateError, one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME_LIKE_A_SCHEME: Final = re.compile(r"[^/]*:(?!/)")


class FileSystem:
    """Hadoop's file system under one directory, for small files. On the driver only; every method raises StateError."""

    def __init__(self, spark: "SparkSession", root: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        # Hadoop takes what stands before a colon for a scheme.
        self.root = f"./{root}".rstrip("/") if _NAME_LIKE_A_SCHEME.match(root) else root.rstrip("/")
        with _as_state_error("open", root):
            self._path = jvm.org.apache.hadoop.fs.Path
            self._fs = self._path(self.root).getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())

    def resolve(self, name: str) -> str:
        """Return the full path of `name` under the root."""
        return f"{self.root}/{name}"

    def read_text(self, name: str) -> str | None:
        """Return the file's text; None if there is no such file."""
        path = self._path(self.resolve(name))
        with _as_state_error("read", self.resolve(name)):
            if not self._fs.exists(path):
                return None
            with closing(self._fs.open(path)) as stream:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))

    def replace_text(self, name: str, text: str) -> None:
        """Replace the file atomically, if the file system renames atomically (HDFS, a disk) or puts whole objects
        (S3).
        """
        unfinished, path = self._path(self.resolve(f".{name}.writing")), self._path(self.resolve(name))
        with _as_state_error("write", self.resolve(name)):
            with closing(self._fs.create(unfinished, True)) as stream:
                stream.write(bytearray(text.encode()))
            context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._fs.getUri(), self._fs.getConf())
            overwrite = self._jvm.org.apache.hadoop.fs.Options.Rename.OVERWRITE
            options = self._jvm.java.lang.reflect.Array.newInstance(overwrite.getClass(), 1)
            self._jvm.java.lang.reflect.Array.set(options, 0, overwrite)
            context.rename(unfinished, path, options)

    def directories(self, name: str) -> list[str]:
        """Return the names of the directories in a directory; none if it does not exist."""
        path = self._path(self.resolve(name))
        with _as_state_error("list", self.resolve(name)):
            if not self._fs.exists(path):
                return []
            return sorted(str(found.getPath().getName()) for found in self._fs.listStatus(path) if found.isDirectory())

    def move(self, name: str, to: str) -> None:
        """Move a directory to a path that does not exist yet."""
        with _as_state_error("move", self.resolve(name)):
            target = self._path(self.resolve(to))
            self._fs.mkdirs(target.getParent())
            moved = bool(self._fs.rename(self._path(self.resolve(name)), target))
        if not moved:
            raise StateError("move", self.resolve(name), f"{self.resolve(to)} is there already, or cannot be written")

    def delete(self, name: str) -> None:
        """Delete a file or directory with everything in it; do nothing if it does not exist."""
        with _as_state_error("delete", self.resolve(name)):
            self._fs.delete(self._path(self.resolve(name)), True)


@contextmanager
def _as_state_error(operation: str, key: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # py4j has one error for whatever Java throws
        raise StateError(operation, key, one_line(error)) from error
