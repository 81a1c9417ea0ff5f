"""Recovery where each zone has a bucket: what is out of reach is told as that, and not as lost."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from metadata_topic.store.archive.archive_store import ArchiveStore
from plugin.errors import IncompleteListingError
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.store_loop import ask
from recovery.broker_recovery import PlannedLog
from recovery.cluster_view import ReplicaSet
from recovery.logs.log_plan import Gap, PlanRules
from recovery.logs.log_settings import LogSettings
from recovery.logs.run_reader import RunReader
from recovery.metadata.inventory import Inventory, from_metadata, from_objects
from recovery.verification import FindingKind, check_inventory
from tests.plugin.two_zones import ZONES, bucket, two_zones
from tests.recovery.stored_objects import records
from tests.recovery.test_inventory import ORDERS, Leader, _told
from tests.recovery.test_topic_rebuild import CLUSTER, Lost, TopicInMemory


class Stored:
    """A log of which the second of three objects is in the other zone's bucket, as its leader was."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.uploads = [
            Leader(self.opened(zone), broker_id, since_ms=100 * number).upload(
                records(ORDERS, 0, 5 * number, 5 * number + 4)
            )
            for number, (zone, broker_id) in enumerate((("az1", 1), ("az2", 2), ("az1", 1)))
        ]

    def opened(
        self, own: str = "az1", away: Collection[str] = (), listed: Collection[str] = ZONES
    ) -> RemoteWalStorageManager:
        return two_zones(self.directory, own, CLUSTER, away, listed)

    def inventory(self, away: Collection[str] = (), listed: Collection[str] = ZONES) -> Inventory:
        opened = self.opened(away=away, listed=listed)
        return from_metadata(_told(*self.uploads), ArchiveStore(), opened, None)

    def planned(self, inventory: Inventory) -> PlannedLog:
        runs = inventory.log_runs(ORDERS)
        replicas = ReplicaSet((1, 2, 3), (1, 2, 3), 1, leader_epoch=3)
        return PlannedLog(ORDERS, "orders-0", replicas, LogSettings(), runs, runs.plan(PlanRules()))


def test_a_log_is_read_out_of_all_buckets(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    inventory = stored.inventory()
    assert (inventory.unreachable, inventory.unanswered, inventory.lost_objects) == ({}, frozenset(), [])
    plan = inventory.log_runs(ORDERS).plan(PlanRules())
    assert (plan.gap, plan.end_offset) == (None, 15)
    reader = RunReader(stored.opened())
    assert [reader.read(0, extent).batches[0].base_offset for extent in plan.extents] == [0, 5, 10]
    assert list(check_inventory(inventory, [stored.planned(inventory)])) == []


def test_without_the_metadata_footers_tell_of_all_buckets_and_each_object_is_read_where_it_is(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    inventory = from_objects(stored.opened(), None)
    assert {one.stored_in.custom_metadata for one in inventory.runs[ORDERS]} == {
        upload.custom_metadata for upload in stored.uploads
    }
    plan = inventory.log_runs(ORDERS).plan(PlanRules())
    reader = RunReader(stored.opened())
    assert [reader.read(0, extent).batches[0].base_offset for extent in plan.extents] == [0, 5, 10]
    assert from_objects(stored.opened(away=["az2"]), None).unanswered == {bucket(tmp_path, "az2")}


@pytest.mark.parametrize(
    ("away", "listed", "named"), [(["az2"], ZONES, "/az2"), ([], ["az1"], "a bucket that is not known here")]
)
def test_what_is_in_a_bucket_out_of_reach_is_not_lost_and_its_gap_names_the_bucket(
    tmp_path: Path, away: list[str], listed: Collection[str], named: str
) -> None:
    stored = Stored(tmp_path)
    inventory = stored.inventory(away, listed)
    assert inventory.lost_objects == []
    assert list(inventory.unreachable) == [stored.uploads[1].combined_segment_id]
    assert inventory.unanswered == {bucket(tmp_path, zone) for zone in away}
    planned = stored.planned(inventory)
    assert planned.plan.gap == Gap(5, 10)
    assert inventory.unreachable_in(ORDERS, 0, 5) == inventory.unreachable_in(ORDERS, 10, 15) == []
    found = list(check_inventory(inventory, [planned]))
    assert [one.kind for one in found] == [FindingKind.UNREACHABLE_BUCKET, FindingKind.GAP]
    assert all(named in one.subject + one.detail for one in found)
    assert all(one.kind.is_error for one in found)


def test_an_object_that_is_gone_from_a_bucket_that_answers_is_lost(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    gone = stored.uploads[0]
    ask(stored.opened().delete_log_segment_data(gone.combined_segment_id, gone.custom_metadata))
    inventory = stored.inventory(away=["az2"])
    assert [lost.object_id for lost in inventory.lost_objects] == [gone.combined_segment_id]
    assert list(inventory.unreachable) == [stored.uploads[1].combined_segment_id]


def test_the_metadata_is_rebuilt_with_the_bucket_of_each_object(tmp_path: Path) -> None:
    lost = Lost(two_zones(tmp_path, "az2", CLUSTER))
    uploads = [lost.upload(), lost.upload()]
    plan = replace(lost, storage=two_zones(tmp_path, "az1", CLUSTER)).rebuild().plan(TopicInMemory().known)
    assert [(one.combined_segment_id, one.custom_metadata) for one in plan.segments] == [
        (upload.combined_segment_id, upload.custom_metadata) for upload in uploads
    ]


def test_the_metadata_is_not_rebuilt_while_a_bucket_is_away(tmp_path: Path) -> None:
    """What it does not tell of would be deleted as orphans once the bucket is back."""
    lost = Lost(two_zones(tmp_path, "az1", CLUSTER))
    lost.upload()
    away = replace(lost, storage=two_zones(tmp_path, "az1", CLUSTER, away=["az2"]))
    with pytest.raises(IncompleteListingError, match="az2"):
        away.rebuild().plan(TopicInMemory().known)
