"""What is told after any elections, unclean ones too, is enough to have the last leader's log back."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile

from hypothesis import assume, example, given
from hypothesis import strategies as st

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.archive_records import ArchiveObjectCommitted, ArchiveObjectDeleted
from metadata_topic.records.records import PublishedSegment
from metadata_topic.records.states import DELETED, DELETING, FINISHED
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.archive_storage import StoredArchiveObject
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.remote_wal_storage_manager import StoredSegment
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteWalCombinedLogSegmentMetadata,
)
from recovery.logs.log_plan import LogPlan, PlanRules
from recovery.metadata.inventory import from_metadata
from rlm.archive.archived_topics import ArchiveTier
from rlm.lifecycle.failover import FailoverPlanner
from rlm.write_path.reading.resume_point import LedLog, resume_of
from tests.metadata_topic.store_oracles import archived_up_to, living_entries
from tests.recovery.stored_logs import ORDERS
from tests.rlm.archive_rig import MemoryArchive
from tests.rlm.memory_storage import MemoryStorage


class Footers(MemoryStorage):
    """Objects of which nothing but the footers is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.uploaded: dict[CombinedSegmentId, RemoteWalCombinedLogSegmentMetadata] = {}

    async def list_log_segments(self, broker_id: int | None = None) -> AsyncIterator[list[StoredSegment]]:
        yield [
            StoredSegment(segment_id, str(segment_id), found.size_bytes, found.event_timestamp_ms)
            for segment_id, found in self.uploaded.items()
        ]

    async def fetch_segment_metadata(self, stored: StoredSegment) -> RemoteWalCombinedLogSegmentMetadata:
        return self.uploaded[stored.combined_segment_id]


