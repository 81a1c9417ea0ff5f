"""The limits of uploads and of healing, from the settings."""

from agent.descriptors import bounded_open_files
from agent.settings import AgentSettings
from rlm.lifecycle.orphans import HealingLimits
from rlm.write_path.group_commit import CommitLimits
from rlm.write_path.log_manager_limits import LogManagerLimits
from rlm.write_path.partition_schedule import ScheduleIntervals
from rlm.write_path.passed_over import BacklogLimits


def log_manager_limits(settings: AgentSettings) -> LogManagerLimits:
    """Milliseconds there, seconds here."""
    interval_s = settings.log_manager.combiner_task_interval_s
    retry_s = settings.log_manager.task_retry_interval_s
    retry_max_s = settings.log_manager.task_retry_interval_max_s
    uploads = settings.log_manager.combiner_thread_pool_size
    upload_bytes = settings.log_manager.combiner_task_upload_bytes
    return LogManagerLimits(
        ScheduleIntervals(settings.log_manager.task_interval_s, retry_s, retry_max_s),
        CommitLimits(
            interval_s,
            settings.quotas.archive_interval_s,
            upload_bytes,
            uploads,
            retry_s,
            retry_max_s,
            settings.quotas.copy_max_bytes_per_second,
        ),
        settings.log_manager.thread_pool_size,
        settings.log_manager.combiner_queue_size,
        settings.log_manager.combiner_queue_bytes,
        upload_bytes,
        settings.link.wait_max_s,
        bounded_open_files(settings.quotas.open_files),
        BacklogLimits(upload_bytes, settings.quotas.backlog_max_bytes_per_second, retry_s, retry_max_s),
    )


def healing_limits(settings: AgentSettings) -> HealingLimits:
    """What of orphans may be healed without a word from somebody."""
    return HealingLimits(settings.lifecycle.orphans_heal_max_percent, settings.lifecycle.orphans_heal_min_objects)
