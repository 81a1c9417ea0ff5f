"""Publishing: never blocks, never skips, stops taking before it would lose."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import KafkaError, KafkaException

from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.polling import wait_until
from metadata_topic.records import archive_records, serde
from metadata_topic.records.errors import MetadataRecordTooLargeError, PublicationBacklogFullError
from metadata_topic.records.records import PublishedSegment, RemoteWalNodeRegistration
from metadata_topic.records.usage_record import UsageRecord, encode_usage, encode_usage_key
from metadata_topic.topic.publication_queue import DEFAULT_SETTINGS, PublicationQueue, PublisherSettings
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher
from tests.metadata_topic.archive_strategies import committed, object_id
from tests.metadata_topic.metadata_strategies import DELETING, FINISHED, STARTED, dead, entry, segment

Report = Callable[[object | None, object], None]


class FakeKafka:
    """A partition, and the producers that write to it. Deliveries wait until `available` is set."""

    def __init__(self) -> None:
        self.available = threading.Event()
        self.available.set()
        self.log: list[tuple[int, bytes, bytes]] = []
        self.fail_next: list[str] = []
        self.raise_next: list[KafkaException] = []
        self.queue_limit = 1_000_000
        self.partitions = 12
        self.producers: list[FakeProducer] = []

    def producer(self, config: object) -> "FakeProducer":
        self.producers.append(FakeProducer(self))
        return self.producers[-1]


class FakeProducer:
    def __init__(self, kafka: FakeKafka) -> None:
        self.kafka = kafka
        self.queue: list[tuple[int, bytes, bytes, Report]] = []
        self.fatal = False

    def partition_count(self, topic: str, timeout_s: float) -> int:
        return self.kafka.partitions

    def produce(self, topic: str, value: bytes | None, key: bytes, partition: int, on_delivery: Report) -> None:
        assert value is not None
        if partition >= self.kafka.partitions:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        if len(self.queue) >= self.kafka.queue_limit:
            raise BufferError("Local: Queue full")
        self.queue.append((partition, key, value, on_delivery))

    def poll(self, timeout: float) -> int:
        if self.kafka.raise_next:
            self.fatal = True
            raise self.kafka.raise_next.pop(0)
        if self.queue and not self.kafka.available.wait(timeout):
            return 0
        served, self.queue = self.queue, []
        for partition, key, value, on_delivery in served:
            if self.fatal or self.kafka.fail_next:
                self.fatal = True
                error = self.kafka.fail_next.pop(0) if self.kafka.fail_next else "after a fatal error"
                on_delivery(error, None)
            else:
                self.kafka.log.append((partition, key, value))
                on_delivery(None, None)
        return len(served)

    def purge(self) -> None:
        purged, self.queue = self.queue, []
        for *_, on_delivery in purged:
            on_delivery("Local: Purged in queue", None)

    def flush(self, timeout: float) -> int:
        return len(self.queue)


@contextmanager
def publishing(
    kafka: FakeKafka, settings: PublisherSettings = DEFAULT_SETTINGS, clock: Callable[[], float] = lambda: 0.0
) -> Iterator[RemoteWalMetadataPublisher]:
    publisher = RemoteWalMetadataPublisher(KafkaClientConfig("nowhere:1"), 17, clock, settings, kafka.producer)
    try:
        yield publisher
    finally:
        kafka.available.set()
        publisher.close(5.0)


def published(kafka: FakeKafka) -> list[int]:
    decoded = [serde.decode(key, value) for _, key, value in kafka.log]
    return [record.metadata.combined_segment_id.sequence for record in decoded if isinstance(record, PublishedSegment)]


def test_records_arrive_in_order_on_the_agents_own_partition() -> None:
    kafka = FakeKafka()
    with publishing(kafka) as publisher:
        publisher.start()
        for n in range(500):
            publisher.publish(segment(n, entry(n, n), broker_id=17))
        assert publisher.flush(10.0)
        assert published(kafka) == list(range(500))
        assert {partition for partition, *_ in kafka.log} == {17 % 12}
        assert publisher.pending == publisher.pending_bytes == 0


def test_whatever_is_about_a_brokers_objects_goes_to_that_brokers_partition() -> None:
    kafka = FakeKafka()
    registration = RemoteWalNodeRegistration(4, 7, caretaker_broker_id=17, event_timestamp_ms=1)
    with publishing(kafka) as publisher:
        publisher.start()
        publisher.publish(registration)
        publisher.publish(segment(1, state=DELETING, broker_id=4))
        publisher.publish(dead(1, entry(0, 9), broker_id=4))
        publisher.publish(archived := committed(object_id(1, 0, 9, broker_id=4)))
        publisher.publish(usage := UsageRecord(4, 7, 2, 2, 1, None, (), (), ()))
        assert publisher.flush(10.0)
        assert [partition for partition, *_ in kafka.log] == [4, 4, 4, 4, 4]
        assert kafka.log[4][1:] == (encode_usage_key(usage), encode_usage(usage))
        _, key, value = kafka.log[0]
        assert serde.decode(key, value) == registration
        _, key, value = kafka.log[3]
        assert archive_records.decode(key, value) == archived


def test_a_fatal_error_that_a_poll_raises_is_a_producers_end_and_no_defect() -> None:
    kafka, defects = FakeKafka(), list[Exception]()
    kafka.raise_next.append(KafkaException(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, fatal=True)))
    with publishing(kafka) as publisher:
        publisher.start(defects.append)
        for n in range(50):
            publisher.publish(segment(n, entry(n, n), broker_id=17))
        assert publisher.flush(10.0)
        assert (published(kafka), len(kafka.producers), defects) == (list(range(50)), 2, [])


def test_publishing_returns_while_the_topic_is_unavailable() -> None:
    kafka, now = FakeKafka(), [100.0]
    kafka.available.clear()
    with publishing(kafka, clock=lambda: now[0]) as publisher:
        publisher.start()
        publisher.publish(segment(0, state=STARTED))
        now[0] = 103.0
        publisher.publish(segment(0, state=FINISHED))
        assert publisher.pending == 2
        now[0] = 110.0
        assert publisher.oldest_pending_age_s() == 10.0
        assert not publisher.flush(0.05)
        kafka.available.set()
        assert publisher.flush(10.0)
        assert publisher.oldest_pending_age_s() == 0.0


def test_what_is_told_of_a_segment_is_pending_until_it_is_acknowledged() -> None:
    kafka = FakeKafka()
    kafka.available.clear()
    told, other = segment(0, state=STARTED), segment(1, state=STARTED)
    with publishing(kafka) as publisher:
        publisher.publish(told)
        assert publisher.is_pending(told.combined_segment_id)
        assert not publisher.is_pending(other.combined_segment_id)
        publisher.start()
        wait_until(lambda: publisher.counters.get("sent") == 1, "it is sent", 10.0)
        assert publisher.is_pending(told.combined_segment_id)
        publisher.publish(segment(0, state=FINISHED))
        kafka.available.set()
        assert publisher.flush(10.0)
        assert not publisher.is_pending(told.combined_segment_id)
        kafka.available.clear()
        publisher.publish(told)
        assert publisher.is_pending(told.combined_segment_id)


def test_who_waits_for_a_segment_is_told_once_all_of_it_is_acknowledged() -> None:
    kafka = FakeKafka()
    kafka.available.clear()
    told: list[int] = []
    with publishing(kafka) as publisher:
        for state in (STARTED, FINISHED):
            publisher.publish(segment(0, state=state))
        publisher.publish(segment(1, state=STARTED))
        publisher.when_published(segment(0, state=STARTED).combined_segment_id, lambda: told.append(0))
        publisher.when_published(segment(7, state=STARTED).combined_segment_id, lambda: told.append(7))
        assert told == [7]
        publisher.start()
        wait_until(lambda: publisher.counters.get("sent") == 3, "all are sent", 10.0)
        assert told == [7]
        kafka.available.set()
        assert publisher.flush(10.0)
        assert told == [7, 0]


def test_what_somebody_waits_for_does_not_linger() -> None:
    kafka = FakeKafka()
    told = threading.Event()
    with publishing(kafka, PublisherSettings(linger_ms=3_600_000)) as publisher:
        publisher.start()
        publisher.publish(segment(0, state=FINISHED))
        publisher.when_published(segment(0, state=FINISHED).combined_segment_id, told.set)
        assert told.wait(60.0)


def test_only_the_first_of_those_that_are_gathered_wakes_who_publishes(monkeypatch: pytest.MonkeyPatch) -> None:
    woken = []

    class Told(threading.Condition):
        def notify_all(self) -> None:
            woken.append(self)
            super().notify_all()

    monkeypatch.setattr("metadata_topic.topic.publication_queue.threading.Condition", Told)
    queue = PublicationQueue(lambda: 0.0, DEFAULT_SETTINGS)
    for number in range(3):
        queue.publish(segment(number, entry(number, number), state=STARTED))
    assert len(woken) == 1


def test_over_the_bound_nothing_more_is_taken_and_nothing_taken_is_lost() -> None:
    kafka = FakeKafka()
    kafka.available.clear()
    with publishing(kafka, PublisherSettings(max_pending_records=10)) as publisher:
        publisher.start()
        for n in range(10):
            publisher.publish(segment(n))
        with pytest.raises(PublicationBacklogFullError, match="10 records"):
            publisher.publish(segment(10))
        kafka.available.set()
        assert publisher.flush(10.0)
        publisher.publish(segment(11))
        assert publisher.flush(10.0)
        assert published(kafka) == [*range(10), 11]
        assert publisher.counters["refused"] == 1


def test_the_bound_on_bytes_holds_too() -> None:
    record = segment(0, entry(0, 9))
    bound = int(2.5 * len(serde.encode(record)))
    with publishing(FakeKafka(), PublisherSettings(max_pending_bytes=bound)) as publisher:
        publisher.publish(record)
        publisher.publish(record)
        with pytest.raises(PublicationBacklogFullError):
            publisher.publish(record)
        assert publisher.pending == 2


def test_after_a_fatal_error_a_new_producer_publishes_what_was_not_acknowledged_in_order() -> None:
    kafka = FakeKafka()
    kafka.fail_next = ["fatal: out of order sequence"]
    with publishing(kafka, PublisherSettings(retry_pause_ms=1)) as publisher:
        for n in range(50):
            publisher.publish(segment(n))
        publisher.start()
        assert publisher.flush(10.0)
        assert published(kafka) == list(range(50))
        assert len(kafka.producers) == 2
        assert publisher.counters["producer_restarts"] == 1
        assert publisher.counters["acknowledged"] == 50


def test_a_producer_that_is_told_nothing_is_made_anew_and_then_after_twice_as_long() -> None:
    kafka, now = FakeKafka(), [0.0]
    kafka.available.clear()

    def restarts() -> int:
        return publisher.counters.get("producer_restarts", 0)

    def all_is_sent_again() -> bool:
        return len(kafka.producers) == restarts() + 1 and len(kafka.producers[-1].queue) == 3

    with publishing(kafka, PublisherSettings(retry_pause_ms=1), clock=lambda: now[0]) as publisher:
        for n in range(3):
            publisher.publish(segment(n))
        publisher.start()
        wait_until(all_is_sent_again, "all are sent", 10.0, interval_s=0.01)
        for number, silent_s in enumerate((30.0, 60.0, 120.0, 240.0, 300.0, 300.0)):
            now[0] += silent_s - 0.1
            time.sleep(0.15)  # it looks each 50 ms
            assert restarts() == number
            now[0] += 0.1
            wait_until(lambda: restarts() == number + 1, "it is given up", 10.0, interval_s=0.01)  # noqa: B023
            wait_until(all_is_sent_again, "all are sent again", 10.0, interval_s=0.01)
        now[0] += 100.0
        assert "no broker has acknowledged a record for 300 s" in str(publisher.stall_reason())
        kafka.available.set()
        assert publisher.flush(10.0)
        assert published(kafka) == [0, 1, 2]
        # Who was told something is as impatient as at first, and one that has nothing to send is told nothing.
        now[0] += 10_000.0
        kafka.available.clear()
        publisher.publish(segment(3))
        wait_until(lambda: publisher.counters["sent"] == 22, "it is sent", 10.0, interval_s=0.01)
        time.sleep(0.15)
        assert restarts() == 6
        now[0] += 30.0
        wait_until(lambda: restarts() == 7, "it is given up", 10.0, interval_s=0.01)


def test_partitions_that_are_added_or_gone_are_found_out() -> None:
    kafka, now = FakeKafka(), [0.0]
    with publishing(kafka, PublisherSettings(retry_pause_ms=1), clock=lambda: now[0]) as publisher:
        publisher.start()
        for partitions, waited_s in ((12, 0.0), (16, 100.0), (3, 0.0)):
            kafka.partitions = partitions
            now[0] += waited_s
            publisher.publish(segment(partitions, broker_id=15))
            assert publisher.flush(10.0)
        assert [partition for partition, *_ in kafka.log] == [15 % 12, 15 % 16, 15 % 3]


def test_records_wait_for_a_topic_that_is_not_there() -> None:
    kafka, now = FakeKafka(), [0.0]
    kafka.partitions = 0
    with publishing(kafka, PublisherSettings(retry_pause_ms=1), clock=lambda: now[0]) as publisher:
        publisher.start()
        publisher.publish(segment(0))
        assert not publisher.flush(0.05)
        assert publisher.stall_reason() is None
        now[0] = 61.0
        why = "the oldest for 61 s: there is no __remote_wal_log_metadata"
        wait_until(lambda: why in (publisher.stall_reason() or ""), "the topic was asked for", 10.0, interval_s=0.01)
        with pytest.raises(PublicationBacklogFullError, match="there is no __remote_wal_log_metadata"):
            publisher.publish(segment(1))
        kafka.partitions = 12
        assert publisher.flush(10.0)
        assert publisher.stall_reason() is None
        publisher.publish(segment(2))
        assert publisher.flush(10.0)
        assert published(kafka) == [0, 2]


def test_what_never_succeeds_is_told_with_its_reason_and_over_once_it_does() -> None:
    kafka, now = FakeKafka(), [0.0]
    kafka.fail_next = ["Broker: Message size too large"] * 3
    with publishing(kafka, PublisherSettings(retry_pause_ms=1), clock=lambda: now[0]) as publisher:
        publisher.publish(segment(0))
        now[0] = 1000.0
        assert "no broker acknowledges" in str(publisher.stall_reason())
        publisher.start()
        assert publisher.flush(10.0)
        assert publisher.stall_reason() is None


def test_nothing_is_published_while_it_would_be_lost() -> None:
    kafka = FakeKafka()
    with publishing(kafka, PublisherSettings(retry_pause_ms=1)) as publisher:
        publisher.hold("cleanup.policy is compact")
        publisher.start()
        with pytest.raises(PublicationBacklogFullError, match="compact"):
            publisher.publish(segment(0))
        assert publisher.stall_reason() == "cleanup.policy is compact"
        publisher.hold(None)
        publisher.publish(segment(1))
        assert publisher.flush(10.0)
        publisher.hold("cleanup.policy is compact")
        assert published(kafka) == [1]


def test_a_full_client_queue_leaves_records_waiting_in_order() -> None:
    kafka = FakeKafka()
    kafka.queue_limit = 7
    with publishing(kafka, PublisherSettings(linger_ms=1)) as publisher:
        for n in range(100):
            publisher.publish(segment(n))
        publisher.start()
        assert publisher.flush(10.0)
        assert published(kafka) == list(range(100))
        assert publisher.counters["queue_full"] > 0


def test_a_record_that_could_never_be_published_is_refused_at_once() -> None:
    with publishing(FakeKafka(), PublisherSettings(max_record_bytes=60)) as publisher:
        with pytest.raises(MetadataRecordTooLargeError):
            publisher.publish(segment(0, entry(0, 9)))
        assert publisher.pending == 0


def test_closing_tells_how_many_records_are_left() -> None:
    kafka = FakeKafka()
    kafka.available.clear()
    with publishing(kafka) as publisher:
        publisher.start()
        publisher.publish(segment(0))
        assert publisher.close(0.05) == 1
        with pytest.raises(PublicationBacklogFullError, match="closing"):
            publisher.publish(segment(1))
