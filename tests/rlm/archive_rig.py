"""An archiving agent in virtual time: memory storage, a metadata topic that is a list, and a log to compare with."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from kafka_log.batch_digests import records_digest
from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records import archive_records
from metadata_topic.records.archive_records import ArchiveRecord
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.archive_storage import ArchiveStorage, StoredArchiveObject
from plugin.errors import RemoteResourceNotFoundError, RemoteSegmentCorruptError
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.format.combined_segment import (
    HEADER_BYTES,
    TRAILER_BYTES,
    SealedCombinedSegment,
    decode_footer,
    locate_footer,
)
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from plugin.store_loop import ask
from plugin.wall_clock import Clocks
from rlm.archive.archive_care import ArchiveCare, CareDuties, CareLimits
from rlm.archive.archive_plan import ArchiveLimits, LogView
from rlm.archive.archive_task import ArchiveSources, ArchiveTaskLimits, RLMArchiveTask
from rlm.lifecycle.release import ClusterView
from rlm.write_path.metrics import ArchiveMetrics
from rlm.write_path.runtime import Runtime
from tests.kafka_log.batches import batch
from tests.rlm.memory_storage import MemoryStorage

ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 3)
OTHER = TopicIdPartition(TopicId(b"payments".ljust(16)), 0)
TTL_MS = 10_000
GRACE_MS = 1_000


class MemoryArchive(ArchiveStorage):
    def __init__(self) -> None:
        self.objects: dict[ArchiveObjectId, bytes] = {}
        self.write_faults: list[Exception] = []
        self.now_ms = 0

    async def write(self, object_id: ArchiveObjectId, sealed: SealedCombinedSegment) -> None:
        assert object_id not in self.objects, "an id is used once"
        if self.write_faults:
            raise self.write_faults.pop(0)
        self.objects[object_id] = b"".join(sealed.chunks)

    async def fetch(self, object_id: ArchiveObjectId, start_position: int, end_position: int) -> bytes:
        if object_id not in self.objects:
            raise RemoteResourceNotFoundError("get", str(object_id), "not there")
        return self.objects[object_id][start_position:end_position]

    async def fetch_runs(self, stored: StoredArchiveObject) -> tuple[RemoteLogSegmentMetadataEntry, ...]:
        raw = self.objects[stored.object_id]
        try:
            location = locate_footer(raw[-TRAILER_BYTES:], len(raw))
            _, runs = decode_footer(raw[:HEADER_BYTES], raw[location.start : location.end], location)
        except ValueError as error:
            raise RemoteSegmentCorruptError("fetch metadata", stored.key, str(error)) from error
        return runs

    async def delete(self, object_id: ArchiveObjectId) -> None:
        self.objects.pop(object_id, None)

    async def list(
        self, topic_id_partition: TopicIdPartition | None = None
    ) -> AsyncIterator[list[StoredArchiveObject]]:
        yield [StoredArchiveObject(object_id, "", len(raw), self.now_ms) for object_id, raw in self.objects.items()]


@dataclass(slots=True)
class Outside:
    """What outlives an agent: stores, the metadata topic's records, and time."""

    log: list[tuple[int, int, bytes]]
    """(base offset, epoch, batch) of the leader's log."""
    epochs: tuple[tuple[int, int], ...]
    wal: RemoteWalMetadataStore = field(default_factory=RemoteWalMetadataStore)
    wal_storage: MemoryStorage = field(default_factory=MemoryStorage)
    archive_storage: MemoryArchive = field(default_factory=MemoryArchive)
    topic: list[tuple[bytes, bytes]] = field(default_factory=list)
    now_s: float = 1_000.0
    start_offset: int = 0
    next_segment: int = 0

    def wall_ms(self) -> int:
        return round(self.now_s * 1000)

    def upload(self, *runs: Sequence[tuple[int, int, bytes]], broker_id: int = 1) -> CombinedSegmentId:
        """One combined segment; each run is batches of one epoch. The partition OTHER rides along."""
        segment_id = CombinedSegmentId(broker_id, 1, self.next_segment)
        self.next_segment += 1
        stranger = batch(self.next_segment, 1, 0, b"other")
        pieces = [(ORDERS, run[0][0], run[0][1], b"".join(raw for _, _, raw in run)) for run in runs]
        pieces.insert(1, (OTHER, self.next_segment, 0, stranger))
        entries = []
        for partition, first, epoch, raw in pieces:
            last = scan_batches(raw, 0, len(raw))[-1].last_offset
            entries.append(RemoteLogSegmentMetadataEntry(partition, epoch, first, last, -1, -1, 0, records_digest(raw)))
        metadata = RemoteWalCombinedLogSegmentMetadata(
            segment_id, tuple(entries), RemoteLogSegmentState.COPY_SEGMENT_STARTED, self.wall_ms()
        )
        update = ask(self.wal_storage.copy_log_segment_data(metadata, [raw for *_, raw in pieces]))
        self.wal.apply(
            RemoteWalCombinedLogSegmentMetadata(
                segment_id, update.entries, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, self.wall_ms(),
                update.size_bytes,
            )
        )  # fmt: skip
        return segment_id


