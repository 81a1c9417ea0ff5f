"""The archive's part of a snapshot, and the reader that feeds both stores from one topic."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from metadata_topic.records import archive_records, serde
from metadata_topic.records.archive_records import ArchiveRecord
from metadata_topic.records.errors import SnapshotError
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.records.states import FINISHED
from metadata_topic.records.topic_doubt import TopicDoubt
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.snapshots.archive_snapshot import (
    EXTRA_NAME,
    encode_archive,
    restore_archive,
    with_archive,
)
from metadata_topic.store.snapshots.snapshot import read_image, snapshot_chunks
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.store.store_image import StoreImage
from metadata_topic.topic.consumer import RemoteWalMetadataConsumer
from tests.metadata_topic.archive_strategies import committed, object_id, prepared
from tests.metadata_topic.fake_topic import FakeTopic
from tests.metadata_topic.metadata_strategies import ORDERS, entry, segment
from tests.metadata_topic.test_consumer import NOWHERE, QUICK

BROKER = object_id(1, 0, 9).writer_id.broker_id
INCARNATION = object_id(1, 0, 9).writer_id.incarnation


def put(topic: FakeTopic, record: ArchiveRecord) -> None:
    topic.append(archive_records.encode_key(record.object_id), archive_records.encode(record))


def register(topic: FakeTopic, incarnation: int) -> None:
    record = RemoteWalNodeRegistration(BROKER, incarnation, BROKER, 0)
    topic.append(serde.key_of(record), serde.encode(record))


@contextmanager
def reading(
    topic: FakeTopic, snapshot: StoreImage | None = None
) -> Iterator[tuple[RemoteWalMetadataStore, ArchiveStore, RemoteWalMetadataConsumer]]:
    store, archive = RemoteWalMetadataStore(), ArchiveStore()
    consumer = RemoteWalMetadataConsumer(
        NOWHERE, store, QUICK, consumer_factory=topic.consumer, load_snapshot=lambda: snapshot, archive=archive
    )
    consumer.start()
    try:
        assert consumer.wait_until_ready(10.0)
        yield store, archive, consumer
    finally:
        consumer.close()


def test_the_archives_records_go_to_its_own_store_and_count_for_nothing_in_the_other() -> None:
    topic = FakeTopic()
    put(topic, prepared(object_id(1, 0, 9)))
    put(topic, committed(object_id(1, 0, 9)))
    record = segment(1, entry(0, 9))
    topic.append(serde.encode_key(record.combined_segment_id), serde.encode(record))
    topic.append(object_id(2, 0, 9).to_bytes(), b"\x07newer")
    with reading(topic) as (store, archive, _):
        assert archive.covers(ORDERS, 0, 0, 9)
        assert store.progress == {0: 4}
        assert {name: n for name, n in store.counters.items() if name.startswith("unknown_")} == {"unknown_version": 1}
        assert list(store.topic.doubts) == [TopicDoubt.UNREADABLE]
        assert store.count_by_state()[FINISHED].segments == 1


def test_a_snapshot_restores_both_and_the_topic_is_read_on_from_it() -> None:
    topic = FakeTopic()
    put(topic, committed(object_id(1, 0, 9)))
    register(topic, INCARNATION + 1)
    put(topic, prepared(object_id(3, 50, 59)))
    with reading(topic) as (store, archive, _):
        image = with_archive(store.image(), archive)
    image = read_image(b"".join(snapshot_chunks(image, "c")), "c")
    topic.reads.clear()
    put(topic, committed(object_id(2, 10, 19)))
    with reading(topic, image) as (store, archive, _):
        assert topic.reads == [(0, 3)]
        assert archive.covers(ORDERS, 0, 0, 9)
        assert archive.counters["fenced"] == 1
        assert not archive.covers(ORDERS, 0, 10, 19)


def test_a_snapshot_that_does_not_tell_of_the_archive_is_passed_over() -> None:
    topic = FakeTopic()
    put(topic, committed(object_id(1, 0, 9)))
    with reading(topic) as (store, _, _):
        image = store.image()
    with reading(topic, image) as (store, archive, _):
        assert archive.covers(ORDERS, 0, 0, 9)
        assert store.progress == {0: 1}


def test_of_another_topic_than_the_snapshot_tells_of_both_keep_what_they_know() -> None:
    topic = FakeTopic()
    put(topic, committed(object_id(1, 0, 9)))
    register(topic, INCARNATION)
    with reading(topic) as (store, archive, _):
        image = with_archive(store.image(), archive)
    with reading(FakeTopic(), image) as (store, archive, _):
        assert archive.topic_id_partitions() != []
        assert store.registration_of(BROKER) is not None


@pytest.mark.parametrize("cut", [1, 5, 9, 20, -1])
def test_a_damaged_part_changes_nothing(cut: int) -> None:
    archive = ArchiveStore()
    archive.apply(committed(object_id(1, 0, 9)))
    whole = encode_archive(archive)
    damaged = b"\x03" + whole[1:] if cut == 1 else whole[:cut]
    image = replace(RemoteWalMetadataStore().image(), extras={EXTRA_NAME: damaged})
    with pytest.raises(SnapshotError):
        restore_archive(archive, image)
    assert archive.covers(ORDERS, 0, 0, 9)
