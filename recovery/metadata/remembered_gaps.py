"""What a rebuilt metadata topic says about offsets that are in no object, and need not be.

An agent that only knows the topic takes for missing what lies behind the begin of a log's upload and is in no object
(`rlm.write_path.reading.resume_point`). So the topic gets two things: the declarations, and, before them, up to where
the records of each log were released. Otherwise everything that has expired since the upload began would be declared as
lost.

Released is what snapshots say, and what was in objects that a snapshot knows as finished and that are not stored any
more. If somebody else has deleted those, this counts the same, like an object that an agent finds lost.
"""

from collections import defaultdict
from collections.abc import Sequence

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.states import FINISHED
from metadata_topic.store.released_offsets import ReleasedOffsets
from metadata_topic.store.sequence_set import SequenceSet
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import CombinedSegmentId
from recovery.metadata.remembered_metadata import RememberedMetadata


class ListedObjects:
    """The stored combined segments: a few intervals for each writer."""

    def __init__(self) -> None:
        self._of: defaultdict[tuple[int, int], SequenceSet] = defaultdict(SequenceSet)

    def add(self, segment_id: CombinedSegmentId) -> None:
        """Add a listed segment."""
        self._of[segment_id.broker_id, segment_id.incarnation].add(segment_id.sequence)

    def __contains__(self, segment_id: CombinedSegmentId) -> bool:
        return segment_id.sequence in self._of[segment_id.broker_id, segment_id.incarnation]


def remembered_gaps(remembered: RememberedMetadata, listed: ListedObjects) -> list[DeclaredGap]:
    """Return what was released, where logs began, and then what was declared."""
    image = remembered.store.image()
    released = ReleasedOffsets(image.released)
    for segment in image.segments:
        segment_id = segment.combined_segment_id
        if segment.state is FINISHED and segment_id not in listed and not remembered.store.dead_tails(segment_id):
            released.add(segment.entry_block)
    bounds = [
        DeclaredGap(partition, 0, offset, epoch, GapReason.RELEASED) for partition, epoch, offset in released.all()
    ]
    starts = [
        DeclaredGap(partition, 0, offset, epoch, GapReason.LOG_START) for partition, epoch, offset in image.log_starts
    ]
    return [*bounds, *starts, *image.gaps]


def untold_gaps(gaps: Sequence[DeclaredGap], told: RemoteWalMetadataStore) -> list[DeclaredGap]:
    """Return the gaps that the topic does not have."""
    partitions = {gap.topic_id_partition for gap in gaps}
    declared = {gap for partition in partitions for gap in told.declared_gaps(partition)}
    starts = {(partition, epoch): offset for partition, epoch, offset in told.image().log_starts}
    declared |= {
        gap
        for gap in gaps
        if gap.reason is GapReason.LOG_START
        and starts.get((gap.topic_id_partition, gap.leader_epoch), 0) >= gap.to_offset
    }
    return [gap for gap in gaps if gap not in declared and not _is_known_as_released(gap, told)]


def _is_known_as_released(gap: DeclaredGap, told: RemoteWalMetadataStore) -> bool:
    if gap.reason is not GapReason.RELEASED:
        return False
    of_its_epoch = LeaderEpochs([(gap.leader_epoch, 0)])
    return told.released_up_to(gap.topic_id_partition, of_its_epoch) >= gap.to_offset
