"""Copies on this host's disk, in files without names, which end with the process.

What the disk refuses stays in memory, and that is told once, until the disk has taken something again.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

log = structlog.get_logger(__name__)

T = TypeVar("T")


class BlockLostError(OSError):
    """The disk gave other bytes than it was given, or fewer; or took fewer."""


class DiskWrites:
    """Those of one kind of thing. Not thread-safe."""

    def __init__(self, refused_event: str) -> None:
        """`refused_event` is what is logged."""
        self._refused_event = refused_event
        self._is_refused = False

    def tried(self, directory: Path, write: Callable[[], T]) -> T | None:
        """What `write` returns; None where it raised OSError."""
        try:
            written = write()
        except OSError as error:
            if not self._is_refused:
                log.warning(self._refused_event, directory=str(directory), error=str(error))
            self._is_refused = True
            return None
        self._is_refused = False
        return written


def write_at(descriptor: int, content: bytes | bytearray, offset: int) -> None:
    """All of it. Raises OSError."""
    if os.pwrite(descriptor, content, offset) != len(content):
        raise BlockLostError("the disk takes no more")


def unnamed_file(directory: Path) -> int:
    """A descriptor of a new file in that directory, which goes when the descriptor does. Raises OSError."""
    with tempfile.TemporaryFile(dir=directory) as file:
        return os.dup(file.fileno())
