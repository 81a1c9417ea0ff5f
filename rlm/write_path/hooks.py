"""The write path's questions to the agent around it, and its messages to that agent. Event loop only."""

from collections.abc import Callable
from dataclasses import dataclass

from kafka_log.topic_partition import TopicIdPartition
from rlm.write_path.assignment import Assignment
from rlm.write_path.reading.gap_listener import NO_GAPS, GapListener
from rlm.write_path.reading.resume_point import ResumePoint


@dataclass(slots=True)
class WritePathHooks:
    """Callbacks of the agent. By default each log is uploaded from its active segment on, and nobody is notified."""

    resume: Callable[[Assignment], ResumePoint] = lambda _assignment: ResumePoint(None)
    """Returns what of a log must be uploaded. Raises ResumeUnknownError to put it off until the next `assign`."""
    gaps: GapListener = NO_GAPS
    """Notified of what cannot be uploaded any more."""
    on_unknown_partition: Callable[[], None] = lambda: None
    """Called to get new assignments: a follower fetches a partition that is not known as led, or one was put off."""
    on_hurried_settled: Callable[[TopicIdPartition], None] = lambda _partition: None
    """Called when the log of a hurried partition was read and nothing of it was left to upload."""
    replication_is_pending: Callable[[], bool] = lambda: False
    """Whether followers have yet to fetch something that is stored."""
    on_left_out: Callable[[], None] = lambda: None
    """Called when what was queued for links is not stored after all, because links do not pay any more."""
