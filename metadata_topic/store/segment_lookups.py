"""What is known of single combined segments, and of all of them one after the other."""

import threading
from collections.abc import Iterator, Mapping

from metadata_topic.records.records import PublishedSegment
from metadata_topic.records.states import DELETED, FINISHED
from metadata_topic.store.dead_tails import PartitionAndEpoch
from metadata_topic.store.segment_facts import page_facts, writer_facts
from metadata_topic.store.segments.segment_table import Writer
from metadata_topic.store.store_state import StoreState
from plugin.router_object_id import RouterObjectId
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState, RemoteWalCombinedLogSegmentMetadata


class SegmentLookups:
    """What is asked of a store by segment."""

    _lock: threading.RLock
    _state: StoreState

    def state_of(self, combined_segment_id: CombinedSegmentId) -> RemoteLogSegmentState | None:
        """None when nothing is known of it."""
        with self._lock:
            writer = self._state.table.find_writer(combined_segment_id)
            if writer is None:
                return None
            if combined_segment_id.sequence in writer.deleted:
                return DELETED
            segment = self._state.table.find(combined_segment_id)
            return segment.state if segment else None

    def segment(self, combined_segment_id: CombinedSegmentId) -> RemoteWalCombinedLogSegmentMetadata | None:
        """None when nothing is known of it, or it is deleted."""
        known = self.published_segment(combined_segment_id)
        return known.metadata if known else None

    def published_segment(self, combined_segment_id: CombinedSegmentId) -> PublishedSegment | None:
        """The same, with the entries left as bytes."""
        with self._lock:
            known = self._state.table.find(combined_segment_id)
            return self._state.table.published(known) if known else None

    def segments(
        self, state: RemoteLogSegmentState | None = None, broker_id: int | None = None
    ) -> Iterator[RemoteWalCombinedLogSegmentMetadata]:
        """The segments that are not deleted, by writer and sequence; each as it is when it is reached."""
        return (known.metadata for known in self.published_segments(state, broker_id))

    def published_segments(
        self, state: RemoteLogSegmentState | None = None, broker_id: int | None = None
    ) -> Iterator[PublishedSegment]:
        """The same, with the entries left as bytes: for whoever looks at all of them."""
        with self._lock:
            writers = self._state.table.writers(broker_id)
        for writer in writers:
            with self._lock:
                pages = sorted(writer.pages)
            for sequence in (one for page in pages for one in self._sequences(writer, page, state)):
                with self._lock:
                    known = self._state.table.find(writer.id_of(sequence))
                    if known is None or state not in (None, known.state):
                        continue
                    found = self._state.table.published(known)
                yield found

    def _sequences(self, writer: Writer, page: int, state: RemoteLogSegmentState | None) -> list[int]:
        with self._lock:
            facts = page_facts(self._state.table, writer, page)
        wanted: list[int] = facts["sequence"][slice(None) if state is None else facts["state"] == state].tolist()
        return wanted

    def dead_tails(self, combined_segment_id: CombinedSegmentId) -> Mapping[PartitionAndEpoch, int]:
        """By partition and leader epoch, the offset from which on the segment's entries are dead."""
        with self._lock:
            return dict(self._state.dead_tails.of(combined_segment_id))

    def is_fenced(self, combined_segment_id: CombinedSegmentId) -> bool:
        """Whether the segment was refused because its writer was fenced; its object, if any, is an orphan.

        False once it is deleted, and for segments that were known before their writer was fenced.
        """
        with self._lock:
            writer = self._state.table.find_writer(combined_segment_id)
            sequence = combined_segment_id.sequence
            return writer is not None and sequence in writer.fenced and sequence not in writer.deleted

    def told_until_ms(self, broker_id: int) -> int | None:
        """When one of the broker's newest uploads ended that are told of, by its own clock; None when none is known."""
        with self._lock:
            for writer in reversed(self._state.table.writers(broker_id)):
                for facts in writer_facts(self._state.table, writer, newest_first=True):
                    if len(finished := facts["event_timestamp_ms"][facts["state"] == FINISHED]):
                        return int(finished[-1])
        return None

    def naming(self, source: RouterObjectId) -> frozenset[CombinedSegmentId]:
        """The segments, not deleted, some of whose batches are in this object of a gateway."""
        with self._lock:
            return self._state.adopted.naming(source)
