"""What must hold of replicas and links after every step, whatever has failed and whoever has died."""

from collections.abc import Sequence

from kafka_log.crc32c import crc32c
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.publishable import Publishable
from plugin.adopted_records import RecordsList
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState, RemoteWalCombinedLogSegmentMetadata
from replication.wire.link import LinkedResponse
from rlm.write_path.uploads.segment_queue import UploadedSegment
from tests.kafka_log.log_writer import BatchKey, WrittenBatch
from tests.simulation.replicas.agent_process import AgentProcess
from tests.simulation.replicas.kafka_frames import Answered, FetchRequest, FetchResponse
from tests.simulation.replicas.replica import Replica
from tests.simulation.replicas.replica_storage import ReplicaStorage


class ReplicaInvariants:
    """Is told of all that happens, and raises AssertionError."""

    def __init__(self, partitions: int, storage: ReplicaStorage) -> None:
        self._storage = storage
        self._written: list[dict[BatchKey, tuple[bytes, set[BatchKey]]]] = [{} for _ in range(partitions)]
        """All that leaders ever wrote, and what it may come after."""
        self.stored: list[set[BatchKey]] = [set() for _ in range(partitions)]
        """What is in some object, or was."""
        self.acknowledged: list[dict[BatchKey, None]] = [{} for _ in range(partitions)]
        """What a producer may rely on."""
        self._compacted: list[set[BatchKey]] = [set() for _ in range(partitions)]
        """What some broker's cleaner has taken: nobody wants it any more, though others have it still."""
        self._unclean_epochs = [0] * partitions
        """That of the last unclean election: who led before may acknowledge yet, and it is lost as well."""
        self._sizes: dict[CombinedSegmentId, int] = {}
        self._sent: dict[tuple[int, ...], FetchResponse] = {}
        """By the request, what leaders have answered."""
        self._checked: dict[tuple[AgentProcess, int], tuple[int, int]] = {}
        """How often the log had been rewritten, and up to where it was looked at."""
        self.rewrites: dict[int, int] = {}
        """By replica: how often its log was cut."""
        self._last_finished: dict[tuple[int, int], int] = {}
        storage.on_put = self._put
        storage.on_get = self._get

    # The store.

    def _put(self, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: RecordsList) -> None:
        segment_id = metadata.combined_segment_id
        assert self._storage.puts[segment_id] == 1, f"{segment_id} is written twice"
        self._sizes[segment_id] = len(self._storage.objects[segment_id])
        for entry, records in zip(metadata.entries, records_list, strict=True):
            number, found, position = entry.topic_id_partition.partition, bytes(records), 0
            while position < len(found):
                key = BatchKey(entry.leader_epoch, int.from_bytes(found[position : position + 8], "big"))
                raw, _ = self._written[number].get(key, (b"", set()))
                assert raw, f"{segment_id} has a batch that no leader wrote: {key}"
                assert found.startswith(raw, position), f"{segment_id} has other bytes of {key}"
                self.stored[number].add(key)
                position += len(raw)

    def _get(self, segment_id: CombinedSegmentId, start: int, end: int) -> None:
        """Who is given a link, or an announcement, finds what it names."""
        assert segment_id in self._sizes, f"{segment_id} is named to a follower before its PUT has taken effect"
        assert 0 <= start < end <= self._sizes[segment_id], f"[{start}, {end}) is not within {segment_id}"

    def linked(self, response: LinkedResponse) -> None:
        """A link names bytes of a finished object, and those that the leader's broker has sent."""
        for link in response.links:
            assert isinstance(link.object_id, CombinedSegmentId)
            self._get(link.object_id, link.start_position, link.end_position)
            stored = self._storage.objects.get(link.object_id)  # None: against all promises it is lost
            is_same = stored is None or crc32c(stored[link.start_position : link.end_position]) == link.crc32c
            assert is_same, f"a link to {link.object_id} names other bytes than the response has"

    def heard(self, segment: UploadedSegment) -> None:
        stored = self._storage.puts[segment.combined_segment_id]
        assert stored, f"{segment.combined_segment_id} is told of before its PUT has taken effect"

    def published(self, record: Publishable) -> None:
        if (
            isinstance(record, RemoteWalCombinedLogSegmentMetadata)
            and record.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        ):
            segment_id = record.combined_segment_id
            assert self._storage.puts[segment_id], f"{segment_id} is told of and not there"
            writer = segment_id[:2]
            assert self._last_finished.get(writer, -1) < segment_id.sequence, (
                f"{segment_id} is told of after a later one"
            )
            self._last_finished[writer] = segment_id.sequence

    # The logs.

    def produced(self, partition: int, batch: WrittenBatch, before: BatchKey | None) -> None:
        history, key = self._written[partition], batch.key
        assert key not in history, f"{key} is written twice"
        history[key] = (batch.raw, set() if before is None else {before})

    def followed(self, partition: int, batch: WrittenBatch, before: BatchKey | None, leaders_start: int) -> None:
        """A follower's log repeats it, batch by batch, byte by byte (KIP-101).

        But for what the leader has deleted: a follower that diverged there is not told of it. And but for what a
        cleaner has taken, from the leader's log or its own.
        """
        history, key = self._written[partition], batch.key
        assert key in history, f"a follower has {key}, which no leader wrote"
        raw, known_before = history[key]
        assert raw == batch.raw, f"a follower has other bytes of {key}"
        if before is None or not known_before or key.base_offset <= leaders_start:
            known_before |= {before} if before is not None else set()
            return
        assert self._may_precede(partition, before, known_before), (
            f"a follower has {key} after {before}, and leaders after {known_before}"
        )

    def _may_precede(self, partition: int, before: BatchKey, known_before: set[BatchKey]) -> bool:
        """Whether `before` is one of these, or stands before such of them as were compacted away."""
        history, compacted = self._written[partition], self._compacted[partition]
        asked, looked_at = list(known_before), set[BatchKey]()
        if before in compacted:
            return True
        while asked:
            key = asked.pop()
            if key == before:
                return True
            if key in compacted and key not in looked_at:
                looked_at.add(key)
                asked += history[key][1]
        return False

    def rewritten(self, replica: Replica) -> None:
        self.rewrites[id(replica)] = self.rewrites.get(id(replica), 0) + 1

    def compacted(self, partition: int, removed: Sequence[BatchKey]) -> None:
        """A broker's cleaner has taken these, as newer records have their keys."""
        self._compacted[partition].update(removed)
        for key in removed:
            self.acknowledged[partition].pop(key, None)

    def is_compacted(self, partition: int, key: BatchKey) -> bool:
        """Whether some broker's cleaner has taken it."""
        return key in self._compacted[partition]

    def acknowledge(self, partition: int, keys: Sequence[BatchKey], leader: Replica | None) -> None:
        """A producer is told that its records are safe."""
        keys = [
            key
            for key in keys
            if key.leader_epoch >= self._unclean_epochs[partition] and key not in self._compacted[partition]
        ]
        for key in keys:
            self.acknowledged[partition][key] = None
        if leader is not None and keys:
            self.elected(partition, leader, from_offset=min(key.base_offset for key in keys))

    def deleted(self, partition: int, leaders_start: int) -> None:
        """A leader's retention took what lies below; of a follower that diverged there nobody can tell any more."""
        for key in [key for key in self.acknowledged[partition] if key.base_offset < leaders_start]:
            del self.acknowledged[partition][key]

    def elected(self, partition: int, leader: Replica, from_offset: int = 0) -> None:
        """Who leads by a clean election has all that was acknowledged."""
        lost = self._lost(partition, leader, from_offset)
        assert not lost, f"{lost[:3]} were acknowledged, and the leader of {partition} has them not"

    def elected_unclean(self, partition: int, leader: Replica, epoch: int) -> int:
        """What it has not is lost, as Kafka has it. How much that is."""
        self._unclean_epochs[partition] = epoch
        lost = self._lost(partition, leader, 0)
        for key in lost:
            del self.acknowledged[partition][key]
        return len(lost)

    def _lost(self, partition: int, leader: Replica, from_offset: int) -> list[BatchKey]:
        start = max(from_offset, leader.start)
        had = {batch.key for batch in leader.batches_from(start)}
        return [key for key in self.acknowledged[partition] if key.base_offset >= start and key not in had]

    # Responses.

    def answered(self, request: FetchRequest, response: FetchResponse) -> None:
        self._sent[_name_of(request)] = response

    def received(self, request: FetchRequest, response: FetchResponse) -> None:
        """A follower's broker gets what the leader's broker sent, but for records at the end of a partition's."""
        name = f"response {request.correlation_id} to broker {request.replica_id}"
        sent = self._sent.pop(_name_of(request), None)
        assert sent is not None, f"{name} was never sent"
        assert (response.error, response.session_id) == (sent.error, sent.session_id), f"{name} is another"
        assert len(response.answered) == len(sent.answered), f"{name} has other partitions"
        for got, given in zip(response.answered, sent.answered, strict=True):
            self._same(name, got, given)

    def _same(self, name: str, got: Answered, given: Answered) -> None:
        assert got._replace(records=b"") == given._replace(records=b""), f"{name} is changed: {got} for {given}"
        assert given.records.startswith(got.records), f"{name} has other records of {got.partition}"

    # The agents.

    def check(self, agent: AgentProcess, replicas: Sequence[Replica], begins: Sequence[int]) -> None:
        """What counts as uploaded is in the store. `begins`: where uploading of each partition began."""
        manager = agent.writing.manager
        for partition in manager.led():
            number, uploaded = partition.partition, manager.uploaded_offset(partition)
            assert uploaded is not None
            replica = replicas[number]
            below = min([uploaded, *replica.files.cuts[agent.writing.cuts_seen(partition) :]])
            rewrites = self.rewrites.get(id(replica), 0)
            before, looked_to = self._checked.get((agent, number), (rewrites, 0))
            if before != rewrites or looked_to > below:
                looked_to = 0
            for batch in replica.batches_from(max(looked_to, begins[number])):
                if batch.last_offset >= below:
                    break
                key = batch.key
                is_wanted = not self.is_compacted(number, key)
                assert not is_wanted or key in self.stored[number] or _is_lost(agent, partition, key), (
                    f"{agent.name} tells {uploaded} of {number} as uploaded, without {key}"
                )
                looked_to = batch.last_offset + 1
            self._checked[agent, number] = (rewrites, looked_to)


def _name_of(request: FetchRequest) -> tuple[int, ...]:
    """Two connections of one replica, to two leaders, may be at the same correlation id."""
    return request.replica_id, request.correlation_id, request.session_id, request.session_epoch


def _is_lost(agent: AgentProcess, partition: TopicIdPartition, key: BatchKey) -> bool:
    """Whether an earlier leader has declared it lost, whose log did not have it any more."""
    return any(
        gap.reason.is_loss
        and gap.from_offset <= key.base_offset < gap.to_offset
        and key.leader_epoch <= gap.leader_epoch
        for gap in agent.writing.store.declared_gaps(partition)
    )
