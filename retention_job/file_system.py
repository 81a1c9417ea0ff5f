"""Small files and directories beside the job's tables, wherever Spark can write: a disk, HDFS, an object store."""

from typing import TYPE_CHECKING, Any

from retention_job.errors import StateError, one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class FileSystem:
    """Hadoop's file system under one directory. Driver only. Every method raises StateError."""

    def __init__(self, spark: "SparkSession", root: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self.root = root.rstrip("/")
        try:
            self._path = jvm.org.apache.hadoop.fs.Path
            self._fs = self._path(self.root).getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        except Exception as error:  # py4j has one error for whatever Java throws
            raise StateError("open", root, one_line(error)) from error

    def at(self, name: str) -> str:
        """The full path of what is called `name` under the root."""
        return f"{self.root}/{name}"

    def read_text(self, name: str) -> str | None:
        """None when there is no such file."""
        path = self._path(self.at(name))
        try:
            if not self._fs.exists(path):
                return None
            stream = self._fs.open(path)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()
        except Exception as error:
            raise StateError("read", self.at(name), one_line(error)) from error

    def replace_text(self, name: str, text: str) -> None:
        """Whole or not at all, where the file system renames atomically (HDFS, a disk) or puts whole objects (S3)."""
        unfinished, path = self._path(self.at(f".{name}.writing")), self._path(self.at(name))
        try:
            stream = self._fs.create(unfinished, True)
            stream.write(bytearray(text.encode()))
            stream.close()
            context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._fs.getUri(), self._fs.getConf())
            overwrite = self._jvm.org.apache.hadoop.fs.Options.Rename.OVERWRITE
            options = self._jvm.java.lang.reflect.Array.newInstance(overwrite.getClass(), 1)
            self._jvm.java.lang.reflect.Array.set(options, 0, overwrite)
            context.rename(unfinished, path, options)
        except Exception as error:
            raise StateError("write", self.at(name), one_line(error)) from error

    def directories(self, name: str) -> list[str]:
        """The names of the directories in a directory; none when it is not there."""
        path = self._path(self.at(name))
        try:
            if not self._fs.exists(path):
                return []
            return sorted(str(found.getPath().getName()) for found in self._fs.listStatus(path) if found.isDirectory())
        except Exception as error:
            raise StateError("list", self.at(name), one_line(error)) from error

    def delete(self, name: str) -> None:
        """With all that is in it; nothing when it is not there."""
        try:
            self._fs.delete(self._path(self.at(name)), True)
        except Exception as error:
            raise StateError("delete", self.at(name), one_line(error)) from error
