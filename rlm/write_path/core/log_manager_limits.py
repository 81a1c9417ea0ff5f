"""How much RemoteWalLogManager takes on at once, and how often it looks."""

from dataclasses import dataclass

from rlm.write_path.commit.group_commit import CommitLimits
from rlm.write_path.commit.partition_schedule import ScheduleIntervals
from rlm.write_path.core.passed_over import BacklogLimits


@dataclass(frozen=True, slots=True)
class LogManagerLimits:
    """Bounds of the write path."""

    schedule: ScheduleIntervals
    commit: CommitLimits
    task_threads: int
    queue_items: int
    queue_bytes: int
    read_bytes: int
    """The tasks that run together read at most so much."""
    link_wait_max_s: float
    """An upload that takes longer than this counts as failing: links are not waited for."""
    open_files: int
    backlog: BacklogLimits
