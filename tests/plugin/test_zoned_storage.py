"""A bucket for each zone, over real backends: what the agents of two zones see of each other's objects."""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from plugin.adopted_records import RecordsList
from plugin.blob_storage import StoredBlob
from plugin.errors import (
    IncompleteListingError,
    RemoteResourceNotFoundError,
    RemoteStorageConfigError,
    RemoteStorageError,
    UnknownBucketError,
)
from plugin.format.bucket_id import bucket_id
from plugin.loading import StorageSpec, storage_manager_class
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StorageContext, StoredSegment
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)
from plugin.store_loop import ask, ask_each
from plugin.zones.bucket_loading import load_storage, zoned_storage
from plugin.zones.buckets import check_own_zone, parse_buckets, plan_buckets
from tests.faulty_store import FaultyServer
from tests.plugin.dialect_front import LOOK_ALIKE_ACCOUNT
from tests.plugin.storage_backends import VirtualTime, segment, thorough
from tests.rlm.memory_storage import MemoryStorage

CONTEXT = StorageContext("zoned-cluster", 1)
LOCAL, S3, EXPRESS, GCS, AZURE = (
    "plugin.local_directory.LocalWalStorageManager",
    "plugin.s3.S3WalStorageManager",
    "plugin.s3_express.S3ExpressWalStorageManager",
    "plugin.gcs.GcsWalStorageManager",
    "plugin.azure_blob.AzureBlobWalStorageManager",
)

Opened = Callable[..., RemoteWalStorageManager]


