"""Reads the metadata topic once to its end, and keeps what the store drops: death declarations and upload progress.

The store forgets these with the segments, because nobody else needs them; here they are facts about the logs.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from kafka_cluster.client_config import KafkaClientConfig
from metadata_topic.records.declared_gaps import GapReason
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.records import MetadataRecord, PublishedSegment, RemoteWalLogSegmentMetadataUpdate
from metadata_topic.records.states import FINISHED
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.fencing import Source
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.topic.consumer import RemoteWalMetadataConsumer
from metadata_topic.topic.topic import METADATA_TOPIC
from metadata_topic.topic.topic_follower import ONE_LOOK
from recovery.metadata.epoch_ends import EpochEnds


class NotedMetadata:
    """A store, and where epochs end. Filled by one thread, then read."""

    def __init__(self) -> None:
        self.store: RemoteWalMetadataStore = _NotingStore(self._note)
        self.epoch_ends = EpochEnds()

    def _note(self, record: MetadataRecord) -> None:
        """Evaluate a record before the store: a declaration names a segment that is known then, unless it is
        deleted.
        """
        if isinstance(record, RemoteWalLogSegmentMetadataUpdate):
            named = self.store.segment(record.combined_segment_id)
            self.epoch_ends.add(record, named.entries if named is not None else ())
        elif isinstance(record, RemoteWalGapDeclaration):
            self._note_losses(record)
        elif isinstance(record, PublishedSegment) and record.state is FINISHED:
            # One of a fenced agent may be among them: in doubt more is kept.
            self.epoch_ends.uploaded(record.entry_block, record.event_timestamp_ms)

    def _note_losses(self, record: RemoteWalGapDeclaration) -> None:
        """Evaluate records that a log lost locally: they are held but not the log's, and show where older epochs
        end.
        """
        losses = [gap for gap in record.gaps if gap.reason is GapReason.LOST_LOCALLY]
        self.store.declares(replace(record, gaps=tuple(losses)))
        for loss in losses:
            for run in self.store.held_runs(loss.topic_id_partition):
                if run.entry.leader_epoch < loss.leader_epoch:
                    told = RemoteWalLogSegmentMetadataUpdate(
                        run.combined_segment_id,
                        (run.entry,),
                        record.broker_id,
                        loss.leader_epoch,
                        record.event_timestamp_ms,
                    )
                    named = self.store.segment(run.combined_segment_id)
                    self.epoch_ends.add(told, named.entries if named is not None else ())


class _NotingStore(RemoteWalMetadataStore):
    """Passes each record to a callback as well."""

    def __init__(self, note: Callable[[MetadataRecord], None]) -> None:
        super().__init__()
        self._show = note

    def apply_all(self, records: Iterable[tuple[MetadataRecord | None, Source]]) -> None:
        """Apply records."""
        for record, source in records:
            if record is not None:
                self._show(record)
            super().apply_all([(record, source)])


def read_metadata(client: KafkaClientConfig, timeout_s: float) -> tuple[NotedMetadata, ArchiveStore]:
    """Read everything in the topic. Blocks. Raises MetadataTopicError when its end is not reached in time."""
    noted, archived = NotedMetadata(), ArchiveStore()
    consumer = RemoteWalMetadataConsumer(client, noted.store, ONE_LOOK, archive=archived)
    consumer.start()
    try:
        if not consumer.wait_until_ready(timeout_s):
            raise MetadataTopicError(
                "read",
                METADATA_TOPIC,
                f"not read to its end within {timeout_s:.0f} s",
                "use --from-objects when it is lost",
            )
    finally:
        consumer.close()
    return noted, archived
