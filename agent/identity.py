"""Identifies an agent: one per broker, with a new incarnation at each start."""

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LOCK_FILE = "agent.lock"
_MAX_INCARNATION = 2**48 - 1


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    cluster_id: str
    broker_id: int
    incarnation: int
    rack: str | None
    started_ms: int


class AgentAlreadyRunningError(Exception):
    """Another agent holds this state directory's lock."""


class AgentLock:
    """The lock on the state directory, held while the agent runs: one agent per broker.

    Its file keeps the incarnation, so that it grows even when the clock goes back.
    """

    def __init__(self, state_directory: Path) -> None:
        """Take the lock. Raises AgentAlreadyRunningError, or OSError when the directory cannot be used."""
        state_directory.mkdir(parents=True, exist_ok=True)
        self._path = state_directory / LOCK_FILE
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            raise AgentAlreadyRunningError(
                f"another agent runs with the state directory {state_directory}; one broker has one agent"
            ) from error

    def next_incarnation(self, wall_ms: Callable[[], int], above: int = -1) -> int:
        """Return a new incarnation: the time in ms, but above `above` and all that this state directory has had."""
        last = os.pread(self._file, 32, 0).strip()
        if last and not last.isdigit():
            raise ValueError(f"{self._path}: {last!r} is no incarnation; the file must hold the last one, or nothing")
        incarnation = max(wall_ms(), int(last or b"-1") + 1, above + 1)
        if incarnation > _MAX_INCARNATION:
            raise ValueError(f"{self._path}: {incarnation} is no incarnation")
        line = b"%d\n" % incarnation
        os.pwrite(self._file, line, 0)  # in one piece over a shorter or equal number, so a crash leaves old or new
        os.ftruncate(self._file, len(line))
        os.fsync(self._file)
        return incarnation

    def release(self) -> None:
        """Release the lock, so that another agent can start."""
        os.close(self._file)
