"""A store for one look at what is known: of a snapshot it takes in only the segments that were told of since.

Theory. Nearly all segments of a snapshot are finished, and stay so until a look is over. Their entries alone are
wanted, and those of a few logs, so they stay in the snapshot (`SnapshotOnlySegments`), to be read there as columns.
Segments that the topic tells of behind the snapshot, those in other states, and those that hold records which a log
lost locally are taken in before these records are applied: so what follows for them, and for logs, is what every store
makes of it. Without a snapshot all is taken in.

`settle` is called once, when everything was read. For one thread at a time.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.declared_gaps import GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.records import (
    MetadataRecord,
    PublishedSegment,
    RemoteWalLogSegmentMetadataUpdate,
    RemoteWalRebuiltSegment,
)
from metadata_topic.records.states import FINISHED
from metadata_topic.store.fencing import Source
from metadata_topic.store.snapshots.snapshot import SegmentPortion, StoredSegments
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.store.store_image import StoreImage
from plugin.format.entry_column_batches import Bools, LogFilter
from plugin.segment_metadata import CombinedSegmentId, RemoteWalCombinedLogSegmentMetadata

_UNLISTED, _LISTED = 1, 2
_Writer = tuple[int, int]


class SnapshotOnlySegments:
    """The finished segments of a snapshot about which the topic has no record after the snapshot."""

    def __init__(self, segments: StoredSegments | None = None) -> None:
        self._segments = segments
        self._marks: dict[_Writer, tuple[int, bytearray]] = {}
        """By writer its first sequence, and a mark for each from there on: an incarnation numbers its objects."""

    def __len__(self) -> int:
        return sum(len(marks) - marks.count(0) for _, marks in self._marks.values())

    def add(self, portion: SegmentPortion, chosen: Bools) -> None:
        """Add the chosen segments of a portion."""
        for writer, sequences in portion.by_writer(chosen):
            first, marks = self._marks.get(writer, (int(sequences[0]), bytearray()))
            begin = min(first, int(sequences.min()))
            grown = bytearray(max(first + len(marks), int(sequences.max()) + 1) - begin)
            grown[first - begin : first - begin + len(marks)] = marks
            np.frombuffer(grown, dtype=np.uint8)[sequences - begin] = _UNLISTED
            self._marks[writer] = begin, grown

    def note_listed(self, segment_id: CombinedSegmentId) -> bool:
        """Note that a listing of the object store has the segment; False if it is none of these."""
        first, marks = self._marks.get(segment_id[:2], (0, b""))
        at = segment_id.sequence - first
        if not 0 <= at < len(marks) or not marks[at]:
            return False
        marks[at] = _LISTED  # type: ignore[index]
        return True

    def portions(self) -> Iterator[tuple[SegmentPortion, Bools, Bools]]:
        """Yield portions of the snapshot, each with a mask of these segments, and a mask of those listed.

        Raises SnapshotError, OSError.
        """
        for portion in self._segments.portions() if self._segments is not None else ():
            marks = np.zeros(len(portion), dtype=np.uint8)
            for writer, sequences in portion.by_writer(np.ones(len(portion), dtype=np.bool_)):
                first, of_writer = self._marks.get(writer, (0, bytearray()))
                at = sequences - first
                is_within = (at >= 0) & (at < len(of_writer))
                known = np.frombuffer(of_writer, dtype=np.uint8)[at[is_within]] if is_within.any() else marks[:0]
                places = np.flatnonzero(portion.is_of(writer))
                marks[places[is_within]] = known
            yield portion, marks != 0, marks == _LISTED


class SparseStore(RemoteWalMetadataStore):
    """A metadata store for one command: of a snapshot's segments it loads only those that the topic mentions
    afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshot_only = SnapshotOnlySegments()
        self._base: tuple[StoreImage, StoredSegments] | None = None
        self._tail: list[tuple[MetadataRecord | None, Source]] = []
        """What the topic told behind the snapshot, until `settle`."""

    def restore(self, image: StoreImage) -> None:
        """Start from the image, but leave its segments unread if they can be read later, on demand."""
        segments = image.segments
        self._base = (image, segments) if isinstance(segments, StoredSegments) else None
        super().restore(image if self._base is None else replace(image, segments=()))

    def apply_all(self, records: Iterable[tuple[MetadataRecord | None, Source]]) -> None:
        """Apply a batch of records, or keep it until `settle` has loaded the segments that it changes."""
        if self._base is not None:
            told = list(records)
            self._tail += told
            records = [(None, source) for _, source in told]
        super().apply_all(records)

    def begin_anew(self) -> None:
        """Start over, because the topic was recreated."""
        self.settle()
        super().begin_anew()

    def settle(self) -> None:
        """Load the snapshot's segments that kept records mention, then apply those records. Raises SnapshotError,
        OSError."""
        if self._base is None:
            return
        (base, segments), self._base = self._base, None
        told = defaultdict[_Writer, set[int]](set)
        gaps = list(base.gaps)
        for record, _ in self._tail:
            if isinstance(record, RemoteWalRebuiltSegment):
                record = record.segment
            if isinstance(
                record, PublishedSegment | RemoteWalCombinedLogSegmentMetadata | RemoteWalLogSegmentMetadataUpdate
            ):
                told[record.combined_segment_id[:2]].add(record.combined_segment_id.sequence)
            elif isinstance(record, RemoteWalGapDeclaration):
                gaps += record.gaps
        lost = {gap.topic_id_partition for gap in gaps if gap.reason is GapReason.LOST_LOCALLY}
        self.snapshot_only = SnapshotOnlySegments(segments)
        with self._lock:
            self._state.restore(replace(base, segments=_LoadedSegments(self.snapshot_only, segments, told, lost)))
        super().apply_all(self._tail)
        self._tail = []

    def declared(self) -> StoreImage:
        """Return all that is known except segments: registrations, gaps, ends of epochs and the like."""
        with self._lock:
            return self._state.image(())


class _LoadedSegments:
    """The segments of a snapshot to be loaded; the others are added to `snapshot_only` while these are read."""

    def __init__(
        self,
        snapshot_only: SnapshotOnlySegments,
        segments: StoredSegments,
        told: defaultdict[_Writer, set[int]],
        lost: set[TopicIdPartition],
    ) -> None:
        self._snapshot_only, self._segments, self._told = snapshot_only, segments, told
        self._lost = LogFilter(lost) if lost else None

    def __len__(self) -> int:
        return len(self._segments) - len(self._snapshot_only)

    def __iter__(self) -> Iterator[PublishedSegment]:
        for portion in self._segments.portions():
            is_loaded = portion.states != int(FINISHED)
            for writer, sequences in portion.by_writer(np.ones(len(portion), dtype=np.bool_)):
                if writer in self._told:
                    wanted = np.fromiter(self._told[writer], dtype=np.int64)
                    is_loaded[portion.is_of(writer)] |= np.isin(sequences, wanted)
            if self._lost is not None:
                is_loaded[portion.find_holders(self._lost, ~is_loaded)] = True
            self._snapshot_only.add(portion, ~is_loaded)
            yield from (portion[at] for at in np.flatnonzero(is_loaded).tolist())
