"""Declares in the metadata topic which offsets object storage can never have, and where uploads and logs begin.

Nothing depends on a declaration being in time: a hole whose declaration was lost with the process is found and declared
again when the log is resumed. Offsets below the begin of the upload, and those on a long-term tier, are not gaps. A
declaration waits while the publisher is full, and is retried.

Belongs to the event loop.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import structlog

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs, read_leader_epochs
from kafka_log.errors import MalformedFileError
from kafka_log.tail_events import Gap
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.gap_record import MAX_GAPS, RemoteWalGapDeclaration
from metadata_topic.records.offset_ranges import NO_END, OffsetRange, joined_ranges, ranges_common
from metadata_topic.records.publishable import MetadataPublisher
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import (
    UNKNOWN_POSITION,
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
)
from rlm.lifecycle.release import LongTermTier
from rlm.write_path.assignment import Assignment
from rlm.write_path.core.led_partition import PartitionStatus
from rlm.write_path.metrics import WriteMetrics
from rlm.write_path.reading.resume_point import ResumePoint
from rlm.write_path.uploads.upload_listener import UploadListener

log = structlog.get_logger(__name__)

_PUBLISH_AGAIN_S = 0.5


class GapDeclarations(UploadListener):
    """Declares in the metadata topic which records of led logs are in no object, and why."""

    def __init__(
        self,
        first_record: CombinedSegmentId,
        publisher: MetadataPublisher[RemoteWalGapDeclaration],
        known: Callable[[RemoteWalGapDeclaration], None],
        tier: LongTermTier,
        metrics: WriteMetrics,
        wall_ms: Callable[[], int],
    ) -> None:
        """Declaration records are numbered from `first_record` on.

        `known` gets each declaration before the topic returns it: a restarted write path looks for it there at once.
        """
        self.next_record = first_record
        self._publisher = publisher
        self._known = known
        self._tier = tier
        self._metrics = metrics
        self._wall_ms = wall_ms
        self._waiting: list[DeclaredGap] = []
        self._publication: asyncio.Handle | None = None

    def declare_begin(self, assignment: Assignment, resume: ResumePoint) -> None:
        """Declare the first upload of a log, so that everything after its begin is wanted."""
        partition = assignment.topic_id_partition
        if resume.missing:
            log.warning(
                "missing_offsets_found",
                partition=str(partition),
                ranges=len(resume.missing),
                offsets=sum(end - begin for begin, end in resume.missing),
                from_offset=resume.missing[0][0],
                consequence="what the log has of them is uploaded first",
            )
        if resume.is_first and resume.next_offset is not None:
            gap = DeclaredGap(
                partition, 0, resume.next_offset, resume.leader_epochs.latest_epoch, GapReason.BEFORE_UPLOAD
            )
            self.declare([gap])

    def gaps_found(self, assignment: Assignment, gaps: Sequence[Gap]) -> None:
        """Declare offsets that the log no longer has."""
        partition = assignment.topic_id_partition
        try:
            epochs = read_leader_epochs(assignment.directory)
        except (OSError, MalformedFileError) as error:
            log.warning(
                "gap_not_declared", partition=str(partition), error=str(error), consequence="at the next resume"
            )
            return
        holes, lost = [gap for gap in gaps if gap.is_compacted], [gap for gap in gaps if not gap.is_compacted]
        self.declare(
            DeclaredGap(partition, gap.from_offset, gap.to_offset, epochs.latest_epoch, GapReason.COMPACTED)
            for gap in holes
        )
        if not assignment.is_kept:
            self.ranges_not_wanted(assignment, [(gap.from_offset, gap.to_offset) for gap in lost], epochs.latest_epoch)
            return
        for gap in lost:
            reason = GapReason.UNREADABLE if gap.is_unreadable else GapReason.RETENTION
            for begin, end in self._not_tiered(assignment, (gap.from_offset, gap.to_offset), epochs):
                self._metrics.gap_offsets.inc(end - begin)
                log.error(
                    "upload_gap", partition=str(partition), from_offset=begin, to_offset=end, reason=reason.name.lower()
                )
                self.declare([DeclaredGap(partition, begin, end, epochs.latest_epoch, reason)])

    def ranges_not_wanted(self, assignment: Assignment, ranges: Sequence[OffsetRange], leader_epoch: int) -> None:
        """Declare offsets that were left out of objects because they went inline and nothing needs them stored."""
        partition = assignment.topic_id_partition
        try:
            epoch = leader_epoch if leader_epoch >= 0 else read_leader_epochs(assignment.directory).latest_epoch
        except (OSError, MalformedFileError):
            return  # read again at the next resume, and left out again
        self.declare([DeclaredGap(partition, begin, end, epoch, GapReason.NOT_WANTED) for begin, end in ranges])

    def declare_loss(self, loss: DeclaredGap) -> None:
        """Declare records that a led log lost without an election; objects of older leader epochs hold them."""
        log.error(
            "local_loss_found",
            partition=str(loss.topic_id_partition),
            from_offset=loss.from_offset,
            to_offset=loss.to_offset,
            leader_epoch=loss.leader_epoch,
            consequence="object storage keeps these records, and nobody is served them",
            hint="remote-wal held restore, or remote-wal held give-up",
        )
        self.declare([loss])

    def close(self) -> None:
        """Publish the declarations that wait; those that the publisher refuses are dropped."""
        self._publish()
        if self._publication is not None:
            self._publication.cancel()

    def _not_tiered(self, assignment: Assignment, gap: OffsetRange, epochs: LeaderEpochs) -> Iterator[OffsetRange]:
        partition = assignment.topic_id_partition
        for epoch, (begin, end) in _by_epoch(gap, epochs):
            entry = RemoteLogSegmentMetadataEntry(
                partition, epoch, begin, end - 1, UNKNOWN_POSITION, UNKNOWN_POSITION, 0
            )
            if not self._tier.holds(entry):
                yield begin, end

    def declare(self, gaps: Iterable[DeclaredGap]) -> None:
        """Declare offsets, for instance where led logs begin now, so that a recovery restores nothing deleted."""
        for gap in gaps:
            self._waiting.append(gap)
            if gap.reason is not GapReason.LOG_START:
                self._known(RemoteWalGapDeclaration(*self.next_record, (gap,), self._wall_ms()))
            if gap.reason.is_loss:
                self._metrics.declared_gaps.labels(gap.reason.name.lower()).inc()
        if self._publication is None:
            self._publication = asyncio.get_running_loop().call_soon(self._publish)

    def _publish(self) -> None:
        self._publication = None
        while self._waiting:
            gaps = tuple(self._waiting[:MAX_GAPS])
            record = RemoteWalGapDeclaration(*self.next_record, gaps, self._wall_ms())
            try:
                self._publisher.publish(record)
            except PublicationBacklogFullError:
                self._publication = asyncio.get_running_loop().call_later(_PUBLISH_AGAIN_S, self._publish)
                return
            self.next_record = self.next_record._replace(sequence=self.next_record.sequence + 1)
            del self._waiting[: len(gaps)]


def _by_epoch(offsets: OffsetRange, epochs: LeaderEpochs) -> Iterator[tuple[int, OffsetRange]]:
    """Split the range by leader epoch; -1 is for offsets before all known epochs."""
    first = epochs.entries[0][1] if epochs.entries else NO_END
    bounds = [(-1, (0, first))]
    for epoch, start in epochs.entries:
        end = epochs.end_offset_for(epoch)
        bounds.append((epoch, (start, NO_END if end is None else end)))
    for epoch, within in bounds:
        for piece in ranges_common(offsets, [within]):
            yield epoch, piece


_SHOWN = 100


class LedGaps:
    """The declared gaps of led logs that matter still: a gap ends once records behind it were released. Thread-safe."""

    def __init__(
        self,
        store: RemoteWalMetadataStore,
        archive: ArchiveStore,
        led: Callable[[], Mapping[TopicIdPartition, PartitionStatus]],
        chain_of: Callable[[TopicIdPartition], LeaderEpochs | None],
    ) -> None:
        self._store = store
        self._archive = archive
        self._led = led
        self._chain_of = chain_of

    def describe(self) -> list[dict[str, Any]]:
        """Return the first hundred gaps as values for JSON."""
        return [
            {
                "topic": status.topic,
                "partition": status.partition,
                "from_offset": gap.from_offset,
                "to_offset": gap.to_offset,
                "reason": gap.reason.name.lower(),
            }
            for status, gap in islice(self._gaps(), _SHOWN)
        ]

    @property
    def offsets(self) -> int:
        """How many offsets of led logs are in no object and are declared as gaps."""
        return sum(gap.to_offset - gap.from_offset for _, gap in self._gaps())

    def describe_held(self) -> list[dict[str, Any]]:
        """Return the first hundred partitions whose log lost records that object storage still holds, as values for
        JSON."""
        return [
            {
                "topic": status.topic,
                "partition": status.partition,
                "from_offset": ranges[0][0],
                "to_offset": ranges[-1][1],
                "restore": f"remote-wal held restore {status.topic} {status.partition}",
                "give_up": f"remote-wal held give-up {status.topic} {status.partition}",
            }
            for status, ranges in islice(self._held(), _SHOWN)
        ]

    @property
    def held_offsets(self) -> int:
        """How many offsets the logs lost while object storage still holds them."""
        return sum(end - begin for _, ranges in self._held() for begin, end in ranges)

    def _held(self) -> Iterator[tuple[PartitionStatus, list[OffsetRange]]]:
        led = self._led()
        for partition in self._store.local_losses():
            if partition in led:
                runs = [one.entry for one in self._store.held_runs(partition)]
                runs += [one.run for one in self._archive.held_runs(partition, self._store)]
                if runs:
                    yield led[partition], joined_ranges((run.first_offset, run.last_offset + 1) for run in runs)

    def _gaps(self) -> Iterator[tuple[PartitionStatus, DeclaredGap]]:
        for partition, status in self._led().items():
            lost = [gap for gap in self._store.declared_gaps(partition) if gap.reason.is_loss]
            chain = self._chain_of(partition) if lost else None
            if chain is None:
                continue
            released = self._store.released_up_to(partition, chain)
            for gap in lost:
                begin, end = max(gap.from_offset, released), gap.end_in(chain)
                if begin < end:
                    yield status, gap._replace(from_offset=begin, to_offset=end)
