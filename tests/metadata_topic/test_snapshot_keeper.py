"""Snapshots in object storage: the newest whole one wins, old ones go."""

from pathlib import Path

import pytest

from metadata_topic.store.snapshots.snapshot_keeper import SnapshotKeeper
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.store.store_image import StoreImage
from plugin.blob_storage import BlobStorage, StoredBlob
from plugin.errors import RemoteStorageError
from plugin.store_loop import ask_each
from tests.metadata_topic.fake_blobs import FakeBlobs
from tests.metadata_topic.metadata_strategies import entry, segment
from tests.plugin.two_zones import two_zones


def image_up_to(offset: int) -> StoreImage:
    store = RemoteWalMetadataStore()
    for n in range(offset):
        store.apply(segment(n, entry(n, n)), (0, n))
    return store.image()


def keeper(blobs: BlobStorage, broker_id: int = 1, cluster_id: str = "c", part_bytes: int = 100) -> SnapshotKeeper:
    return SnapshotKeeper(blobs, cluster_id, broker_id, incarnation=77, part_bytes=part_bytes)


def progress_of(image: StoreImage | None) -> int | None:
    return None if image is None else image.progress[0]


def test_the_newest_is_loaded_and_the_last_two_are_kept() -> None:
    blobs = FakeBlobs()
    for n in range(1, 6):
        keeper(blobs).save(image_up_to(n), now_ms=n)
    assert progress_of(keeper(blobs).load()) == 5
    assert {name.split("/")[2] for name in blobs.blobs} == {f"{n:015}-00000000004d" for n in (4, 5)}
    assert len(blobs.blobs) > 2, "in several parts each"


@pytest.mark.parametrize("other_broker", [1, 2], ids=["its own", "another broker's"])
def test_a_snapshot_from_a_host_whose_clock_was_ahead_is_not_the_newest_for_ever(other_broker: int) -> None:
    blobs = FakeBlobs()
    for n in (1, 2):
        blobs.now_ms = n
        keeper(blobs, broker_id=other_broker).save(image_up_to(n), now_ms=10**14 + n)
    for n in (3, 4, 5):
        blobs.now_ms = n
        keeper(blobs).save(image_up_to(n), now_ms=n)
        assert progress_of(keeper(blobs).load()) == n


def test_a_save_that_dies_half_way_counts_for_nothing_and_is_removed_later() -> None:
    blobs = FakeBlobs()
    keeper(blobs).save(image_up_to(3), now_ms=1)
    blobs.puts_before_it_fails = 2
    with pytest.raises(RemoteStorageError):
        keeper(blobs).save(image_up_to(4), now_ms=2)
    assert (progress_of(keeper(blobs).load()), keeper(blobs).newest().doubt) == (3, "")
    blobs.puts_before_it_fails = None
    keeper(blobs).save(image_up_to(5), now_ms=3)
    assert {int(name.split("/")[2][:15]) for name in blobs.blobs} == {1, 3}


def test_a_snapshot_is_saved_though_an_old_one_cannot_be_removed() -> None:
    class OneStays(FakeBlobs):
        stays = True

        async def delete_blob(self, blob: StoredBlob) -> None:
            if self.stays:
                raise RemoteStorageError("delete", blob.name, "refused")
            await super().delete_blob(blob)

    blobs = OneStays()
    for n in (1, 2, 3):
        keeper(blobs).save(image_up_to(n), now_ms=n)
    saving = keeper(blobs)
    assert saving.save(image_up_to(4), now_ms=4)
    assert saving.counters == {"saved": 1}
    assert progress_of(saving.load()) == 4
    blobs.stays = False
    keeper(blobs).save(image_up_to(5), now_ms=5)
    assert {int(name.split("/")[2][:15]) for name in blobs.blobs} == {4, 5}


