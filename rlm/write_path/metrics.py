"""The write path's Prometheus metrics and stage times."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from plugin.hot_path.loop_metrics import LoopCounter, LoopHistogram
from rlm.write_path.uploads.segment_queue import UploadedSegment

STAGE_BUCKETS_S = (
    0.0002, 0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.0125, 0.015,
    0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip


class StageTimes:
    """How long each stage took on a batch's path from the leader's log to the followers'.

    `queued` append seen until queued; `combined` queued until the upload begins; `uploaded` the PUT; `announced` stored
    until the followers' agents know of it; `fetched` a range read from object storage; `hydrated` linked response
    arrived until all its bytes are present; `spliced` until written to the follower's broker; `appended` until that
    broker asks for more; `answered` until the leader's broker responds to a fetch with records; `link_wait` how long a
    response was held for its links; `high_watermark` append seen until the high watermark passes it.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._histogram = LoopHistogram(
            "remote_wal_stage_seconds",
            "Time of each stage of replication through object storage",
            "stage",
            buckets=STAGE_BUCKETS_S,
            registry=registry,
        )

    def observe(self, stage: str, seconds: float) -> None:
        """Record how long one passage through a stage took."""
        self._histogram.observe(stage, seconds)

    def stored(self, segment: UploadedSegment, started_s: float, now_s: float) -> None:
        """Record an upload of records of the own broker's logs that began at `started_s`."""
        for item in segment.items:
            self.observe("combined", started_s - item.queued_s)
        self.observe("uploaded", now_s - started_s)


class WriteMetrics:
    """Counters of the write path."""

    def __init__(self, registry: CollectorRegistry) -> None:
        loop_counter, counter = partial(LoopCounter, registry=registry), partial(Counter, registry=registry)
        self.appended_bytes = loop_counter(
            "remote_wal_appended_bytes", "Bytes read from the active segments of led partitions"
        )
        self.left_out_bytes = loop_counter(
            "remote_wal_left_out_bytes",
            "Bytes of led partitions that are in no object, as they went inline and nothing wants them stored",
        )
        self.uploaded_bytes = loop_counter("remote_wal_uploaded_bytes", "Record bytes uploaded")
        self.adopted_bytes = loop_counter(
            "remote_wal_adopted_bytes",
            "Uploaded bytes that are in no object of the agent, because a gateway had stored them",
        )
        self.uploaded_segments = loop_counter("remote_wal_uploaded_segments", "Combined segments stored")
        self.looks = counter(
            "remote_wal_looks",
            "Looks whether links hold records back at a topic's producers, by what they found",
            ["found"],
        )
        self.upload_failures = counter("remote_wal_upload_failures", "Uploads given up after their retries", ["reason"])
        self.listener_defects = counter(
            "remote_wal_upload_listener_defects",
            "Defects of those who are told of uploads: links and announcements that were not made",
        )
        self.read_failures = counter("remote_wal_log_read_failures", "Runs of tasks that failed on the log directory")
        self.gap_offsets = counter(
            "remote_wal_gap_offsets", "Offsets that could not be had any more before they were uploaded"
        )
        self.declared_gaps = counter(
            "remote_wal_declared_gaps", "Gaps in what is stored that were declared in the metadata topic", ["reason"]
        )
        self.upload_spacing = Gauge(
            "remote_wal_upload_spacing_seconds",
            "From one upload to the next at least, so that agents can follow what all of them make; 0: no bound",
            registry=registry,
        )


class ArchiveMetrics:
    """Counters of the archive."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self.read_bytes = counter("remote_wal_archive_read_bytes", "Bytes of combined segments read for the archive")
        self.written_bytes = counter("remote_wal_archive_written_bytes", "Bytes of archive objects stored")
        self.objects = counter("remote_wal_archive_objects", "Archive objects stored")
        self.failures = counter("remote_wal_archive_failures", "Archive objects given up for now", ["reason"])
        self.deleted_objects = counter("remote_wal_archive_deleted_objects", "Archive objects deleted")
        self.orphan_rounds_skipped = counter(
            "remote_wal_archive_orphan_rounds_skipped",
            "Comparisons of the archive's listing and metadata that were given up",
            ["reason"],
        )


class OrphanMetrics:
    """Counters of what comparisons of object storage and metadata found."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge, counter = partial(Gauge, registry=registry), partial(Counter, registry=registry)
        self.found = gauge(
            "remote_wal_orphans", "Disagreements of object storage and metadata in the last comparison", ["kind"]
        )
        self.waiting = gauge(
            "remote_wal_orphans_waiting", "Disagreements that nobody heals before their amount is confirmed", ["kind"]
        )
        self.rounds_skipped = counter(
            "remote_wal_orphan_rounds_skipped",
            "Comparisons of object storage and metadata that were given up",
            ["reason"],
        )
        self.lost_segments = counter(
            "remote_wal_lost_segments", "Combined segments that metadata knew as stored, and that are not there"
        )


class LifecycleMetrics:
    """Counters of combined segments' life after their upload."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.dead_entries = counter(
            "remote_wal_dead_entries_published", "Entries of older leaders that were declared dead after elections"
        )
        self.deletions_started = counter(
            "remote_wal_segment_deletions_started", "Combined segments whose deletion was started", ["reason"]
        )
        self.deletions_finished = counter(
            "remote_wal_segment_deletions_finished", "Combined segments that were deleted"
        )
        self.deletion_failures = counter(
            "remote_wal_segment_deletion_failures",
            "Attempts to delete a combined segment that failed; each is tried again",
            ["reason"],
        )
        self.deletions_held_back = counter(
            "remote_wal_segment_deletions_held_back",
            "Deletions that did not take place, as the records were wanted after all",
        )
        self.hidden_topics = gauge(
            "remote_wal_hidden_topics",
            "Topics that the agent's client may not describe, so that no retention or log start releases their objects",
        )
        self.held_partitions = gauge(
            "remote_wal_held_partitions",
            "Partitions of the cluster whose objects are kept beyond the WAL's retention, as a replica is not in sync",
        )
        self.host_clock_ahead = gauge(
            "remote_wal_host_clock_ahead_seconds",
            "How far this host's clock is ahead of the store's at least, below 0: behind; 0 while they may agree. From "
            "half of remote.wal.uncommitted.ttl.ms on, the agent deletes nothing",
        )
        self.orphan_search = OrphanMetrics(registry)
        self.metadata_topic_problems = gauge(
            "remote_wal_metadata_topic_problems",
            "Settings of the metadata topic by which it forgets objects before they go",
        )
