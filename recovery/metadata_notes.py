"""The metadata topic, read once to its end, with what the store does not keep: who declared records dead.

A leader that declares an older epoch's records dead from an offset on (KIP-1176's DELETE events after a failover) says
that its log has another epoch there. If its own epoch is the very next one, its epoch is that one, though it may have
no record yet. If epochs lie between, it is not known which of them begins there, and nothing is concluded.
"""

from collections.abc import Callable, Iterable

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.archive_store import ArchiveStore
from metadata_topic.client_config import KafkaClientConfig
from metadata_topic.consumer import RemoteWalMetadataConsumer
from metadata_topic.errors import MetadataTopicError
from metadata_topic.fencing import Source
from metadata_topic.records import MetadataRecord, RemoteWalLogSegmentMetadataUpdate
from metadata_topic.store import RemoteWalMetadataStore
from metadata_topic.topic import METADATA_TOPIC
from recovery.epoch_ends import EpochEnds
from recovery.log_plan import EpochStart


class NotedMetadata:
    """A store, and where epochs begin and end. Filled by one thread, then read."""

    def __init__(self) -> None:
        self.store: RemoteWalMetadataStore = _NotingStore(self._note)
        self.epoch_ends = EpochEnds()
        self._starts: dict[TopicIdPartition, dict[int, int]] = {}

    def epoch_starts(self) -> dict[TopicIdPartition, list[EpochStart]]:
        """Where epochs begin of which there may be no record."""
        return {
            partition: [EpochStart(epoch, start) for epoch, start in sorted(starts.items())]
            for partition, starts in self._starts.items()
        }

    def _note(self, record: MetadataRecord) -> None:
        if not isinstance(record, RemoteWalLogSegmentMetadataUpdate):
            return
        self.epoch_ends.add(record)
        for entry in record.entries:
            if record.leader_epoch == entry.leader_epoch + 1:
                starts = self._starts.setdefault(entry.topic_id_partition, {})
                starts[record.leader_epoch] = min(
                    entry.first_offset, starts.get(record.leader_epoch, entry.first_offset)
                )


class _NotingStore(RemoteWalMetadataStore):
    """Shows each record to somebody else as well."""

    def __init__(self, note: Callable[[MetadataRecord], None]) -> None:
        super().__init__()
        self._show = note

    def apply_all(self, records: Iterable[tuple[MetadataRecord | None, Source]]) -> None:
        """As the store's."""
        taken = list(records)
        for record, _ in taken:
            if record is not None:
                self._show(record)
        super().apply_all(taken)


def read_metadata(client: KafkaClientConfig, timeout_s: float) -> tuple[NotedMetadata, ArchiveStore]:
    """All that the topic tells. Blocks. Raises MetadataTopicError when its end is not reached in time."""
    noted, archived = NotedMetadata(), ArchiveStore()
    consumer = RemoteWalMetadataConsumer(client, noted.store, archive=archived)
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
