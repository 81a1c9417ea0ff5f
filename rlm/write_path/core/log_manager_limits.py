"""Limits on how much RemoteWalLogManager handles at once, and how often it looks."""

from dataclasses import dataclass

from rlm.write_path.commit.group_commit import CommitLimits
from rlm.write_path.commit.partition_schedule import ScheduleIntervals
from rlm.write_path.core.passed_over import BacklogLimits


@dataclass(frozen=True, slots=True)
class LogManagerLimits:
    """Limits of the write path."""

    schedule: ScheduleIntervals
    commit: CommitLimits
    task_threads: int
    queue_items: int
    queue_bytes: int
    read_bytes: int
    """The most bytes that tasks running together read."""
    link_wait_max_s: float
    """An upload that takes longer counts as failing: nobody waits for its links."""
    open_files: int
    backlog: BacklogLimits
