"""The reader: rebuilds, says when it is ready, follows, and survives what stands in the topic."""

import errno
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_log.topic_partition import TopicId
from local_cluster.polling import wait_until
from metadata_topic.records import serde
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.records.records import MetadataRecord, PublishedSegment, RemoteWalTopicRebuilt
from metadata_topic.records.topic_doubt import TopicDoubt
from metadata_topic.store.fencing import Source
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.store.store_image import StoreImage
from metadata_topic.topic.consumer import RemoteWalMetadataConsumer
from metadata_topic.topic.topic_consumer import ConfluentReader, MessageLike
from metadata_topic.topic.topic_follower import FollowSettings, TopicFollower, TopicRecord
from plugin.segment_metadata import RemoteWalCombinedLogSegmentMetadata
from tests.metadata_topic.fake_topic import FakeConsumer, FakeTopic
from tests.metadata_topic.metadata_strategies import FINISHED, STARTED, entry, segment

QUICK = FollowSettings(batch_records=10, batch_wait_ms=10, retry_pause_ms=1, new_partitions_check_ms=10)
NOWHERE = KafkaClientConfig("nowhere:1")


class WatchedStore(RemoteWalMetadataStore):
    """Lets a test wait until so many records were applied."""

    def __init__(self) -> None:
        super().__init__()
        self.applied = threading.Semaphore(0)

    def apply_all(self, records: Iterable[tuple[MetadataRecord | None, Source]]) -> None:
        batch = list(records)
        super().apply_all(batch)
        self.applied.release(len(batch))

    def wait_for(self, records: int) -> None:
        for _ in range(records):
            assert self.applied.acquire(timeout=10)


def put(topic: FakeTopic, record: RemoteWalCombinedLogSegmentMetadata, partition: int = 0) -> None:
    topic.append(serde.encode_key(record.combined_segment_id), serde.encode(record), partition)


@contextmanager
def reading(
    topic: FakeTopic, snapshot: StoreImage | None = None
) -> Iterator[tuple[RemoteWalMetadataConsumer, WatchedStore]]:
    store = WatchedStore()
    consumer = RemoteWalMetadataConsumer(
        NOWHERE, store, QUICK, consumer_factory=topic.consumer, load_snapshot=lambda: snapshot
    )
    consumer.start()
    try:
        yield consumer, store
    finally:
        consumer.close()


class LostSegments(list[PublishedSegment]):
    """As of a snapshot that the disk does not give back."""

    def __iter__(self) -> Iterator[PublishedSegment]:
        raise OSError(errno.EIO, "Input/output error")


def test_the_topic_is_read_whole_where_a_snapshot_is_lost_while_it_is_taken_in() -> None:
    topic, saved = FakeTopic(), RemoteWalMetadataStore()
    for n in range(10):
        put(topic, segment(n, entry(n, n)))
        saved.apply(segment(n, entry(n, n)), (0, n))
    lost = replace(saved.image(), segments=LostSegments())
    assert lost.progress == {0: 10}
    with reading(topic, lost) as (consumer, store):
        assert consumer.wait_until_ready(10.0)
        assert len(list(store.published_segments())) == 10
        assert store.progress == {0: 10}


def test_it_is_ready_when_all_that_was_there_is_in_the_store() -> None:
    topic = FakeTopic(partitions=3)
    for n in range(100):
        put(topic, segment(n, entry(n, n)), partition=n % 2)
    with reading(topic) as (consumer, store):
        assert consumer.wait_until_ready(10.0)
        assert store.count_by_state()[FINISHED].segments == 100
        assert store.progress == {0: 50, 1: 50}


