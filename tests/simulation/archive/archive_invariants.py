"""What must hold of the archive: what it says it holds is there, and nothing goes that is wanted.

It judges by the bytes that were written, by the topic's records in their order, and by the logs as they are; not by the
product's own index.
"""

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.archive_records import ArchiveObjectCommitted, ArchiveRecord
from metadata_topic.records.publishable import Publishable
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.records.states import DELETED, DELETING, FINISHED
from metadata_topic.store.archive.archive_store import ArchiveStore
from plugin.format.archive_object import check_runs
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.format.combined_segment import HEADER_BYTES, TRAILER_BYTES, decode_footer, locate_footer
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry, RemoteLogSegmentState
from tests.kafka_log.log_writer import BatchKey
from tests.simulation.agent_model import wall_ms_at
from tests.simulation.invariants import Invariants
from tests.simulation.led_log import LedLog
from tests.simulation.life_of_objects import GRACE_MS, TOPIC_GONE_MS, Cluster
from tests.simulation.metadata_topic_model import TopicRecord
from tests.simulation.object_invariants import ObjectInvariants

Held = tuple[TopicIdPartition, BatchKey]


class Stored(Protocol):
    objects: dict[ArchiveObjectId, bytes]


class ArchiveInvariants:
    """Is told of all that happens to archive objects, and raises AssertionError."""

    def __init__(
        self,
        invariants: Invariants,
        combined: ObjectInvariants,
        storage: Stored,
        cluster: Cluster,
        wall_ms: Callable[[], int],
        hit: Callable[[str], None],
    ) -> None:
        self._hit = hit
        self._invariants, self._combined, self._storage = invariants, combined, storage
        self._cluster, self._wall_ms = cluster, wall_ms
        self.batches_in: dict[ArchiveObjectId, list[Held]] = {}
        """Of all objects that were ever written."""
        self._runs: dict[ArchiveObjectId, tuple[RemoteLogSegmentMetadataEntry, ...]] = {}
        self.states: dict[ArchiveObjectId, RemoteLogSegmentState] = {}
        """As the topic tells."""
        self._deleting_ms: dict[ArchiveObjectId, int] = {}
        self._were_committed: set[ArchiveObjectId] = set()
        self._registered = Counter[int]()
        self._holders = Counter[Held]()
        """How many committed objects hold a batch."""

    # The store.

    def written(self, object_id: ArchiveObjectId, raw: bytes) -> None:
        """It is about to be there: the log's own batches, each run what its entry tells."""
        assert object_id not in self.batches_in, f"{object_id} is written twice"
        location = locate_footer(raw[-TRAILER_BYTES:], len(raw))
        _, runs = decode_footer(raw[:HEADER_BYTES], raw[location.start : location.end], location)
        check_runs(object_id, runs)
        log = self._invariants.log(object_id.topic_id_partition)
        batches = self.batches_in[object_id] = []
        for run in runs:
            data = raw[run.start_file_position : run.end_file_position]
            for span in scan_batches(data, 0, len(data)):
                key = BatchKey(run.leader_epoch, span.base_offset)
                assert run.first_offset <= span.base_offset <= span.last_offset <= run.last_offset
                assert log.raw.get(key) == data[span.start : span.end], f"{object_id} has other bytes of {key}"
                batches.append((log.partition, key))
        self._runs[object_id] = tuple(runs)

    def deleted(self, object_id: ArchiveObjectId) -> None:
        state = self.states.get(object_id)
        assert state in (DELETING, DELETED), f"{object_id} is deleted, and the topic does not tell"
        age_ms = self._wall_ms() - self._deleting_ms[object_id]
        assert age_ms >= GRACE_MS, f"{object_id} is deleted {age_ms} ms after that was told"
        if state is DELETED:
            self._hit("archive orphan after its deletion")
        if object_id in self._were_committed:
            assert self._may_go(object_id), f"{object_id} is deleted, and it is wanted"

    # The topic.

    def published(self, record: Publishable) -> None:
        """What is told as committed is there; what is told as being deleted is not wanted."""
        if not isinstance(record, ArchiveRecord):
            return
        object_id = record.object_id
        if isinstance(record, ArchiveObjectCommitted) and self.states.get(object_id) not in (DELETING, DELETED):
            assert object_id in self._storage.objects, f"{object_id} is committed, and not there"
            assert record.runs == self._runs[object_id], f"{object_id} is committed as what it is not"
        state = self.states.get(object_id)
        if record.state is DELETING and state is not FINISHED:
            self._hit("archive orphan" if state is None else "archive object given up")
        if record.state is DELETING and state is FINISHED:
            assert object_id in self._storage.objects, f"{object_id} is taken for lost, and it is"
            assert self._may_go(object_id), f"the deletion of {object_id} begins, and it is wanted"

    def acknowledged(self, record: TopicRecord) -> None:
        if isinstance(record, RemoteWalNodeRegistration):
            self._registered[record.broker_id] = max(self._registered[record.broker_id], record.incarnation)
        if not isinstance(record, ArchiveRecord):
            return
        object_id, before = record.object_id, self.states.get(record.object_id)
        if record.incarnation < self._registered[object_id.writer_id.broker_id]:
            return
        if before is not None and record.state <= before:
            return
        self.states[object_id] = record.state
        if record.state is FINISHED:
            self._were_committed.add(object_id)
            self._holders.update(self.batches_in[object_id])
            self._combined.holds(self.batches_in[object_id])
        elif record.state in (DELETING, DELETED):
            self._deleting_ms.setdefault(object_id, record.event_timestamp_ms)
            if before is FINISHED:
                self._holders.subtract(self.batches_in[object_id])
                self._combined.lets_go(self.batches_in[object_id])

    # What is wanted.

    def holds(self, entry: RemoteLogSegmentMetadataEntry, /) -> bool:
        """Whether what the log still has of a combined segment's entry is in committed objects that are there."""
        partition = entry.topic_id_partition
        log = self._invariants.log(partition)
        return all(
            self._holders[partition, key] > 0
            for key in log.log.present
            if key.leader_epoch == entry.leader_epoch and entry.first_offset <= key.base_offset <= entry.last_offset
        )

    def _may_go(self, object_id: ArchiveObjectId) -> bool:
        partition = object_id.topic_id_partition
        gone_s = self._cluster.gone.get(partition.topic_id)
        if gone_s is not None and self._wall_ms() - wall_ms_at(gone_s) >= TOPIC_GONE_MS:
            return True
        present = self._invariants.log(partition).log.present
        return not any(key in present for _, key in self.batches_in[object_id])

    def left_out(self, log: LedLog) -> list[BatchKey]:
        """What the log has and no committed object holds."""
        return [key for key in log.log.present if self._holders[log.partition, key] <= 0]

    # What agents say.

    def check_index(self, archive: ArchiveStore, log: LedLog) -> None:
        """All that an agent takes for archived of the log is in committed objects that are there."""
        chain = LeaderEpochs(log.log.epochs)
        for key in log.log.present:
            offset = key.base_offset
            told = archive.archived_range(log.partition, chain, offset)
            if told is None or told[0] > offset:
                continue
            found = archive.runs_covering(log.partition, offset, chain)
            assert found, f"{key} is told as archived, and no run has it"
            for run in found:
                object_id = run.object_id
                assert object_id in self._storage.objects, f"{key} is told as archived in {object_id}, and that is gone"
                is_held = (log.partition, key) in self.batches_in[object_id]
                assert is_held, f"{key} is told as archived in {object_id}, and is not there"
