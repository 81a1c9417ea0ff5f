"""One partition's log, the metadata topic, and agents one after the other, step by step and without threads.

The log's files, the task, the queue, the led partition and the metadata store are the real ones. Uploads end in any
order, with or without effect; metadata goes out in the order of the objects' sequence; an agent that crashes takes
along all that it has in memory. What the world itself remembers is what should hold: which records were stored, and
which of the log's have gone.
"""

from dataclasses import dataclass, field
from pathlib import Path

from kafka_log.broker_files.leader_epoch_checkpoint import read_leader_epochs
from kafka_log.open_files import OpenFiles
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.settings.topic_settings import LinkPolicy
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from rlm.write_path.assignment import Assignment
from rlm.write_path.core.led_partition import LedPartition, PassedOver
from rlm.write_path.reading.resume_point import resume_point
from rlm.write_path.reading.wal_task import RLMWalTask
from rlm.write_path.uploads.segment_queue import MetaQueueItem, RemoteSegmentQueue, reading_order
from tests.kafka_log.log_writer import LogWriter, WrittenBatch
from tests.metadata_topic.store_oracles import read_snapshot, write_snapshot

PARTITION = TopicIdPartition(TopicId(b"w" * 16), 0)
FINISHED, DELETING = RemoteLogSegmentState.COPY_SEGMENT_FINISHED, RemoteLogSegmentState.DELETE_SEGMENT_STARTED
Record = tuple[int, int]
"""Leader epoch and offset."""


@dataclass
class Upload:
    segment_id: CombinedSegmentId
    items: list[MetaQueueItem]


def records_of(batches: list[WrittenBatch]) -> set[Record]:
    return {(b.leader_epoch, offset) for b in batches for offset in range(b.base_offset, b.last_offset + 1)}