def test_brokers_hold_no_fetch_until_all_that_was_there_is_read() -> None:
    topic, settings = FakeTopic(), replace(QUICK, fetch_wait_ms=1000, fetch_min_bytes=65536)
    asked: list[tuple[object, object, int]] = []
    taken: list[TopicRecord] = []

    def consumer(config: Mapping[str, object]) -> FakeConsumer:
        asked.append((config["fetch.min.bytes"], config["fetch.wait.max.ms"], len(taken)))
        return topic.consumer(config)

    for n in range(25):
        put(topic, segment(n))
    follower = TopicFollower(NOWHERE, "t", taken.extend, settings, consumer_factory=consumer)
    follower.start()
    try:
        wait_until(lambda: len(asked) == 2, "a patient consumer reads on", 10.0, interval_s=0.01)
        put(topic, segment(25))
        wait_until(lambda: len(taken) == 26, "all is read", 10.0, interval_s=0.01)
    finally:
        follower.close()
    assert asked == [(1, 100, 0), (65536, 1000, 25)]
    assert topic.reads == [(0, n) for n in range(26)]


def test_an_empty_topic_is_ready_at_once() -> None:
    with reading(FakeTopic(partitions=2)) as (consumer, _store):
        assert consumer.wait_until_ready(10.0)


def test_it_is_not_ready_while_the_topic_does_not_exist() -> None:
    topic = FakeTopic(partitions=0)
    with reading(topic) as (consumer, _store):
        assert not consumer.wait_until_ready(0.05)
        topic.partitions.append([])
        assert consumer.wait_until_ready(10.0)


def test_a_topic_that_gets_its_partitions_while_it_is_taken_up_becomes_ready() -> None:
    """A broker tells of a topic that is just being made with fewer partitions than a moment later."""
    topic = FakeTopic()
    told = iter([1, 1])

    class Growing(FakeConsumer):
        def partition_count(self, topic_name: str, timeout_s: float) -> int:
            return next(told, 3)

    for _ in range(2):
        topic.partitions.append([])
    put(topic, segment(1, entry(0, 9)), partition=2)
    topic.consumer = lambda config: Growing(topic)  # type: ignore[method-assign]
    with reading(topic) as (consumer, store):
        assert consumer.wait_until_ready(10.0)
        assert store.count_by_state()[FINISHED].segments == 1


def test_it_follows_what_is_published_later_and_new_partitions() -> None:
    topic = FakeTopic()
    with reading(topic) as (consumer, store):
        assert consumer.wait_until_ready(10.0)
        put(topic, segment(1, state=STARTED))
        store.wait_for(1)
        topic.partitions.append([])
        put(topic, segment(1, entry(0, 9)), partition=1)
        store.wait_for(1)
        assert store.count_by_state()[FINISHED].segments == 1
        assert store.progress == {0: 1, 1: 1}


def test_poison_is_passed_over_once_and_counted() -> None:
    topic = FakeTopic()
    topic.append(b"orders", b"hello")
    topic.append(None, None)
    put(topic, segment(1))
    with reading(topic) as (consumer, store):
        assert consumer.wait_until_ready(10.0)
        assert store.counters["unknown_foreign_key"] == 2
        assert not store.topic.doubts
        assert store.count_by_state()[FINISHED].segments == 1
        assert topic.reads == [(0, 0), (0, 1), (0, 2)]


def test_after_a_failure_it_goes_on_where_it_stood() -> None:
    topic = FakeTopic()
    for n in range(5):
        put(topic, segment(n))
    with reading(topic) as (consumer, store):
        store.wait_for(5)
        wait_until(lambda: topic.consumers == 2, "the patient consumer is there", 10.0, interval_s=0.01)
        with topic.changed:
            topic.fail_next = 2
        put(topic, segment(5))
        store.wait_for(1)
        assert consumer.failure is None
        assert topic.reads == [(0, n) for n in range(6)]
        assert topic.consumers == 4
        assert consumer.counters["consumer_restarts"] == 2


def test_a_defect_in_the_handler_makes_it_unready_and_is_kept() -> None:
    def explode(_records: object) -> None:
        raise ZeroDivisionError

    topic = FakeTopic()
    topic.append(b"k", b"v")
    follower = TopicFollower(NOWHERE, "t", explode, QUICK, consumer_factory=topic.consumer)
    follower.start()
    assert not follower.wait_until_ready(10.0)
    follower.close()
    assert isinstance(follower.failure, ZeroDivisionError)
    assert not follower.ready


