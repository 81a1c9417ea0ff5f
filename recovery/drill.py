"""A restore drill: restores logs into a scratch directory, where no broker will start, to test that it works."""

from collections.abc import Callable, Sequence
from pathlib import Path

from recovery.broker_recovery import PlannedLog
from recovery.errors import TargetRefusedError
from recovery.logs.restore import RestoredLog, RestoreJob, RestoreProgress, restore_logs
from recovery.logs.run_reader import RunReader


def run_drill(
    directory: Path,
    planned: Sequence[PlannedLog],
    reader: RunReader,
    *,
    threads: int,
    progress: Callable[[RestoreProgress], None] = lambda _progress: None,
) -> list[RestoredLog]:
    """Restore the logs below `directory`, which must be empty or absent.

    Raises TargetRefusedError when it is not, RemoteStorageError, OSError.
    """
    if directory.exists() and any(directory.iterdir()):
        raise TargetRefusedError("drill", str(directory), "it is not empty", "a drill needs a directory of its own")
    jobs = [
        RestoreJob(log.partition, log.name, directory / log.name, log.runs, log.plan, log.settings, log.rules)
        for log in planned
        if log.is_restored(log.plan, log.plan.gap)
    ]
    return restore_logs(jobs, reader, threads=threads, progress=progress)