@dataclass
class UploadWorld:
    directory: Path
    log: LogWriter = field(init=False)
    store: RemoteWalMetadataStore = field(default_factory=RemoteWalMetadataStore)
    epoch: int = 0
    stored: set[Record] = field(default_factory=set)
    """In an object whose upload is known to have succeeded."""
    lost: set[Record] = field(default_factory=set)
    """That retention has removed from the log."""
    begin: int | None = None
    released_to: int = 0
    finished: list[RemoteWalCombinedLogSegmentMetadata] = field(default_factory=list)
    """Told, and not released; the oldest first."""
    incarnation: int = 0
    agent_looked: bool = True
    """At the log, since the last election."""

    def __post_init__(self) -> None:
        self.log = LogWriter(self.directory / "t-0")
        self.append(1)
        self.start_agent()

    # The broker.

    def append(self, records: int) -> None:
        self.log.append(records, leader_epoch=self.epoch)

    def roll(self) -> None:
        self.log.roll()

    def expire_segment(self) -> None:
        """The broker's own retention."""
        if len(self.log.segments) > 1:
            self.lost |= records_of(self.log.segments[0].batches)
            self.log.remove_oldest()

    def elect(self, cut_off: int) -> None:
        """A leader of a newer epoch, which lacks some records, and writes one at once."""
        self.epoch += 1
        self.agent_looked = False
        self.log.truncate_to(max(self.log.log_end_offset - cut_off, self.log.log_start_offset))
        self.append(1)

    # The agent.

    def start_agent(self) -> None:
        """The one before has crashed: nothing of it is left."""
        self.incarnation += 1
        self.sequence = self.next_to_publish = 0
        assignment = Assignment(PARTITION, "t", self.log.path, LinkPolicy.ALWAYS, 20)
        resume = resume_point(self.store, ArchiveStore(), assignment)
        if resume.is_first:
            assert resume.next_offset is not None
            self.begin = resume.next_offset
            self._declare(0, resume.next_offset, GapReason.BEFORE_UPLOAD)
        self.queue = RemoteSegmentQueue(100, 1_000_000)
        self.led = LedPartition(assignment, RLMWalTask(PARTITION, self.log.path, resume, OpenFiles()))
        self.uploads: list[Upload] = []
        self.unpublished: dict[int, RemoteWalCombinedLogSegmentMetadata | None] = {}

    def read(self, max_bytes: int = 300) -> bool:
        """As RemoteWalLogManager takes an outcome; whether there is more."""
        outcome = self.led.task.run(max_bytes, 0.0, 0.0)
        self.agent_looked = True
        if outcome.truncated_at is not None:
            self.queue.discard(PARTITION, outcome.truncated_at)
            self.led.truncated(outcome.truncated_at)
            if self.led.passed_over is not None and self.led.passed_over.left:
                self.start_agent()
                return True
        for gap in outcome.gaps:
            self._declare(gap.from_offset, gap.to_offset, GapReason.RETENTION)
        self.queue.put(outcome.items)
        self.led.log_read(outcome)
        return outcome.more

    def pass_over(self, records: int) -> None:
        """As RemoteWalLogManager does where followers are so far ahead."""
        task, known = self.led.task, self.led.passed_over
        followers_offset = min(task.next_offset + records, self.log.log_end_offset)
        if 0 <= task.next_offset < followers_offset:
            skipped = task.pass_over(followers_offset)
            if skipped is None:
                return
            skipped.also_read(known.left if known is not None else ())
            self.led.passed_over = PassedOver(self.led.assignment, skipped, 0.0)
            self.led.passed_over.update()

    def read_backlog(self) -> None:
        """As BacklogUploads takes an outcome."""
        passed_over = self.led.passed_over
        if passed_over is None or passed_over.items or not passed_over.left:
            return
        outcome = passed_over.task.run(300, 0.0, 0.0)
        for gap in outcome.gaps:
            self._declare(gap.from_offset, gap.to_offset, GapReason.RETENTION)
        if outcome.truncated_at is not None or outcome.deleted:
            self.start_agent()
            return
        passed_over.items += outcome.items
        passed_over.update()

    def store_backlog(self) -> None:
        """One object of what was read."""
        passed_over = self.led.passed_over
        if passed_over is not None and passed_over.items:
            self._stored(CombinedSegmentId(1, self.incarnation, self.sequence), passed_over.items)
            self.sequence += 1
            passed_over.items.clear()
            passed_over.update()

    def begin_upload(self) -> None:
        if len(self.queue):
            segment_id = CombinedSegmentId(1, self.incarnation, self.sequence)
            self.sequence += 1
            self.uploads.append(
                Upload(segment_id, self.queue.drain(300, lambda partition: reading_order(partition, None)))
            )

    def end_upload(self, which: int, *, succeeds: bool = True) -> None:
        if not self.uploads:
            return
        upload = self.uploads.pop(which % len(self.uploads))
        sequence = upload.segment_id.sequence
        parts = [part for item in upload.items if (part := self.led.unstored_part(item)) is not None]
        if not succeeds:
            self.queue.put_back(parts)
            self.unpublished[sequence] = None
            return
        for part in parts:
            self.led.item_stored(part)
        self._stored(upload.segment_id, upload.items)

    def _stored(self, segment_id: CombinedSegmentId, items: list[MetaQueueItem]) -> None:
        entries = tuple(item.metadata_entry() for item in items)
        for entry in entries:
            self.stored |= {(entry.leader_epoch, at) for at in range(entry.first_offset, entry.last_offset + 1)}
        metadata = RemoteWalCombinedLogSegmentMetadata(segment_id, entries, FINISHED, 0, 200)
        self.unpublished[segment_id.sequence] = metadata

    def publish(self) -> None:
        """What is next in order, as far as it is known."""
        while self.next_to_publish in self.unpublished:
            record = self.unpublished.pop(self.next_to_publish)
            self.next_to_publish += 1
            if record is not None:
                self.store.apply(record)
                self.finished.append(record)

    def release_oldest(self) -> None:
        """It is older than the retention."""
        if self.finished:
            record = self.finished.pop(0)
            deletion = RemoteWalCombinedLogSegmentMetadata(record.combined_segment_id, (), DELETING, 1, 200)
            self.store.apply(deletion)
            self.released_to = max(self.released_to, *(entry.last_offset + 1 for entry in record.entries))

    def load_snapshot(self) -> None:
        """The agents of the time to come know what a snapshot kept."""
        self.store = read_snapshot(write_snapshot(self.store, "c"), "c")

    def settle(self) -> None:
        """Nothing fails any more."""
        for _ in range(1000):
            more = self.read(10_000)
            self.read_backlog()
            self.store_backlog()
            while len(self.queue):
                self.begin_upload()
            while self.uploads:
                self.end_upload(0)
            self.publish()
            if not more and not (self.led.passed_over is not None and self.led.passed_over.left):
                return
        raise AssertionError("uploading does not come to an end")

    def _declare(self, begin: int, end: int, reason: GapReason) -> None:
        epoch = read_leader_epochs(self.log.path).latest_epoch
        self.store.apply(RemoteWalGapDeclaration(1, 1, 0, (DeclaredGap(PARTITION, begin, end, epoch, reason),), 0))

    # What must hold.

    def left_out(self, *, below: int) -> set[Record]:
        """Records below that offset which are stored nowhere, and were not told as a gap, though they are wanted."""
        assert self.begin is not None
        if not self.agent_looked:
            return set()
        in_log = records_of(self.log.batches)
        gone = {record for record in self.lost if not self._is_declared(record)}
        wanted_from = max(self.begin, self.released_to)
        return {record for record in in_log | gone if wanted_from <= record[1] < below} - self.stored

    def _is_declared(self, record: Record) -> bool:
        epoch, offset = record
        return any(
            gap.reason.is_loss and gap.from_offset <= offset < gap.to_offset and epoch <= gap.leader_epoch
            for gap in self.store.declared_gaps(PARTITION)
        )
