"""Errors about the files that Kafka writes."""

import errno
from pathlib import Path


class LogDirectoryError(Exception):
    """The operating system could not read something under a log directory."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"reading {path}: {reason}")

    @property
    def lacks_descriptors(self) -> bool:
        """Whether the cause is that the process has no file descriptors left: then the directory may be sound."""
        cause = self.__cause__
        return isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE)


class MalformedFileError(Exception):
    """A file of Kafka's cannot be parsed; names the file and the line, counted from 1 (0: the file as a whole)."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        self.path = path
        self.line = line
        self.reason = reason
        super().__init__(f"{path}, line {line}: {reason}" if line else f"{path}: {reason}")


class BrokerPropertiesError(Exception):
    """A broker's server.properties lacks a key, or has an invalid value."""

    def __init__(self, path: Path, key: str, reason: str) -> None:
        self.path = path
        self.key = key
        self.reason = reason
        super().__init__(f"{path}: {key}: {reason}")