class Listed(MemoryArchive):
    """Archive objects of which nothing but the listing is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[ArchiveObjectId, StoredArchiveObject] = {}

    async def list(
        self, topic_id_partition: TopicIdPartition | None = None
    ) -> AsyncIterator[list[StoredArchiveObject]]:
        yield [*self.written.values()]


@dataclass(frozen=True, slots=True)
class Term:
    """What a leader does until it dies."""

    log_of: int
    """It has the log that this leader before it died with, counted back from the last one,"""
    lost: int
    """less so many records at the end."""
    skipped_epochs: int
    """Times without any leader, before."""
    written: int
    object_records: int
    """Records in each object."""
    uploads: int
    published: int
    """Of the uploads;"""
    archived: int = 0
    """Then it archives so many of the published records,"""
    releases: bool = False
    """and releases what is archived; then it dies."""


TERMS = st.builds(
    Term,
    st.integers(0, 2), st.integers(0, 6), st.integers(0, 1), st.integers(0, 6), st.integers(1, 4), st.integers(0, 4),
    st.integers(0, 4),
)  # fmt: skip
ARCHIVING_TERMS = st.builds(replace, TERMS, archived=st.integers(0, 8), releases=st.booleans())
EVERYTHING = 1000


@dataclass(slots=True)
class Partition:
    """Its leaders' logs, and what their agents uploaded and told, by the parts that the agents are made of."""

    storage: Footers = field(default_factory=Footers)
    store: RemoteWalMetadataStore = field(default_factory=RemoteWalMetadataStore)
    archive: Listed = field(default_factory=Listed)
    archived: ArchiveStore = field(default_factory=ArchiveStore)
    logs: list[tuple[tuple[int, ...], LeaderEpochs]] = field(default_factory=lambda: [((), LeaderEpochs())])
    """By leader: the epoch that wrote each offset, and the checkpoint."""
    now_ms: int = 0
    epoch: int = -1
    leaders: dict[int, int] = field(default_factory=dict)
    """Who led in each epoch: another one each time, or nobody."""

    def lead(self, term: Term) -> None:
        log, epochs = self.logs[-1 - min(term.log_of, len(self.logs) - 1)]
        log = log[: max(0, len(log) - term.lost)]
        for _ in range(term.skipped_epochs):
            self.epoch += 1
            self.leaders[self.epoch] = -1
        self.epoch += 1
        self.leaders[self.epoch] = len(self.logs)
        kept = [(epoch, start) for epoch, start in epochs.entries if start < len(log)]
        epochs = LeaderEpochs([*kept, (self.epoch, len(log))])
        log += (self.epoch,) * term.written
        self.logs.append((log, epochs))
        self.now_ms += 1
        for declared in FailoverPlanner(2, self.store).plan(ORDERS, epochs, self.now_ms, lambda: self.leaders):
            self.store.apply_all([(declared, (0, 0))])
        stored = self._upload(log, epochs, term)
        for metadata in stored[: term.published]:
            self.store.apply_all([(PublishedSegment.of(metadata), (0, 0))])
        self._archive(log, epochs, term.archived)
        if term.releases:
            self._release(epochs)
        self._remove_abandoned(epochs)

    def _upload(
        self, log: tuple[int, ...], epochs: LeaderEpochs, term: Term
    ) -> list[RemoteWalCombinedLogSegmentMetadata]:
        """From where agents go on, an object for each few records of one epoch."""
        resume = resume_of(self.store, self.archived, LedLog(ORDERS, epochs, [0], is_archived=True))
        wanted = [*resume.missing, (resume.next_offset or 0, len(log))]
        parts = [
            offsets[start : start + term.object_records]
            for first, behind in wanted
            for _, of_epoch in groupby(range(first, min(behind, len(log))), key=log.__getitem__)
            for offsets in [list(of_epoch)]
            for start in range(0, len(offsets), term.object_records)
        ]
        found = []
        for part in parts[: term.uploads]:
            self.now_ms += 1
            segment_id = CombinedSegmentId(1, 1, self.now_ms)
            entry = RemoteLogSegmentMetadataEntry(ORDERS, log[part[0]], part[0], part[-1], 112, 113, 0)
            found.append(RemoteWalCombinedLogSegmentMetadata(segment_id, (entry,), FINISHED, self.now_ms, 200))
            self.storage.uploaded[segment_id] = found[-1]
        return found

    def _archive(self, log: tuple[int, ...], epochs: LeaderEpochs, records: int) -> None:
        """The living uploads behind what is archived, as far as they go on: an object for each epoch, so that one
        of an abandoned epoch is not kept for the sake of older records.
        """
        begin = archived_up_to(self.archived, ORDERS, epochs) + 1
        held = list(takewhile(lambda at: self.store.entries_covering(ORDERS, at, epochs), range(begin, len(log))))
        for epoch, of_epoch in groupby(held[:records], key=log.__getitem__):
            offsets = list(of_epoch)
            self.now_ms += 1
            object_id = ArchiveObjectId(ORDERS, offsets[0], offsets[-1], CombinedSegmentId(1, 1, self.now_ms))
            run = RemoteLogSegmentMetadataEntry(ORDERS, epoch, offsets[0], offsets[-1], 112, 113, 0)
            self.archived.apply(ArchiveObjectCommitted(object_id, 1, (run,), 200, self.now_ms))
            self.archive.written[object_id] = StoredArchiveObject(object_id, str(object_id), 200, self.now_ms)

    def _remove_abandoned(self, epochs: LeaderEpochs) -> None:
        """Delete the archive objects of which the log has nothing. Agents keep them, as they may be the only copies;
        what a recovery may then take for the log's is the known limit in docs/recovery.md.
        """
        for object_id, _ in self.archived.objects(FINISHED):
            committed = self.archived.committed(object_id)
            assert committed is not None
            ends = [epochs.end_of(run.leader_epoch) for run in committed.runs]
            if all(end is not None and end <= run.first_offset for end, run in zip(ends, committed.runs, strict=True)):
                self.archived.apply(ArchiveObjectDeleted(object_id, 1, DELETED, self.now_ms))
                del self.archive.written[object_id]

    def _release(self, epochs: LeaderEpochs) -> None:
        store, tier = self.store, ArchiveTier(self.archived, lambda _topic: True, lambda _partition: epochs)
        for segment in list(store.published_segments(FINISHED)):
            segment_id = segment.combined_segment_id
            if all(map(tier.holds, living_entries(store, segment_id))):
                for state in (DELETING, DELETED):
                    deletion = RemoteWalCombinedLogSegmentMetadata(segment_id, (), state, self.now_ms)
                    store.apply_all([(PublishedSegment.of(deletion), (0, 0))])
                del self.storage.uploaded[segment_id]

    def plan(self) -> LogPlan:
        inventory = from_metadata(self.store, self.archived, self.storage, self.archive)
        return inventory.log_runs(ORDERS).plan(PlanRules(start_offset=0))


