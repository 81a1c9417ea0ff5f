"""What must hold after every step, whatever has failed and whoever has died."""

from collections.abc import Sequence

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.declared_gaps import GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.publishable import Publishable
from metadata_topic.records.records import PublishedSegment
from metadata_topic.records.states import FINISHED
from plugin.adopted_records import RecordsList
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteWalCombinedLogSegmentMetadata,
)
from rlm.write_path.uploads.segment_queue import UploadedSegment
from tests.kafka_log.log_writer import BatchKey, WrittenBatch
from tests.simulation.agent_model import LIMITS, QUEUE_BYTES, UPLOAD_BYTES, UPLOADS_MAX, AgentModel
from tests.simulation.led_log import LedLog
from tests.simulation.seeded_storage import SeededStorage

LONGEST_BATCH = 1400
_NOWHERE = BatchKey(-1, 0)


class Invariants:
    """Is told of all that happens, and raises AssertionError."""

    def __init__(self, logs: dict[TopicIdPartition, LedLog], storage: SeededStorage) -> None:
        self._logs = logs
        self._storage = storage
        self.batches_in: dict[CombinedSegmentId, list[tuple[TopicIdPartition, BatchKey]]] = {}
        """Of all objects that were ever written."""
        self._told: dict[TopicIdPartition, set[BatchKey]] = {partition: set() for partition in logs}
        """What the topic tells as stored."""
        self._last_finished: dict[tuple[int, int], int] = {}
        self.agents: list[AgentModel] = []
        """Those that live."""
        storage.on_put = self._put

    # The store.

    def _put(self, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: RecordsList) -> None:
        """Batches stored are the log's own bytes, and an entry tells what they are."""
        segment_id = metadata.combined_segment_id
        assert self._storage.puts[segment_id] == 1, f"{segment_id} is written twice"
        batches = self.batches_in[segment_id] = []
        for entry, records in zip(metadata.entries, records_list, strict=True):
            log, found = self._logs[entry.topic_id_partition], bytes(records)
            offset, position = entry.first_offset, 0
            while position < len(found):
                base = int.from_bytes(found[position : position + 8], "big")
                assert base >= offset, f"{segment_id} has offset {base} where {offset} is expected"
                key = BatchKey(entry.leader_epoch, base)
                raw = log.raw.get(key, b"")
                assert raw, f"{segment_id} has a batch that no log had: {key}"
                assert found.startswith(raw, position), f"{segment_id} has other bytes of {key}"
                batches.append((entry.topic_id_partition, key))
                position += len(raw)
                offset = base + 1
            assert batches[-1][1].base_offset <= entry.last_offset

    # The topic.

    def published(self, agent: AgentModel, record: Publishable) -> None:
        """Metadata goes out in the order of the objects, of objects that are there."""
        if isinstance(record, RemoteWalGapDeclaration):
            self._gaps_declared(record)
        if not isinstance(record, RemoteWalCombinedLogSegmentMetadata) or record.state is not FINISHED:
            return
        segment_id = record.combined_segment_id
        assert segment_id in self._storage.objects, f"{segment_id} is told of and not there"
        assert segment_id in agent.stored_ids or segment_id in self.batches_in
        writer, sequence = segment_id[:2], segment_id.sequence
        assert self._last_finished.get(writer, -1) < sequence, f"{segment_id} is told of after a later one"
        self._last_finished[writer] = sequence

    def _gaps_declared(self, record: RemoteWalGapDeclaration) -> None:
        for gap in record.gaps:
            if gap.reason.is_loss or gap.reason is GapReason.COMPACTED:
                for batch in self._logs[gap.topic_id_partition].log.batches:
                    is_said = batch.leader_epoch <= gap.leader_epoch
                    covers = gap.from_offset <= batch.base_offset < gap.to_offset
                    assert not (is_said and covers), f"{gap} is not lost: the log has {batch.key}"

    def acknowledged(self, record: PublishedSegment) -> None:
        """The topic tells of a finished object, that nobody has told to be deleted before."""
        for partition, key in self.batches_in[record.combined_segment_id]:
            self._told[partition].add(key)
            self._logs[partition].gone.pop(key, None)
            for agent in self.agents:
                agent.unstored[partition].pop(key, None)

    def released(self, partition: TopicIdPartition, key: BatchKey) -> None:
        """The last object that held the batch is about to go, as it is time for it."""
        self._told[partition].discard(key)
        self._logs[partition].not_wanted.add(key)

    def not_stored_any_more(
        self, segment_id: CombinedSegmentId, batches: Sequence[tuple[TopicIdPartition, BatchKey]]
    ) -> None:
        """An object is about to go that the topic never told to be finished, and whoever stored it may count on it."""
        for agent in self.agents:
            if segment_id in agent.stored_ids:
                for partition, key in batches:
                    log = self._logs[partition]
                    if (found := log.log.present.get(key) or log.gone.get(key)) is not None:
                        agent.unstored[partition][key] = found

    def log(self, partition: TopicIdPartition) -> LedLog:
        return self._logs[partition]

    def made(self, log: LedLog) -> None:
        self._told[log.partition] = set()
        for agent in self.agents:
            agent.unstored[log.partition] = {}

    # The agents.

    def began(self, agent: AgentModel) -> None:
        """An incarnation is there, and knows what the topic tells."""
        self.agents.append(agent)
        for partition, log in self._logs.items():
            told = self._told[partition]
            all_batches = log.log.present | log.gone
            agent.unstored[partition] = {key: batch for key, batch in all_batches.items() if key not in told}
        agent.on_object_stored = lambda segment_id: self._stored(agent, segment_id)

    def _stored(self, agent: AgentModel, segment_id: CombinedSegmentId) -> None:
        for partition, key in self.batches_in.get(segment_id, ()):
            agent.unstored[partition].pop(key, None)

    def heard(self, agent: AgentModel, segment: UploadedSegment) -> None:
        """Listeners are told of what is stored, and where in the object it is; not of what was cut off meanwhile."""
        segment_id = segment.combined_segment_id
        assert segment_id in self._storage.objects, f"{segment_id} is told of before its PUT has taken effect"
        for item, entry in zip(segment.items, segment.entries, strict=True):
            stored = self._storage.records_of(segment_id, entry)
            assert stored.startswith(bytes(item.records)), f"{segment_id} is other"
        self.check(agent)

    # The logs.

    def appended(self, log: LedLog, batch: WrittenBatch) -> None:
        for agent in self.agents:
            agent.unstored[log.partition][batch.key] = batch

    def rewritten(self, log: LedLog) -> None:
        """The log was cut, or compacted: nobody wants what it has not any more, but for what retention took."""
        kept = log.log.present
        for agent in self.agents:
            unstored = agent.unstored[log.partition]
            for key in [key for key in unstored if key not in kept and key not in log.gone]:
                del unstored[key]

    # Always.

    def check_all(self) -> None:
        for agent in self.agents:
            self.check(agent)

    def check(self, agent: AgentModel) -> None:
        self._check_bounds(agent)
        for partition in agent.manager.led():
            uploaded = agent.manager.uploaded_offset(partition)
            assert uploaded is not None
            log = self._logs[partition]
            cuts = log.cuts[agent.cuts_seen(partition) :]
            left = self.left_out(agent, log, min([uploaded, *cuts]))
            assert not left, f"{_name(agent)} tells {uploaded} of {partition.partition} as uploaded, without {left[:5]}"

    def left_out(self, agent: AgentModel, log: LedLog, below: int) -> list[BatchKey]:
        """What is wanted, and neither stored nor declared."""
        unstored = agent.unstored[log.partition]
        if log.is_deleted or not unstored:
            return []
        wanted_from = max(log.begin or 0, log.released_to())
        begun = agent.begun.get(log.partition, _NOWHERE)
        left = [
            key
            for key in unstored
            if wanted_from <= key.base_offset < below
            and key not in log.not_wanted
            and (key.base_offset >= begun.base_offset or key.leader_epoch > begun.leader_epoch)
        ]
        lost = [key for key in left if key in log.gone and _is_declared(agent, log, key)]
        for key in lost:
            del unstored[key]
        return [key for key in left if key not in lost]

    def _check_bounds(self, agent: AgentModel) -> None:
        load = agent.manager.load()
        carried = UPLOADS_MAX * (UPLOAD_BYTES + LONGEST_BATCH)
        assert load.queued_bytes <= QUEUE_BYTES + LONGEST_BATCH + carried, f"{load.queued_bytes} bytes are queued"
        for led in agent.manager.led().values():
            held = sum(len(item.records) for item in led.passed_over.items) if led.passed_over is not None else 0
            assert held <= UPLOAD_BYTES + LONGEST_BATCH, f"{held} bytes are held of what was passed over"
        assert load.uploads <= UPLOADS_MAX
        assert load.open_files <= LIMITS.open_files


def _is_declared(agent: AgentModel, log: LedLog, key: BatchKey) -> bool:
    return any(
        gap.reason.is_loss
        and gap.from_offset <= key.base_offset < gap.to_offset
        and key.leader_epoch <= gap.leader_epoch
        for gap in agent.store.declared_gaps(log.partition)
    )


def _name(agent: AgentModel) -> str:
    return f"agent {agent.broker_id}.{agent.incarnation}"