class Agent:
    """One incarnation, with a store rebuilt from the topic."""

    def __init__(self, outside: Outside, incarnation: int, **limits: int) -> None:
        self.outside = outside
        self.incarnation = incarnation
        self.archive = ArchiveStore()
        self.read_topic()
        self.full = 0
        """So many publications are refused."""
        plan = ArchiveLimits(
            limits.pop("max_bytes", 1 << 20), limits.pop("max_age_ms", 1 << 40), limits.pop("min_bytes", 1), 0
        )
        self.slept: list[float] = []
        metrics = ArchiveMetrics(CollectorRegistry())
        self.metrics = metrics
        self.topic_is_read, self.topic_doubt = True, ""
        sources = ArchiveSources(
            "cluster",
            outside.wal_storage,
            outside.wal,
            self.archive,
            self,
            lambda: self.topic_is_read,
            lambda: self.topic_doubt,
        )
        self.task = RLMArchiveTask(
            sources,
            outside.archive_storage,
            CombinedSegmentId(1, incarnation, 0),
            ArchiveTaskLimits(
                plan,
                limits.pop("bytes_per_s", 1 << 40),
                bool(limits.pop("digests", 0)),
                retry_max_s=8.0,
                threads=limits.pop("threads", 1),
                prepared_ttl_ms=TTL_MS,
                run_bytes=limits.pop("run_bytes", 200),
            ),
            metrics,
            Runtime(Clocks(lambda: outside.now_s, outside.wall_ms)),
            self._sleep,
        )
        assert not limits
        times = CareLimits(GRACE_MS, 3_600_000, TTL_MS)
        self.care = ArchiveCare(sources, outside.archive_storage, times, metrics)
        self.task.assign([(ORDERS, lambda: LogView(outside.start_offset, outside.epochs))])

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.outside.now_s += seconds
        await asyncio.sleep(0)

    def publish(self, record: ArchiveRecord) -> None:
        from metadata_topic.records.errors import PublicationBacklogFullError

        if self.full:
            self.full -= 1
            raise PublicationBacklogFullError("publish", str(record.object_id), "planted")
        self.outside.topic.append((archive_records.encode_key(record.object_id), archive_records.encode(record)))

    def read_topic(self) -> None:
        for key, value in self.outside.topic:
            self.archive.apply(archive_records.decode(key, value))

    async def archive_all(self) -> int:
        """Process until nothing is due for a while; the topic is read in between."""
        made = 0
        for _ in range(50):
            now = await self.task.run_due()
            made += now
            self.read_topic()
            self.outside.now_s += 60
            if not now and _ > 1:
                return made
        raise AssertionError("it never comes to rest")

    def take_care(self, rounds: int = 3) -> None:
        duties = CareDuties({1: self.incarnation}, ClusterView())
        for _ in range(rounds):
            self.care.run_once(self.outside.wall_ms(), duties, self.task.unsettled)
            self.read_topic()
            self.outside.now_s += (TTL_MS + GRACE_MS) / 1000

    def archived_bytes(self) -> bytes:
        """Everything that is committed, in the order of offsets."""
        chain = LeaderEpochs(self.outside.epochs)
        found, offset = b"", 0
        while (archived := self.archive.archived_range(ORDERS, chain, offset)) is not None:
            offset = archived[0]
            run = self.archive.runs_covering(ORDERS, offset, chain)[0]
            raw = self.outside.archive_storage.objects[run.object_id]
            raw = raw[run.run.start_file_position : run.run.end_file_position]
            found += b"".join(
                raw[span.start : span.end] for span in scan_batches(raw, 0, len(raw))
                if span.base_offset >= offset and chain.epoch_at(span.base_offset) == span.leader_epoch
            )  # fmt: skip
            end = chain.end_of(run.run.leader_epoch)
            offset = min(run.run.last_offset + 1, end if end is not None else 2**62)
        return found


def plain_log(batches: int, first: int = 0, epoch: int = 0, records: int = 2) -> list[tuple[int, int, bytes]]:
    return [(first + n * records, epoch, batch(first + n * records, records, epoch, b"%d" % n)) for n in range(batches)]