def _epochs_of(plan: LogPlan) -> list[int]:
    return [
        extent.run.leader_epoch for extent in plan.extents for _ in range(extent.first_offset, extent.last_offset + 1)
    ]


@given(st.lists(TERMS, max_size=5), TERMS)
def test_when_all_uploads_were_published_the_last_leaders_log_is_planned_though_it_wrote_nothing(
    before: list[Term], last: Term
) -> None:
    partition = Partition()
    for term in before:
        partition.lead(replace(term, published=EVERYTHING))
    partition.lead(replace(last, written=0, uploads=EVERYTHING, published=EVERYTHING))

    plan = partition.plan()
    assert (tuple(_epochs_of(plan)), plan.gap) == (partition.logs[-1][0], None)


@example([Term(0, 0, 0, 10, 10, 1, 1, archived=10), Term(0, 5, 1, 0, 1, 0, 0)], Term(1, 0, 1, 4, 5, 1, 1))
@given(st.lists(ARCHIVING_TERMS, max_size=5), ARCHIVING_TERMS)
def test_a_log_that_is_written_on_is_planned_whole_when_its_older_records_are_in_the_archive_alone(
    before: list[Term], last: Term
) -> None:
    partition = Partition()
    for term in before:
        partition.lead(replace(term, uploads=EVERYTHING, published=EVERYTHING))
    partition.lead(replace(last, written=last.written + 1, uploads=EVERYTHING, published=EVERYTHING))

    plan = partition.plan()
    assert (tuple(_epochs_of(plan)), plan.gap) == (partition.logs[-1][0], None)


@example([Term(0, 0, 0, 15, 10, 2, 2, archived=10, releases=True)], Term(0, 7, 0, 0, 1, 0, 0))
@given(st.lists(ARCHIVING_TERMS, max_size=5), ARCHIVING_TERMS)
def test_nothing_of_the_last_leaders_log_is_left_out_though_it_wrote_nothing_while_segments_tell_of_its_end(
    before: list[Term], last: Term
) -> None:
    partition = Partition()
    for term in before:
        partition.lead(replace(term, log_of=0, uploads=EVERYTHING, published=EVERYTHING))
    partition.lead(replace(last, log_of=0, written=0, uploads=EVERYTHING, published=EVERYTHING))

    plan, (log, _) = partition.plan(), partition.logs[-1]
    assume(log)  # of an empty one nothing need be left, not even what tells that it is empty
    assert (tuple(_epochs_of(plan)[: len(log)]), plan.gap) == (log, None)
    began = {start for _, epochs in partition.logs for start in epochs.entries}
    assert set(plan.leader_epochs) <= began, "an epoch begins where it began, and one without records only there"


@given(st.lists(TERMS, max_size=5), TERMS)
def test_nothing_but_the_last_leaders_log_is_planned_once_it_has_written_whatever_was_not_published(
    before: list[Term], last: Term
) -> None:
    partition = Partition()
    for term in before:
        partition.lead(replace(term, log_of=0))
    partition.lead(replace(last, log_of=0, written=last.written + 1, uploads=EVERYTHING))

    plan = partition.plan()
    assert (tuple(_epochs_of(plan)), plan.gap) == (partition.logs[-1][0], None)


@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 30))
def test_a_log_cut_off_below_what_was_published_ends_there(written: int, object_records: int, cut_off: int) -> None:
    partition = Partition()
    partition.lead(Term(0, 0, 0, written, object_records, EVERYTHING, EVERYTHING))
    end = max(0, written - cut_off)
    partition.lead(Term(0, written - end, 1, 0, 1, 0, 0))

    plan = partition.plan()
    assert (plan.end_offset, plan.gap) == (end, None)
