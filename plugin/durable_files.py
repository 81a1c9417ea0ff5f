"""Writes files that are complete or absent after a crash (KAFKA-16541).

They are written aside, synced and renamed, and the directory is synced.
"""

import os
from pathlib import Path


def write_durably(path: Path, content: str, mode: int = 0o644) -> None:
    """Write `content` to `path`; until this returns, the path keeps its old content. Raises OSError.

    `mode` is the file's mode, less the process's umask.
    """
    unfinished = path.with_name(f"{path.name}.tmp")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path | str) -> None:
    """Make names that were created, renamed or removed in `directory` durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
