"""Finds where the upload of a led log continues, by the metadata topic and the log's own files.

Uploads run side by side, so one may fail while the next is stored and published, and an agent that dies then leaves a
hole. So an upload does not just continue behind the highest offset. First come the `missing` ranges, between those that
are known for each of the log's leader epochs; then what lies behind all of them.

A range is known if finished combined segments or archive objects hold it, or if it was declared as a gap or as not
wanted. Archive objects do not count from the first offset on that was declared dead and is the log's again: it is
uploaded again, because nothing else tells a recovery about it (`recovery.metadata.epoch_ends`).

Nothing is missing below the begin of the log's upload (known from a declaration; for logs without one, assumed at the
start of the segment of the first known offset), nor below what was stored once and released, because release goes along
the log. For an archived topic release says nothing: the archive may hold what is behind a hole, and loses what an
election cut off. There the log's own start is the limit.

Retention removes leader epochs from the log with their records. If such records were never stored, a recovery from
older objects lacks them. So what is between those objects is missing, too, by the epochs that the objects have. Those
epochs may be wrong, because an epoch may have been cut off. So they count only below the log's own epochs, and only for
this: a declaration that is too large hides nothing that is stored.

A missing range may be empty: only the log can show whether it has records there. And its start may be gone from the
log, which `rlm.write_path.reading.resumed_tail` finds, too.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kafka_log.broker_files.leader_epoch_checkpoint import NO_EPOCHS, LeaderEpochs, read_leader_epochs
from kafka_log.errors import MalformedFileError
from kafka_log.segment_files import list_segments, log_end
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.offset_ranges import OffsetRange, joined_ranges, ranges_common, ranges_missing
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from rlm.write_path.assignment import Assignment


class ResumeUnknownError(Exception):
    """It is not known now where the upload of a log continues, so it does not continue."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The parts of a log that are yet to be uploaded: missing ranges, and all from an offset on."""

    next_offset: int | None
    """Everything from here on; None: from the active segment on, once there is one."""
    missing: tuple[OffsetRange, ...] = ()
    """Ascending ranges before `next_offset` that are in no object, as far as the log has them."""
    leader_epochs: LeaderEpochs = NO_EPOCHS
    """The log's epochs when this was found."""
    is_first: bool = False
    """Nothing was known of the log: its upload begins here."""
    only_missing: bool = False
    """Only the missing ranges are wanted, and nothing behind them."""


@dataclass(frozen=True, slots=True)
class LedLog:
    """A led log's segments and leader epochs, as its directory shows them."""

    topic_id_partition: TopicIdPartition
    leader_epochs: LeaderEpochs
    segments: Sequence[int]
    """Base offsets, ascending."""
    is_archived: bool = False

    def segment_of(self, offset: int) -> int:
        """Return the base offset of the segment that holds `offset`; `offset` itself if it is before the log's
        start.
        """
        index = bisect_right(self.segments, offset) - 1
        return self.segments[index] if index >= 0 else offset


def resume_point(store: RemoteWalMetadataStore, archive: ArchiveStore, assignment: Assignment) -> ResumePoint:
    """Return where the upload of the assignment's log continues. Raises ResumeUnknownError when its files cannot be
    read."""
    directory = assignment.directory
    try:
        log = LedLog(
            assignment.topic_id_partition,
            read_leader_epochs(directory),
            list_segments(directory),
            assignment.archive,
        )
        return resume_of(store, archive, log)
    except (OSError, MalformedFileError) as error:
        raise ResumeUnknownError(str(error)) from error


def end_of_log(assignment: Assignment) -> ResumePoint:
    """Return a resume point at the log's end, so that only later appends are uploaded. Raises ResumeUnknownError."""
    directory = assignment.directory
    try:
        return ResumePoint(log_end(directory), leader_epochs=read_leader_epochs(directory))
    except (OSError, MalformedFileError) as error:
        raise ResumeUnknownError(str(error)) from error


def resume_of(store: RemoteWalMetadataStore, archive: ArchiveStore, log: LedLog) -> ResumePoint:
    """Return where the upload of this log continues. Raises ResumeUnknownError."""
    epochs = log.leader_epochs
    if not epochs.entries:  # a leader's log has at least its own epoch, once the broker has begun to lead
        raise ResumeUnknownError("the log has no leader epochs yet")
    point = _resume_by(epochs, store, archive, log)
    older = store.with_older_epochs(log.topic_id_partition, epochs)
    if point.is_first or point.next_offset is None or older == epochs:
        return point
    (_, own_start), *_ = epochs.entries  # from here on the log's own epochs say what is missing
    holes = ranges_common((0, min(point.next_offset, own_start)), _resume_by(older, store, archive, log).missing)
    return replace(point, missing=tuple(joined_ranges([*point.missing, *holes])))


def _resume_by(epochs: LeaderEpochs, store: RemoteWalMetadataStore, archive: ArchiveStore, log: LedLog) -> ResumePoint:
    partition = log.topic_id_partition
    declared = store.declared_gaps(partition)
    begun = [gap.end_in(epochs) for gap in declared if not gap.reason.is_hole]
    holes = ((gap.from_offset, gap.end_in(epochs)) for gap in declared if gap.reason.is_hole)
    known = joined_ranges(
        [*store.stored_ranges(partition, epochs), *_archived_ranges(store, archive, partition, epochs), *holes]
    )
    released = store.released_up_to(partition, epochs)
    if not (known or begun or released):
        return ResumePoint(log.segments[-1] if log.segments else None, (), epochs, is_first=True)
    first = known[0][0] if known else released
    begin = min(begun) if begun else log.segment_of(first)
    if not log.is_archived:
        begin = max(begin, released)
    elif log.segments:
        begin = min(max(begin, log.segments[0]), first)
    next_offset = max(begin, *(end for _, end in known), 0 if log.is_archived else released)
    return ResumePoint(next_offset, tuple(ranges_missing(known, (begin, next_offset))), epochs)


def _archived_ranges(
    store: RemoteWalMetadataStore, archive: ArchiveStore, partition: TopicIdPartition, epochs: LeaderEpochs
) -> Iterator[OffsetRange]:
    offset, dead = 0, None
    while (found := archive.archived_range(partition, epochs, offset)) is not None:
        if not offset:
            dead = store.first_dead_offset(partition, epochs)
        first, offset = found[0], found[1] + 1
        end = offset if dead is None else min(offset, dead)
        if first < end:
            yield first, end