@pytest.mark.parametrize(
    ("error", "partitions"), [(None, 3), (KafkaError.UNKNOWN_TOPIC_OR_PART, 0), (KafkaError.LEADER_NOT_AVAILABLE, None)]
)
def test_only_a_topic_that_the_brokers_do_not_know_counts_as_absent(
    error: int | None, partitions: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = SimpleNamespace(error=None if error is None else KafkaError(error), partitions={0: 0, 1: 0, 2: 0})
    answer = SimpleNamespace(topics={"t": told})
    monkeypatch.setattr(
        confluent_kafka, "Consumer", lambda _config: SimpleNamespace(list_topics=lambda *_, **__: answer)
    )
    reader = ConfluentReader({}, KafkaCluster(NOWHERE, "c", 1.0))
    if partitions is None:
        with pytest.raises(KafkaException):
            reader.partition_count("t", 1.0)
    else:
        assert reader.partition_count("t", 1.0) == partitions


def image_of(*records: tuple[MetadataRecord, tuple[int, int]]) -> StoreImage:
    store = RemoteWalMetadataStore()
    store.apply_all(records)
    return store.image()


def test_from_a_snapshot_it_reads_only_what_came_after() -> None:
    topic = FakeTopic(partitions=2)
    for n in range(20):
        put(topic, segment(n, entry(n, n)))
    image = image_of(*((segment(n, entry(n, n)), (0, n)) for n in range(15)))
    with reading(topic, image) as (consumer, store):
        assert consumer.wait_until_ready(10.0)
        assert store.count_by_state()[FINISHED].segments == 20
        assert topic.reads == [(0, n) for n in range(15, 20)]
        assert "gaps" not in consumer.counters


def test_a_command_reads_on_from_the_snapshot_and_gives_up_only_when_nothing_comes() -> None:
    topic, told = FakeTopic(partitions=2), list[str]()
    for n in range(20):
        put(topic, segment(n, entry(n, n)), n % 2)
    image = image_of(*((segment(n, entry(n, n)), (n % 2, n // 2)) for n in range(10)))
    for stalled in (True, False):
        topic.stalled = {1} if stalled else set()
        store = RemoteWalMetadataStore()
        consumer = RemoteWalMetadataConsumer(
            NOWHERE, store, QUICK, consumer_factory=topic.consumer, load_snapshot=lambda: image
        )
        clock = count(0.0, 5.0).__next__ if stalled else lambda: 0.0
        with pytest.raises(MetadataTopicError, match="after 5 records") if stalled else nullcontext():
            consumer.read_whole(told.append, clock, stalled_s=0.5)
        consumer.close()
        assert store.count_by_state()[FINISHED].segments == (15 if stalled else 20)
    assert told[0] == told[-1] == "reading the newest snapshot of the metadata"
    assert sorted(set(topic.reads)) == [(partition, n) for partition in (0, 1) for n in range(5, 10)]


def test_a_gap_between_snapshot_and_topic_is_counted_and_reading_goes_on() -> None:
    topic = FakeTopic()
    for n in range(20):
        put(topic, segment(n, entry(n, n)))
    topic.log_starts[0] = 9
    image = image_of(*((segment(n, entry(n, n)), (0, n)) for n in range(5)))
    with reading(topic, image) as (consumer, store):
        assert consumer.wait_until_ready(10.0)
        assert store.count_by_state()[FINISHED].segments == 5 + 11
        assert consumer.counters["gaps"] == 1
        assert consumer.counters["gap_records"] == 4
        assert set(store.topic.doubts) == {TopicDoubt.GAP}
        assert store.progress == {0: 20}


def test_of_another_topic_what_the_snapshot_tells_is_kept_and_all_is_read_from_its_beginning() -> None:
    """The topic was deleted and made again: it ends before the snapshot does."""
    topic = FakeTopic()
    for n in range(3):
        put(topic, segment(n, entry(n, n)))
    image = image_of(*((segment(n, entry(n, n)), (0, n)) for n in range(50, 60)))
    with reading(topic, image) as (consumer, store):
        assert consumer.wait_until_ready(10.0)
        assert store.count_by_state()[FINISHED].segments == 13
        assert store.progress == {0: 3}
        assert consumer.counters["started_over"] == 1
        assert set(store.topic.doubts) == {TopicDoubt.SHORTER}


def test_a_topic_of_another_id_is_read_from_its_beginning_however_long_it_is_by_now() -> None:
    topic = FakeTopic()
    for n in range(20):
        put(topic, segment(n, entry(n, n)))
    image = replace(image_of((segment(90, entry(90, 90)), (0, 4))), topic_id=TopicId(b"o" * 16))
    with reading(topic, image) as (consumer, store):
        assert consumer.wait_until_ready(10.0)
        assert topic.reads == [(0, n) for n in range(20)]
        assert store.count_by_state()[FINISHED].segments == 21
        assert set(store.topic.doubts) == {TopicDoubt.BEGAN_ANEW}


def test_a_topic_that_is_made_anew_under_a_reader_is_noticed_before_anything_is_concluded() -> None:
    topic = FakeTopic()
    for n in range(5):
        put(topic, segment(n, entry(n, n)))
    with reading(topic) as (consumer, store):
        assert consumer.wait_until_ready(10.0)
        assert not store.topic.doubts
        with topic.changed:
            topic.topic_id = TopicId(b"n" * 16)
            topic.partitions[0] = []
        for n in range(10, 20):
            put(topic, segment(n, entry(n, n)))
        assert consumer.read_to_end(10.0)
        assert set(store.topic.doubts) == {TopicDoubt.BEGAN_ANEW}
        assert store.count_by_state()[FINISHED].segments == 15


def test_a_partition_that_comes_back_empty_under_a_reader_is_noticed_before_anything_is_concluded() -> None:
    topic = FakeTopic()
    for n in range(5):
        put(topic, segment(n, entry(n, n)))
    with reading(topic) as (consumer, store):
        assert consumer.wait_until_ready(10.0)
        with topic.changed:
            topic.partitions[0] = []
            topic.changed.notify_all()
        assert consumer.read_to_end(10.0)
        wait_until(lambda: store.topic.doubts, "it is noticed", 60)
        assert set(store.topic.doubts) == {TopicDoubt.SHORTER}
        assert store.count_by_state()[FINISHED].segments == 5


@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("end", [3, 5], ids=["its end is lost", "nothing is lost"])
def test_a_topic_that_lost_its_end_and_grew_beyond_it_since_is_noticed(end: int, restarts: bool) -> None:
    topic, is_lost = FakeTopic(), end < 5

    def write(*numbers: int) -> None:
        for n in numbers:
            put(topic, segment(n, entry(n, n)))

    def elect_another() -> None:
        with topic.changed:
            topic.elect(end)
            write(*range(10, 20))

    write(0, 1)
    topic.elect(2)
    write(2, 3, 4)
    with reading(topic) as (consumer, store):
        assert consumer.wait_until_ready(10.0)
        if not restarts:
            elect_another()
            assert consumer.read_to_end(10.0)
            assert set(store.topic.doubts) == ({TopicDoubt.SHORTER} if is_lost else set())
        image = store.image()
    if restarts:
        elect_another()
    with reading(topic, image) as (consumer, store):
        assert consumer.wait_until_ready(10.0)
        assert set(store.topic.doubts) == ({TopicDoubt.SHORTER} if is_lost and restarts else set())
        assert store.count_by_state()[FINISHED].segments == 15
        assert consumer.read_to_end(10.0)
        asked = topic.epochs_asked
        assert consumer.read_to_end(10.0)
        assert topic.epochs_asked == asked, "brokers are asked once for each election"


def test_records_that_were_read_before_the_end_was_lost_are_noticed_by_the_record_behind_them() -> None:
    topic = FakeTopic()
    fetched: list[MessageLike] = []

    class FetchesAhead(FakeConsumer):
        def _read(self, num_messages: int) -> list[MessageLike]:
            if not fetched:
                return super()._read(num_messages)
            kept, self._positions = fetched.copy(), {0: len(fetched)}
            fetched.clear()
            return kept

    topic.consumer = lambda config: FetchesAhead(topic)  # type: ignore[method-assign]
    with reading(topic) as (consumer, store):
        assert consumer.wait_until_ready(10.0)
        assert consumer.read_to_end(10.0), "it reads by its lasting consumer, which began before the election"
        with topic.changed:
            for n in range(5):
                put(topic, segment(n, entry(n, n)))
            ahead = FakeConsumer(topic)
            ahead.assign("t", {0: 0})
            kept = ahead.consume(10, 0)
            topic.elect(2)
            for n in range(10, 20):
                put(topic, segment(n, entry(n, n)))
            kept += ahead.consume(10, 0)
            fetched += [one for one in kept if one.error() is None]
        store.wait_for(5)
        assert consumer.read_to_end(10.0)
        assert set(store.topic.doubts) == {TopicDoubt.SHORTER}
        assert store.count_by_state()[FINISHED].segments == 15


@pytest.mark.parametrize("value", [b"\x09\x01newer", b"\x01\x63newer", b"\x01", None])
def test_a_topic_with_records_that_cannot_be_read_is_doubted_until_a_rebuild(value: bytes | None) -> None:
    topic, rebuilt = FakeTopic(), RemoteWalTopicRebuilt(TopicId(b"t" * 16), 77)
    topic.append(serde.encode_key(segment(1).combined_segment_id), value)
    with reading(topic) as (consumer, store):
        assert consumer.wait_until_ready(10.0)
        assert list(store.topic.doubts) == [TopicDoubt.UNREADABLE]
    topic.append(serde.key_of(rebuilt), serde.encode(rebuilt))
    for image in (None, replace(store.image(), progress={}, rebuilt_ms=77)):
        with reading(topic, image) as (consumer, store):
            assert consumer.wait_until_ready(10.0)
            assert not store.topic.doubts


def test_the_record_of_a_rebuild_ends_a_doubt_and_only_once() -> None:
    topic = FakeTopic()
    rebuilt = RemoteWalTopicRebuilt(TopicId(b"t" * 16), 77)
    topic.append(serde.key_of(rebuilt), serde.encode(rebuilt))
    image = replace(image_of((segment(90, entry(90, 90)), (0, 4))), topic_id=TopicId(b"o" * 16))
    with reading(topic, image) as (consumer, store):
        assert consumer.wait_until_ready(10.0)
        assert not store.topic.doubts
        remembered = store.image()
    assert (remembered.topic_id, remembered.rebuilt_ms) == (topic.topic_id, 77)
    topic.partitions[0] = topic.partitions[0][:1]  # the tail is lost; what stands before it was read long ago
    with reading(topic, replace(remembered, progress={0: 9})) as (consumer, store):
        assert consumer.wait_until_ready(10.0)
        assert set(store.topic.doubts) == {TopicDoubt.SHORTER}


def test_a_rebuild_of_another_topic_says_nothing() -> None:
    topic = FakeTopic()
    rebuilt = RemoteWalTopicRebuilt(TopicId(b"x" * 16), 77)
    topic.append(serde.key_of(rebuilt), serde.encode(rebuilt))
    image = replace(image_of((segment(90, entry(90, 90)), (0, 4))), topic_id=TopicId(b"o" * 16))
    with reading(topic, image) as (consumer, store):
        assert consumer.wait_until_ready(10.0)
        assert set(store.topic.doubts) == {TopicDoubt.BEGAN_ANEW}
