"""Objects in the buckets of several zones: which these are, how many must take an object, and what is named."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugin.errors import (
    RemoteResourceNotFoundError,
    RemoteSegmentConflictError,
    RemoteStorageTimeoutError,
    UnknownBucketError,
)
from plugin.format.bucket_copies import NamedCopies, bucket_id, copies_taken, joined
from plugin.remote_wal_storage_manager import StoredSegment
from plugin.segment_metadata import CombinedSegmentId, RemoteWalCombinedLogSegmentMetadataUpdate
from plugin.zones.bucket_loading import zoned_storage
from plugin.zones.buckets import BucketPlan, StorageSpec, check_copies, plan_buckets
from plugin.zones.copy_writer import REST_S
from plugin.zones.zoned_storage import ZonedWalStorageManager
from tests.plugin.storage_backends import VirtualTime, segment
from tests.rlm.memory_storage import FAIL_AFTER, FAIL_BEFORE, MemoryStorage

THREE = {"az1": "one", "az2": "two", "az3": "three"}
_named = st.binary(min_size=8, max_size=40).filter(lambda one: not one.startswith(bucket_id("")))


def _plan(zone: str | None, copies: int, acknowledged: int = 1, buckets: dict[str, str] = THREE) -> BucketPlan:
    spec = StorageSpec("-", None, {}, "rsm.", buckets, zone, copies, acknowledged)
    return plan_buckets(spec, "bucket")


class Store:
    """Of a broker in az1."""

    def __init__(self, copies: int = 2, acknowledged: int = 1) -> None:
        plan = _plan("az1", copies, acknowledged)
        of_id = {one: MemoryStorage() for one in plan.buckets}
        self.buckets = {bucket.name: of_id[one] for one, bucket in plan.buckets.items()}
        self.time = VirtualTime()
        self.storage = zoned_storage(plan, of_id, self.time.clock)

    def write(self, sequence: int, records: bytes = b"abc") -> RemoteWalCombinedLogSegmentMetadataUpdate:
        return self.storage.copy_log_segment_data(*segment(sequence, [records]))

    def taken_by(self, update: RemoteWalCombinedLogSegmentMetadataUpdate) -> list[str | None]:
        return [copy.place for copy in self.storage.copies_of(update.custom_metadata) if copy.is_sure]

    def perhaps_by(self, update: RemoteWalCombinedLogSegmentMetadataUpdate) -> list[str | None]:
        return [copy.place for copy in self.storage.copies_of(update.custom_metadata) if not copy.is_sure]

    def read(self, update: RemoteWalCombinedLogSegmentMetadataUpdate) -> bytes:
        entry = update.entries[0]
        return self.storage.fetch_log_segment(
            update.combined_segment_id, entry.start_file_position, entry.end_file_position, update.custom_metadata
        )

    def objects(self) -> dict[str, int]:
        return {name: len(bucket.objects) for name, bucket in self.buckets.items()}


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    for bucket in made.buckets.values():
        for event in (bucket.copies_held or {}).values():
            event.set()
    made.storage.close()


# What is named.


@given(st.lists(_named, min_size=1, max_size=5), st.lists(_named, max_size=3))
def test_the_named_buckets_are_read_back(taken: list[bytes], doubtful: list[bytes]) -> None:
    copies = NamedCopies(tuple(taken), tuple(doubtful))
    assert NamedCopies.decode(copies.encode()) == copies
    assert copies_taken(copies.encode()) == len(taken)


def test_one_bucket_is_named_as_ever() -> None:
    assert NamedCopies((bucket_id("one") + b"rest",)).encode() == bucket_id("one") + b"rest"
    assert NamedCopies.decode(b"") == NamedCopies((b"",))


@given(st.binary(max_size=60))
def test_what_cannot_be_read_names_a_bucket_that_nobody_knows(rest: bytes) -> None:
    damaged = bucket_id("") + rest
    copies = NamedCopies.decode(damaged)
    assert copies.taken == (damaged,) or copies.encode() == damaged
    with pytest.raises(UnknownBucketError):
        Store().storage.delete_log_segment_data(CombinedSegmentId(1, 1, 1), bucket_id("") + b"\x01\x00")


def test_one_object_of_two_listings_names_both_buckets() -> None:
    listed = [
        StoredSegment(CombinedSegmentId(1, 1, sequence), "key", 9, time, bucket_id(name))
        for sequence, time, name in ((0, 5, "one"), (1, 5, "one"), (0, 7, "two"))
    ]
    both = NamedCopies((bucket_id("one"), bucket_id("two"))).encode()
    assert list(joined(listed).values()) == [replace(listed[0], custom_metadata=both, last_modified_ms=7), listed[1]]


# Where copies go.


@pytest.mark.parametrize(
    ("zone", "copies", "names"),
    [
        ("az1", 1, []),
        ("az1", 2, ["two"]),
        ("az2", 2, ["three"]),
        ("az3", 2, ["one"]),
        ("az2", 3, ["three", "one"]),
        (None, 2, []),
    ],
)
def test_copies_go_to_the_zones_that_follow_by_name(zone: str | None, copies: int, names: list[str]) -> None:
    assert _plan(zone, copies).copies == tuple(map(bucket_id, names))
    in_another_order = {one: THREE[one] for one in ("az3", "az1", "az2")}
    assert _plan(zone, copies, buckets=in_another_order).copies == tuple(map(bucket_id, names))


def test_a_bucket_that_two_zones_share_gets_no_copy_of_its_own_objects() -> None:
    shared = {"az1": "one", "az2": "one", "az3": "three"}
    assert _plan("az1", 2, buckets=shared).copies == (bucket_id("three"),)
    check_copies(shared, 2)
    with pytest.raises(ValueError, match=r"3 copies .* names 2"):
        check_copies(shared, 3)
    check_copies({}, 1)
    with pytest.raises(ValueError, match=r"2 copies"):
        check_copies({}, 2)


# Who must take an object.


def test_both_buckets_take_it_and_the_own_one_is_named_first(store: Store) -> None:
    update = store.write(0)
    assert store.taken_by(update) == ["one", "two"]
    assert store.perhaps_by(update) == []
    assert store.objects() == {"one": 1, "two": 1, "three": 0}
    assert store.storage.request_counts.missed_copies == {}


@pytest.mark.parametrize(("failing", "left"), [("one", "two"), ("two", "one")])
def test_where_one_is_enough_a_bucket_that_fails_is_left_out_told_and_tried_again(
    store: Store, failing: str, left: str
) -> None:
    store.buckets[failing].copies_fail = True
    updates = [store.write(sequence) for sequence in range(3)]
    assert [store.taken_by(update) for update in updates] == [[left]] * 3
    assert [store.perhaps_by(update) for update in updates] == [[failing], [], []]
    assert [store.read(update) for update in updates] == [b"abc"] * 3
    assert store.storage.request_counts.missed_copies == {failing: 3}
    assert store.storage.out_of_step == [failing]
    store.buckets[failing].copies_fail = False
    store.time.now += REST_S + 1
    store.write(3)  # nobody waits for it there
    while store.storage.out_of_step:
        threading.Event().wait(0.01)
    assert store.taken_by(store.write(4)) == ["one", "two"]


def test_a_bucket_that_is_slow_is_waited_for_once(store: Store) -> None:
    store.buckets["two"].hold_copies(0)
    update = store.write(0)
    assert (store.taken_by(update), store.perhaps_by(update)) == (["one"], ["two"])
    assert store.taken_by(store.write(1)) == ["one"]
    assert store.storage.out_of_step == ["two"]
    held = store.buckets["two"].copies_held
    assert held is not None
    held[0].set()
    while not store.buckets["two"].objects:
        threading.Event().wait(0.01)
    assert store.objects() == {"one": 2, "two": 1, "three": 0}
    assert store.storage.out_of_step == ["two"]  # else the next object would wait for it again
    store.storage.delete_log_segment_data(update.combined_segment_id, update.custom_metadata)
    assert store.objects() == {"one": 1, "two": 0, "three": 0}


def test_a_write_that_failed_and_took_effect_all_the_same_is_deleted_with_the_object(store: Store) -> None:
    store.buckets["two"].copy_faults = [FAIL_AFTER]
    update = store.write(0)
    assert store.taken_by(update) == ["one"]
    store.storage.delete_log_segment_data(update.combined_segment_id, update.custom_metadata)
    assert store.objects() == {"one": 0, "two": 0, "three": 0}


def test_below_the_set_number_the_upload_fails_and_all_are_asked_again_by_the_next() -> None:
    store = Store(copies=2, acknowledged=2)
    store.buckets["two"].copy_faults = [FAIL_BEFORE, FAIL_AFTER]
    for sequence in range(2):
        with pytest.raises(RemoteStorageTimeoutError):
            store.write(sequence)
    assert store.taken_by(store.write(2)) == ["one", "two"]
    assert store.storage.request_counts.missed_copies == {}
    for sequence in range(2):  # as after any upload without an end: nobody could say where it is
        store.storage.delete_log_segment_data(segment(sequence, [])[0].combined_segment_id)
    assert store.objects() == {"one": 1, "two": 1, "three": 0}
    store.storage.close()


def test_two_of_three_are_enough_where_two_must_take_it() -> None:
    store = Store(copies=3, acknowledged=2)
    store.buckets["one"].copies_fail = True
    update = store.write(0)
    assert (store.taken_by(update), store.perhaps_by(update)) == (["two", "three"], ["one"])
    store.storage.close()


def test_other_bytes_under_the_key_in_one_bucket_are_a_conflict(store: Store) -> None:
    store.buckets["two"].copy_log_segment_data(*segment(0, [b"of another writer"]))
    with pytest.raises(RemoteSegmentConflictError):
        store.write(0)


# Where it is read.


def test_the_next_copy_is_read_where_the_nearest_fails_or_lost_it(store: Store) -> None:
    update = store.write(0)
    assert store.read(update) == b"abc"
    assert [len(store.buckets[name].fetches) for name in ("one", "two")] == [1, 0]
    store.buckets["one"].fetches_fail = True
    assert store.read(update) == b"abc"
    store.buckets["two"].objects.clear()
    with pytest.raises(RemoteStorageTimeoutError):  # it may be in the one that does not answer
        store.read(update)
    store.buckets["one"].fetches_fail = False
    store.buckets["one"].objects.clear()
    with pytest.raises(RemoteResourceNotFoundError):
        store.read(update)


def test_a_bucket_that_failed_is_read_last_for_a_while(store: Store) -> None:
    update = store.write(0)
    store.buckets["one"].fetches_fail = True
    assert [store.read(update) for _ in range(3)] == [b"abc"] * 3
    assert [len(store.buckets[name].fetches) for name in ("one", "two")] == [1, 3]
    store.buckets["one"].fetches_fail = False
    store.time.now += 61
    assert store.read(update) == b"abc"
    assert [len(store.buckets[name].fetches) for name in ("one", "two")] == [2, 3]


def test_a_deletion_that_fails_in_one_bucket_is_made_in_the_other_and_fails(store: Store) -> None:
    update = store.write(0)
    store.buckets["one"].delete_faults = [FAIL_BEFORE]
    with pytest.raises(RemoteStorageTimeoutError):
        store.storage.delete_log_segment_data(update.combined_segment_id, update.custom_metadata)
    assert store.objects() == {"one": 1, "two": 0, "three": 0}


def test_without_copies_nothing_but_the_own_bucket_is_asked() -> None:
    plan = _plan("az1", 1)
    of_id = {one: MemoryStorage() for one in plan.buckets}
    storage: ZonedWalStorageManager = zoned_storage(plan, of_id)
    threads = threading.active_count()
    update = storage.copy_log_segment_data(*segment(0, [b"abc"]))
    assert update.custom_metadata == bucket_id("one")
    assert [len(of_id[one].objects) for one in plan.buckets] == [1, 0, 0]
    assert threading.active_count() == threads
