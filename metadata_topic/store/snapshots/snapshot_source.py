"""Where a snapshot is read from, piece by piece: it may be larger than what an agent may take of memory."""

import os
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from metadata_topic.store.disk_writes import unnamed_file


class SnapshotSource(Protocol):
    """All of a snapshot's bytes."""

    size: int

    def read(self, at: int, size: int, /) -> bytes | memoryview:
        """Fewer where it ends before. Raises OSError."""


class SnapshotBytes:
    """In memory."""

    def __init__(self, content: bytes | memoryview) -> None:
        self._content = memoryview(content)
        self.size = len(content)

    def read(self, at: int, size: int, /) -> memoryview:
        """Nothing is copied."""
        return self._content[at : at + size]


class SpooledSnapshot:
    """In a file without a name, which goes with this."""

    def __init__(self, parts: Iterable[bytes], directory: Path | None) -> None:
        """Raises OSError, and whatever `parts` does. Without a directory, where the machine has such files."""
        self._descriptor = unnamed_file(directory or Path(tempfile.gettempdir()))
        weakref.finalize(self, os.close, self._descriptor)
        self.size = 0
        for part in parts:
            at = 0
            while at < len(part):
                written = os.pwrite(self._descriptor, memoryview(part)[at:], self.size)
                at, self.size = at + written, self.size + written

    def read(self, at: int, size: int, /) -> bytes:
        """See `SnapshotSource`."""
        return os.pread(self._descriptor, size, at)
