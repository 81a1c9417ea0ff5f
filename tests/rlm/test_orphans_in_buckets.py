"""Orphans where each zone has a bucket: of one that is away, or not known, nothing is concluded."""

from collections.abc import Collection
from pathlib import Path

from metadata_topic.records.records import PublishableRecord, RemoteWalNodeRegistration
from metadata_topic.records.states import DELETED, DELETING
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.segment_metadata import CombinedSegmentId, RemoteWalCombinedLogSegmentMetadata
from plugin.store_loop import ask, ask_each
from rlm.lifecycle.orphans import Comparison, Kind, OrphanTask
from tests.plugin.two_zones import ZONES, bucket, two_zones
from tests.recovery.stored_objects import records
from tests.recovery.test_inventory import ORDERS, Leader

CLUSTER = "cluster-1"
LATE_MS = 10**15


class Published:
    def __init__(self) -> None:
        self.published: list[RemoteWalCombinedLogSegmentMetadata] = []

    def publish(self, record: PublishableRecord) -> None:
        assert isinstance(record, RemoteWalCombinedLogSegmentMetadata)
        self.published.append(record)


class Stored:
    """Two objects of broker 1, which once ran in az2 and now runs in az1, and what the metadata tells of them."""

    def __init__(self, directory: Path, tells: bool = True) -> None:
        self.directory = directory
        self.store = RemoteWalMetadataStore()
        self.store.apply(RemoteWalNodeRegistration(1, 1, 1, 0), (0, 0))
        self.uploads = [
            Leader(self.opened(zone), 1, since_ms=100 * number).upload(records(ORDERS, 0, 5 * number, 5 * number + 4))
            for number, zone in enumerate(("az1", "az2"))
        ]
        for number, upload in enumerate(self.uploads if tells else ()):
            self.store.apply(upload, (0, number + 1))

    def opened(
        self, own: str = "az1", away: Collection[str] = (), listed: Collection[str] = ZONES
    ) -> RemoteWalStorageManager:
        return two_zones(self.directory, own, CLUSTER, away, listed)

    def compare(self, storage: RemoteWalStorageManager) -> Comparison[CombinedSegmentId]:
        return OrphanTask(storage, self.store, lambda: True, 0, lambda: LATE_MS).compare([1])[1]

    def heal(self, storage: RemoteWalStorageManager) -> "Published":
        publisher = Published()
        task = OrphanTask(storage, self.store, lambda: True, 0, lambda: LATE_MS)
        task.heal(task.compare([1])[1], publisher)
        return publisher


def test_what_is_in_any_bucket_is_there(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    found = stored.compare(stored.opened())
    assert (found.objects, found.disagreements, found.not_looked_for, found.unanswered) == (2, (), 0, frozenset())


def test_a_segment_in_a_bucket_that_is_away_is_not_lost_and_one_that_is_gone_elsewhere_is(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    everywhere = stored.opened()
    ask(everywhere.delete_log_segment_data(stored.uploads[0].combined_segment_id, stored.uploads[0].custom_metadata))
    storage = stored.opened(away=["az2"])
    found = stored.compare(storage)
    assert [(one.object_id, one.kind) for one in found.disagreements] == [
        (stored.uploads[0].combined_segment_id, Kind.LOST)
    ]
    assert (found.not_looked_for, found.unanswered) == (1, frozenset({bucket(tmp_path, "az2")}))
    healed = stored.heal(storage).published
    assert {record.combined_segment_id for record in healed} == {stored.uploads[0].combined_segment_id}
    assert [record.state for record in healed] == [DELETED]


def test_a_segment_in_a_bucket_off_the_list_is_not_lost(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    storage = stored.opened(listed=["az1"])
    found = stored.compare(storage)
    assert (found.disagreements, found.not_looked_for, found.unanswered) == ((), 1, frozenset())
    assert stored.heal(storage).published == []


def test_an_orphan_is_deleted_in_the_bucket_where_it_was_found(tmp_path: Path) -> None:
    stored = Stored(tmp_path, tells=False)
    healed = stored.heal(stored.opened()).published
    assert [(record.combined_segment_id, record.state, record.custom_metadata) for record in healed] == [
        (upload.combined_segment_id, DELETING, upload.custom_metadata) for upload in stored.uploads
    ]


def test_what_appears_after_its_deletion_is_deleted_again_in_its_bucket(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    gone = stored.uploads[1]
    for state in (DELETING, DELETED):
        record = type(gone)(gone.combined_segment_id, (), state, 500, gone.size_bytes)
        stored.store.apply(record, (0, 10 + int(state)))
    stored.heal(stored.opened())
    left = [one.combined_segment_id for one in ask_each(stored.opened().list_log_segments())]
    assert left == [stored.uploads[0].combined_segment_id]