@pytest.fixture(params=["local", *thorough("s3"), "s3_express", "gcs", "azure"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> StorageSpec:
    """Of an agent in az1, with a bucket for each of two zones, new ones in each test."""
    if request.param == "local":
        buckets = {"az1": str(tmp_path / "one"), "az2": str(tmp_path / "two")}
        return StorageSpec(LOCAL, None, {}, "rsm.", buckets, "az1")
    server: FaultyServer = request.getfixturevalue("server")
    ending = "--local-az1--x-s3" if request.param == "s3_express" else ""
    unique = f"{abs(hash(str(tmp_path))):x}"
    buckets = {"az1": f"one-{unique}{ending}", "az2": f"two-{unique}{ending}"}
    for name in buckets.values():
        server.front.create_bucket(name)
    if request.param in ("s3", "s3_express"):
        settings = {
            **request.getfixturevalue("cloud_settings"),
            "attempt.timeout.ms": "10000",
            "total.timeout.ms": "20000",
        }
        return StorageSpec(EXPRESS if ending else S3, None, settings, "rsm.", buckets, "az1")
    settings = {
        "endpoint.url": server.endpoint_url,
        "allow.http": "true",
        "attempt.timeout.ms": "10000",
        "total.timeout.ms": "20000",
    }
    if request.param == "gcs":
        settings["credentials.file"] = str(request.getfixturevalue("service_account"))
        return StorageSpec(GCS, None, settings, "rsm.", buckets, "az1")
    token = tmp_path / "token"
    token.write_text("sig=planted-secret")
    settings |= {"account": LOOK_ALIKE_ACCOUNT, "sas.token.file": str(token)}
    settings["endpoint.url"] += f"/{LOOK_ALIKE_ACCOUNT}"
    return StorageSpec(AZURE, None, settings, "rsm.", buckets, "az1")


@pytest.fixture
def opened(spec: StorageSpec, request: pytest.FixtureRequest) -> Opened:
    def open_as(
        zone: str | None = "az1",
        buckets: Mapping[str, str] = spec.buckets,
        settings: Mapping[str, str] = spec.settings,
    ) -> RemoteWalStorageManager:
        changed = replace(spec, zone=zone, buckets=buckets, settings=settings)
        storage = load_storage(changed, CONTEXT)
        request.addfinalizer(storage.close)
        return storage

    return open_as


def _whole(storage: RemoteWalStorageManager, update: RemoteWalCombinedLogSegmentMetadataUpdate) -> bytes:
    entry = update.entries[0]
    return ask(
        storage.fetch_log_segment(
            update.combined_segment_id, entry.start_file_position, entry.end_file_position, update.custom_metadata
        )
    )


def test_each_zone_writes_to_its_own_bucket_and_reads_all(opened: Opened, spec: StorageSpec) -> None:
    first, second = opened("az1"), opened("az2")
    of_first, of_second = (
        ask(one.copy_log_segment_data(*segment(n, [b"abc"]))) for n, one in enumerate((first, second))
    )
    assert of_first.custom_metadata == bucket_id(spec.buckets["az1"])
    assert of_second.custom_metadata == bucket_id(spec.buckets["az2"])
    for storage in (first, second):
        assert _whole(storage, of_first) == _whole(storage, of_second) == b"abc"
        assert storage.place_of(of_second.custom_metadata) == spec.buckets["az2"]
    with pytest.raises(RemoteResourceNotFoundError):
        _whole(first, replace(of_second, custom_metadata=of_first.custom_metadata))


def test_a_listing_tells_of_all_buckets_and_each_footer_can_be_read(opened: Opened) -> None:
    first, second = opened("az1"), opened("az2")
    updates = [
        ask(first.copy_log_segment_data(*segment(0, [b"abc"]))),
        ask(second.copy_log_segment_data(*segment(1, [b"def"], broker_id=2))),
    ]
    listed = {stored.combined_segment_id: stored for stored in ask_each(first.list_log_segments())}
    assert {one: stored.custom_metadata for one, stored in listed.items()} == {
        update.combined_segment_id: update.custom_metadata for update in updates
    }
    for update in updates:
        read = ask(first.fetch_segment_metadata(listed[update.combined_segment_id]))
        assert (read.entries, read.custom_metadata) == (update.entries, update.custom_metadata)
    assert [stored.combined_segment_id.broker_id for stored in ask_each(first.list_log_segments(2))] == [2]


def test_an_object_is_deleted_in_the_bucket_that_it_names(opened: Opened) -> None:
    first, second = opened("az1"), opened("az2")
    update = ask(second.copy_log_segment_data(*segment(0, [b"abc"])))
    for _ in range(2):
        ask(first.delete_log_segment_data(update.combined_segment_id, update.custom_metadata))
        assert list(ask_each(second.list_log_segments())) == []


def test_what_names_no_bucket_is_deleted_in_all(opened: Opened) -> None:
    """An upload whose end was never told left no custom metadata."""
    first, second = opened("az1"), opened("az2")
    update = ask(second.copy_log_segment_data(*segment(0, [b"abc"])))
    ask(first.delete_log_segment_data(update.combined_segment_id))
    assert list(ask_each(first.list_log_segments())) == []


def test_a_bucket_off_the_list_is_neither_read_nor_deleted_in(opened: Opened, spec: StorageSpec) -> None:
    first, second = opened("az1"), opened("az2")
    update = ask(second.copy_log_segment_data(*segment(0, [b"abc"])))
    alone = opened("az1", buckets={"az1": spec.buckets["az1"]})
    with pytest.raises(UnknownBucketError, match=r"see remote\.wal\.buckets"):
        _whole(alone, update)
    with pytest.raises(UnknownBucketError):
        ask(alone.delete_log_segment_data(update.combined_segment_id, update.custom_metadata))
    assert alone.place_of(update.custom_metadata) is None
    assert _whole(first, update) == b"abc"


def test_from_one_bucket_to_a_list_and_back(opened: Opened, spec: StorageSpec) -> None:
    """The single bucket's key stays for what was written before the list; it may be on the list itself."""
    key = storage_manager_class(spec.class_name, None).bucket_key or ""
    single = {**spec.settings, key: spec.buckets["az2"]}
    alone = opened(None, buckets={}, settings=single)
    before = ask(alone.copy_log_segment_data(*segment(0, [b"old"])))
    assert before.custom_metadata == b""
    listed = opened("az1", settings=single)
    of_other = ask(listed.copy_log_segment_data(*segment(1, [b"new"])))
    kept = ask(opened("az2").copy_log_segment_data(*segment(2, [b"too"])))
    assert (_whole(listed, before), _whole(listed, of_other), _whole(listed, kept)) == (b"old", b"new", b"too")
    assert listed.place_of(b"") == spec.buckets["az2"]
    assert _whole(alone, kept) == b"too"
    for call in (
        lambda *named: ask(alone.delete_log_segment_data(*named)),
        lambda *named: ask(alone.fetch_log_segment(named[0], 0, 1, named[1])),
    ):
        with pytest.raises(UnknownBucketError):
            call(of_other.combined_segment_id, of_other.custom_metadata)
    assert _whole(listed, of_other) == b"new"
    assert opened("az1").place_of(b"") is None
    assert _whole(opened("az1"), before) == b"old"  # for who asks all the same: an upload that never ended
    with pytest.raises(RemoteResourceNotFoundError):
        ask(listed.fetch_log_segment(CombinedSegmentId(9, 9, 9), 0, 1))


def test_blobs_are_in_the_own_zones_bucket_and_found_from_all(opened: Opened) -> None:
    first, second = opened("az1").blobs, opened("az2").blobs
    assert first is not None
    assert second is not None
    ask(first.put_blob("metadata-snapshots/1/a", b"one"))
    ask(second.put_blob("metadata-snapshots/2/b", b"two!"))
    for storage in (first, second):
        assert sorted(ask(storage.get_blob(blob)) for blob in ask_each(storage.list_blobs("metadata-snapshots"))) == [
            b"one",
            b"two!",
        ]
    for blob in list(ask_each(first.list_blobs("metadata-snapshots/2"))):
        ask(first.delete_blob(blob))
    assert [blob.name for blob in ask_each(second.list_blobs("metadata-snapshots"))] == ["metadata-snapshots/1/a"]
    assert list(ask_each(opened("az1").list_log_segments())) == []


def test_a_blob_whose_upload_told_nothing_is_deleted_wherever_it_is(opened: Opened) -> None:
    first, second = opened("az1").blobs, opened("az2").blobs
    assert first is not None
    assert second is not None
    named = StoredBlob("router/2/a", 3, ask(second.put_blob("router/2/a", b"o", b"ne")))
    assert [ask(storage.get_blob(named, 1, 3)) for storage in (first, second)] == [b"ne", b"ne"]
    ask(first.delete_blob(StoredBlob("router/2/a", 0)))
    assert list(ask_each(first.list_blobs("router"))) == []


# A bucket that is away. `MemoryStorage` fails on command.


class Away(MemoryStorage):
    """A bucket that does not answer while `is_away`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.deletions = 0

    async def delete_log_segment_data(
        self, combined_segment_id: CombinedSegmentId, custom_metadata: bytes = b""
    ) -> None:
        self.deletions += 1
        if self.is_away:
            raise RemoteStorageError("delete", "-", "planted")
        await super().delete_log_segment_data(combined_segment_id, custom_metadata)

    async def list_log_segments(self, broker_id: int | None = None) -> AsyncIterator[list[StoredSegment]]:
        if self.is_away:
            raise RemoteStorageError("list", "-", "planted")
        async for part in super().list_log_segments(broker_id):
            yield part


def _two(own: str = "az1") -> tuple[RemoteWalStorageManager, dict[str, Away], VirtualTime]:
    plan = plan_buckets(StorageSpec("-", None, {}, "rsm.", {"az1": "one", "az2": "two"}, own), "bucket")
    managers = {one: Away() for one in plan.buckets}
    time = VirtualTime()
    storage = zoned_storage(plan, managers, time.clock)
    return storage, {bucket.name: managers[one] for one, bucket in plan.buckets.items()}, time


def test_a_listing_without_one_bucket_gives_the_others_and_ends_with_its_name() -> None:
    storage, buckets, _ = _two()
    update = ask(storage.copy_log_segment_data(*segment(0, [b"abc"])))
    buckets["two"].is_away = True
    listing = ask_each(storage.list_log_segments())
    assert next(listing).combined_segment_id == update.combined_segment_id
    with pytest.raises(IncompleteListingError, match="two") as incomplete:
        next(listing)
    assert incomplete.value.unanswered == {"two"}
    buckets["two"].is_away = False
    assert len(list(ask_each(storage.list_log_segments()))) == 1


def test_deletions_in_a_bucket_that_is_away_fail_at_once_for_a_while_and_the_others_go_on() -> None:
    storage, buckets, time = _two()
    named = {name: bucket_id(name) for name in buckets}
    buckets["two"].is_away = True
    for sequence in range(3):
        with pytest.raises(RemoteStorageError):
            ask(storage.delete_log_segment_data(CombinedSegmentId(1, 1, sequence), named["two"]))
        ask(storage.delete_log_segment_data(CombinedSegmentId(1, 1, sequence), named["one"]))
    assert (buckets["one"].deletions, buckets["two"].deletions) == (3, 1)
    with pytest.raises(RemoteStorageError):  # where none is named, it may be in the one that is away
        ask(storage.delete_log_segment_data(CombinedSegmentId(1, 1, 9)))
    assert buckets["one"].deletions == 4
    buckets["two"].is_away = False
    time.now += 11
    ask(storage.delete_log_segment_data(CombinedSegmentId(1, 1, 0), named["two"]))
    assert buckets["two"].deletions == 2


def test_the_rest_of_the_custom_metadata_is_the_buckets_own() -> None:
    class Choosy(Away):
        async def copy_log_segment_data(
            self, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: RecordsList
        ) -> RemoteWalCombinedLogSegmentMetadataUpdate:
            return replace(await super().copy_log_segment_data(metadata, records_list), custom_metadata=b"inner")

        async def fetch_log_segment(
            self, segment_id: CombinedSegmentId, start: int, end: int, custom_metadata: bytes = b""
        ) -> bytes:
            assert custom_metadata == b"inner"
            return await super().fetch_log_segment(segment_id, start, end)

    plan = plan_buckets(StorageSpec("-", None, {}, "rsm.", {"az1": "one", "az2": "two"}, "az1"), "bucket")
    storage = zoned_storage(plan, {one: Choosy() for one in plan.buckets})
    update = ask(storage.copy_log_segment_data(*segment(0, [b"abc"])))
    assert update.custom_metadata == bucket_id("one") + b"inner"
    assert _whole(storage, update) == b"abc"


def test_tools_do_with_the_buckets_that_answer(spec: StorageSpec, opened: Opened, server: FaultyServer) -> None:
    if spec.class_name == LOCAL:
        pytest.skip("a directory is made where it is not there")
    ask(opened("az1").copy_log_segment_data(*segment(0, [b"abc"])))
    gone = {**spec.buckets, "az2": f"gone-{spec.buckets['az2']}"}
    storage = opened("az1", buckets=gone)
    listing = ask_each(storage.list_log_segments())
    assert next(listing).combined_segment_id == CombinedSegmentId(1, 7, 0)
    with pytest.raises(IncompleteListingError, match="gone-"):
        next(listing)
    with pytest.raises(IncompleteListingError):
        list(ask_each(opened("az1", buckets={"az1": gone["az2"]}).list_log_segments()))


# The list itself.


@pytest.mark.parametrize(
    ("text", "buckets"),
    [
        ("az1=one,az2=two", {"az1": "one", "az2": "two"}),
        (" az1 = one , ", {"az1": "one"}),
        ("use1-az1=wal--use1-az1--x-s3", {"use1-az1": "wal--use1-az1--x-s3"}),
        ("a=/mnt/x=y", {"a": "/mnt/x=y"}),
    ],
)
def test_the_list_names_a_bucket_for_each_zone(text: str, buckets: dict[str, str]) -> None:
    assert parse_buckets(text) == buckets


@pytest.mark.parametrize("text", ["az1", "az1=", "=one", "az1=one,az1=two"])
def test_a_list_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"az1|one"):
        parse_buckets(text)


@pytest.mark.parametrize("zone", ["az3", None])
def test_a_zone_without_a_bucket_is_told_with_the_key(zone: str | None) -> None:
    with pytest.raises(RemoteStorageConfigError, match=r"remote\.wal\.buckets.*broker\.rack"):
        check_own_zone(StorageSpec(S3, None, {}, "rsm.", {"az1": "one"}, zone))
    check_own_zone(StorageSpec(S3, None, {}, "rsm.", {}, zone))


def test_a_zones_own_settings_override_the_common_ones() -> None:
    settings = {"region": "r", "zone.az2.region": "other", "zone.az2.b.region": "third", "bucket": "old"}
    zones = {"az1": "one", "az2": "two", "az2.b": "three"}
    plan = plan_buckets(StorageSpec(S3, None, settings, "rsm.", zones, "az2"), "bucket")
    assert {bucket.name: bucket.settings for bucket in plan.buckets.values()} == {
        "one": {"region": "r", "bucket": "one"},
        "two": {"region": "other", "bucket": "two"},
        "three": {"region": "third", "bucket": "three"},
        "old": {"region": "r", "bucket": "old"},
    }
    assert (plan.own, plan.unnamed) == (bucket_id("two"), bucket_id("old"))


@pytest.mark.parametrize(
    ("settings", "buckets", "fault"),
    [
        ({"zone.az9.region": "r"}, {"az1": "one"}, r"rsm\.zone\.az9\.region"),
        ({"zone.az1.bucket": "x"}, {"az1": "one"}, r"rsm\.zone\.az1\.bucket"),
        ({"zone.az2.endpoint.url": "https://b"}, {"az1": "one", "az2": "one"}, "told apart by their names alone"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(
    settings: dict[str, str], buckets: dict[str, str], fault: str
) -> None:
    with pytest.raises(RemoteStorageConfigError, match=fault):
        plan_buckets(StorageSpec(S3, None, settings, "rsm.", buckets, "az1"), "bucket")


def test_two_zones_may_share_a_bucket() -> None:
    plan = plan_buckets(StorageSpec(S3, None, {}, "rsm.", {"az1": "one", "az2": "one"}, "az2"), "bucket")
    assert [bucket.name for bucket in plan.buckets.values()] == ["one"]


def test_two_names_with_one_id_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugin.zones.buckets.bucket_id", lambda _name: bytes(8))
    with pytest.raises(RemoteStorageConfigError, match="two, of zone az2, cannot be told from one"):
        plan_buckets(StorageSpec(S3, None, {}, "rsm.", {"az1": "one", "az2": "two"}, "az1"), "bucket")


def test_a_storage_manager_that_knows_no_buckets_is_refused() -> None:
    with pytest.raises(RemoteStorageConfigError, match=r"remote\.wal\.buckets"):
        plan_buckets(StorageSpec("their.Own", None, {}, "rsm.", {"az1": "one"}, "az1"), MemoryStorage.bucket_key)
