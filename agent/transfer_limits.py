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
    interval_s = settings.remote_wal_log_manager_combiner_task_interval_ms / 1000
    retry_s = settings.remote_wal_log_manager_task_retry_interval_ms / 1000
    retry_max_s = settings.remote_wal_log_manager_task_retry_interval_max_ms / 1000
    uploads = settings.remote_wal_log_manager_combiner_thread_pool_size
    upload_bytes = settings.remote_wal_log_manager_combiner_task_upload_bytes
    return LogManagerLimits(
        ScheduleIntervals(settings.remote_wal_log_manager_task_interval_ms / 1000, retry_s, retry_max_s),
        CommitLimits(
            interval_s,
            settings.remote_wal_archive_interval_ms / 1000,
            upload_bytes,
            uploads,
            retry_s,
            retry_max_s,
            settings.remote_wal_log_manager_copy_max_bytes_per_second,
        ),
        settings.remote_wal_log_manager_thread_pool_size,
        settings.remote_wal_log_manager_combiner_queue_size,
        settings.remote_wal_log_manager_combiner_queue_bytes,
        upload_bytes,
        settings.remote_wal_link_wait_max_ms / 1000,
        bounded_open_files(settings.remote_wal_log_manager_open_files),
        BacklogLimits(upload_bytes, settings.remote_wal_log_manager_backlog_max_bytes_per_second, retry_s, retry_max_s),
    )


def healing_limits(settings: AgentSettings) -> HealingLimits:
    """What of orphans may be healed without a word from somebody."""
    return HealingLimits(settings.remote_wal_orphans_heal_max_percent, settings.remote_wal_orphans_heal_min_objects)
