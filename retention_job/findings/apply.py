"""Hands safe deletions over to the agents' two-phase delete.

The job deletes nothing itself. For an object that may go, it publishes DELETE_SEGMENT_STARTED, as the owner's agent
would. From then on agents treat it as any deletion (`rlm.lifecycle.expiration`).

`upload_unfinished` and `object_without_metadata` may be handed over; what has expired, agents find themselves. Nothing
is known of the records of these, so the agents' guard cannot help. Hence the topic is read to its present end right
before, and a segment that any record has named meanwhile is taken off the list. If most objects have no metadata, none
is handed over, because then the metadata seems to be lost; nor while there are records that cannot be read, or were
lost with the topic's end, as they may tell of these objects. Nor is one whose writer's incarnation is not registered in
the topic: the registration stands before all that it published, so the records of its objects may be lost, too
(`rlm.lifecycle.orphans` has the same rule).

A record means the same however often it is published, and only the furthest state counts. So the handover may be
repeated, or be killed at any point and repeated, and two jobs at once do no harm. A segment that was handed over is
DELETE_SEGMENT_STARTED, so the next run does not hand it over again.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from pyspark.sql import functions as fn

from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.publishable import MetadataPublisher
from metadata_topic.records.records import PublishableRecord
from metadata_topic.records.states import DELETING
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher
from metadata_topic.topic.topic import METADATA_TOPIC
from plugin.segment_metadata import UNKNOWN_POSITION, CombinedSegmentId, RemoteWalCombinedLogSegmentMetadata
from retention_job.errors import RetentionJobError
from retention_job.findings.find import metadata_is_doubtful
from retention_job.findings.kinds import Kind
from retention_job.settings import LifeTimes, Sources
from retention_job.sources.kafka import Kafka
from retention_job.tables.fences import REGISTRATIONS, known_writers, registrations_of
from retention_job.tables.history import History
from retention_job.tables.state import find_loss

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = structlog.get_logger(__name__)

_HANDED_OVER: Final = (Kind.UPLOAD_UNFINISHED, Kind.NO_METADATA)
_FLUSH_S: Final = 60.0
_PUBLISHERS_ID: Final = 0
"""The job's id among publishers; the records are partitioned by their segments' brokers."""


@dataclass(frozen=True, slots=True)
class Handover:
    """How many deletions were handed over to the agents, or would be."""

    segments: int
    size_bytes: int
    is_dry: bool
    withheld: int
    """Not handed over: objects without metadata if most objects have none, if records cannot be read, or of unknown
    writers, and objects that new records name."""


class Publisher(MetadataPublisher[PublishableRecord], Protocol):
    """A publisher that can also wait for its records."""

    def flush(self, timeout_s: float, /) -> bool:
        """Wait until all records are in the topic; False on a timeout."""


def hand_over(history: History, findings: "DataFrame", sources: Sources, now_ms: int, *, dry_run: bool) -> Handover:
    """Publish the deletions that the findings name, or only count them.

    Raises RetentionJobError when the topic takes no records; those published before stay.
    """
    kafka = Kafka(sources.kafka)
    deletable = findings.filter(fn.col("kind").isin(*(kind.value for kind in _HANDED_OVER)))
    deletable = deletable.select("segment", "size_bytes")
    found = deletable.count()
    known = known_writers(registrations_of(history.table("registrations", REGISTRATIONS).collect()))
    if not known or is_doubtful(history, sources.life_times):
        deletable = deletable.limit(0)
    else:
        deletable = deletable.filter(fn.substring_index("segment", "-", 2).isin(known))
    if not dry_run and not deletable.isEmpty():
        deletable = deletable.join(_told_since(history, kafka), "segment", "left_anti").checkpoint()
    counted = deletable.agg(
        fn.count("*").alias("n"), fn.coalesce(fn.sum("size_bytes"), fn.lit(0)).alias("bytes")
    ).collect()[0]
    handover = Handover(counted["n"], counted["bytes"], dry_run, found - counted["n"])
    if not dry_run and handover.segments:
        publisher = RemoteWalMetadataPublisher(kafka.client_config(), _PUBLISHERS_ID, time.monotonic)
        publisher.start()
        try:
            publish_deletions(_segments(deletable), publisher, now_ms)
        finally:
            publisher.close()
        log.info("deletions_handed_over", segments=handover.segments, size_bytes=handover.size_bytes)
    return handover


def is_doubtful(history: History, life_times: LifeTimes) -> bool:
    """Whether records about objects without metadata may be missing, or could not be decoded."""
    is_whole = history.is_wholly_read and not history.lacks_records
    return not is_whole or metadata_is_doubtful(history, life_times) is not None


def _told_since(history: History, kafka: Kafka) -> "DataFrame":
    """Return the names of the segments that records behind the end of this run's reading tell of."""
    cluster, epochs = kafka.cluster(), history.cluster.metadata_epochs
    topic_id, read_to = history.cluster.metadata_topic.topic_id.hex(), history.read.ending_offsets
    if (lost := find_loss(cluster, topic_id, read_to, epochs, kafka.epoch_ends(epochs))) is not None:
        raise RetentionJobError("hand over", METADATA_TOPIC, lost, "it did so during this run: run it again")
    later = kafka.records(history.spark, METADATA_TOPIC, read_to, cluster.offsets[METADATA_TOPIC].latest)
    ids = later.filter("length(key) = 16").selectExpr("lower(hex(key)) AS id")
    name = "concat_ws('-', conv(substring(id, 1, 8), 16, 10), substring(id, 9, 12), substring(id, 21, 12)) AS segment"
    return ids.selectExpr(name).distinct()


def _segments(deletable: "DataFrame") -> Iterator[tuple[CombinedSegmentId, int]]:
    for row in deletable.select("segment", "size_bytes").toLocalIterator():
        broker_id, incarnation, sequence = row["segment"].split("-")
        segment_id = CombinedSegmentId(int(broker_id), int(incarnation, 16), int(sequence, 16))
        yield segment_id, UNKNOWN_POSITION if row["size_bytes"] is None else row["size_bytes"]


def publish_deletions(segments: Iterator[tuple[CombinedSegmentId, int]], publisher: Publisher, now_ms: int) -> int:
    """Publish DELETE_SEGMENT_STARTED for each (segment, size); return how many. Raises RetentionJobError."""
    published = 0
    for segment_id, size_bytes in segments:
        record = RemoteWalCombinedLogSegmentMetadata(segment_id, (), DELETING, now_ms, size_bytes)
        try:
            publisher.publish(record)
        except PublicationBacklogFullError:
            _flush(publisher, published)
            publisher.publish(record)
        published += 1
    _flush(publisher, published)
    return published


def _flush(publisher: Publisher, published: int) -> None:
    if not publisher.flush(_FLUSH_S):
        raise RetentionJobError(
            "publish", METADATA_TOPIC, f"not all of {published} records were taken within {_FLUSH_S:.0f} s",
            "are the brokers up? run it again: what was published counts",
        )  # fmt: skip