@pytest.mark.parametrize("damage", ["flip", "lose", "cut"])
def test_a_damaged_one_is_passed_over_for_the_one_before(damage: str) -> None:
    blobs = FakeBlobs()
    for n in (1, 2):
        keeper(blobs).save(image_up_to(n + 5), now_ms=n)
    newest = sorted(blobs.blobs)[-2]
    if damage == "lose":
        del blobs.blobs[newest]
    elif damage == "cut":
        blobs.blobs[newest] = blobs.blobs[newest][:-1]
    else:
        blobs.blobs[newest] = bytes([blobs.blobs[newest][0] ^ 1]) + blobs.blobs[newest][1:]
    loading = keeper(blobs)
    found = loading.newest()
    assert progress_of(found.image) == 6
    assert found.doubt == f"snapshots that may tell more cannot be read ({newest.rpartition('/')[0]})"
    assert loading.counters == {"refused": 1, "loaded": 1}
    keeper(blobs, broker_id=2).save(image_up_to(8), now_ms=3)
    assert [(progress_of(one.image), not one.doubt) for one in loading.newest_of_each()] == [(8, True), (6, False)]


def test_without_a_snapshot_or_a_store_there_is_none() -> None:
    blobs = FakeBlobs()
    assert keeper(blobs).load() is None
    keeper(blobs).save(image_up_to(1), now_ms=1)
    blobs.is_down = True
    loading = keeper(blobs)
    found = loading.newest()
    assert found.image is None
    assert found.doubt
    assert loading.counters == {"load_failures": 1}


def test_a_bucket_that_goes_away_while_it_is_read_from_leaves_those_of_other_zones() -> None:
    class OneGoesAway(FakeBlobs):
        async def get_blob(self, blob: StoredBlob, start: int = 0, end: int | None = None) -> bytes:
            if blob.name.startswith("metadata-snapshots/1/"):
                raise RemoteStorageError("get", blob.name, "away")
            return await super().get_blob(blob, start, end)

    blobs = OneGoesAway()
    keeper(blobs, broker_id=1).save(image_up_to(3), now_ms=1)
    keeper(blobs, broker_id=1).save(image_up_to(4), now_ms=3)
    keeper(blobs, broker_id=2).save(image_up_to(2), now_ms=2)
    loading = keeper(blobs, broker_id=1)
    found = loading.newest()
    assert progress_of(found.image) == 2
    assert "metadata-snapshots/1/" in found.doubt
    assert loading.counters == {"load_failures": 1, "loaded": 1}


def test_the_newest_of_all_brokers_is_loaded_and_none_of_another_cluster() -> None:
    blobs = FakeBlobs()
    keeper(blobs, broker_id=1).save(image_up_to(1), now_ms=1)
    keeper(blobs, broker_id=11).save(image_up_to(2), now_ms=2)
    assert progress_of(keeper(blobs, broker_id=1).load()) == 2
    assert [progress_of(one.image) for one in keeper(blobs, broker_id=1).newest_of_each()] == [2, 1]
    assert keeper(blobs, broker_id=1, cluster_id="other").load() is None


def test_with_a_bucket_for_each_zone_what_is_in_those_that_answer_is_loaded(tmp_path: Path) -> None:
    first, second = (two_zones(tmp_path, zone, "c").blobs for zone in ("az1", "az2"))
    without = two_zones(tmp_path, "az1", "c", away=["az2"]).blobs
    loading = keeper(without, broker_id=1)
    assert (loading.load(), loading.counters) == (None, {"load_failures": 1}), "the other bucket may have one"
    keeper(first, broker_id=1).save(image_up_to(3), now_ms=1)
    keeper(second, broker_id=2).save(image_up_to(5), now_ms=2)
    assert progress_of(keeper(second, broker_id=1).load()) == 5
    found = keeper(without, broker_id=1).newest()
    assert progress_of(found.image) == 3
    assert "buckets that do not answer" in found.doubt
    for n in range(3, 6):  # a broker that moved to the other zone
        keeper(second, broker_id=1).save(image_up_to(n + 3), now_ms=n)
    assert progress_of(keeper(first, broker_id=1).load()) == 8
    assert {blob.name.split("/")[2][:15] for blob in ask_each(first.list_blobs("metadata-snapshots/1"))} == {
        f"{n:015}" for n in (4, 5)
    }
