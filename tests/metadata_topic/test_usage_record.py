"""Usage records: what is written is read, and nothing else is taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.topic_partition import TopicId
from metadata_topic.records.record_fields import UndecodableRecordError
from metadata_topic.records.usage_record import (
    FollowerUsage,
    StoreUsage,
    TopicUsage,
    UsageRecord,
    decode_usage,
    encode_usage,
    encode_usage_key,
)
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.topic.consumer import RemoteWalMetadataConsumer
from tests.metadata_topic.fake_topic import FakeTopic

counts = st.integers(0, 2**64 - 1)
brokers = st.integers(-1, 2**31 - 1)
texts = st.text(max_size=20).filter(lambda text: len(text.encode()) < 256)
usage_records = st.builds(
    UsageRecord,
    broker_id=st.integers(0, 2**31 - 1),
    incarnation=st.integers(0, 2**48 - 1),
    sequence=counts,
    event_timestamp_ms=st.integers(0, 2**62),
    since_ms=st.integers(0, 2**62),
    rack=st.none() | texts.filter(bool),
    stores=st.lists(st.builds(StoreUsage, texts, *[counts] * 7), max_size=3).map(tuple),
    followers=st.lists(st.builds(FollowerUsage, brokers, counts, counts), max_size=5).map(tuple),
    topics=st.lists(
        st.builds(TopicUsage, st.binary(min_size=16, max_size=16).map(TopicId), brokers, counts, counts), max_size=5
    ).map(tuple),
)

RECORD = UsageRecord(
    3, 7, 2, 1_700_000_000_000, 1_699_999_000_000, "zone-a",
    (StoreUsage("s3_express", 10, 20, 1, 2, 3, 1000, 2000),),
    (FollowerUsage(1, 50, 4000),),
    (TopicUsage(TopicId(b"orders".ljust(16)), 1, 3000, 500),),
)  # fmt: skip


@given(usage_records)
def test_what_is_written_is_read(record: UsageRecord) -> None:
    assert decode_usage(encode_usage_key(record), encode_usage(record)) == record


@given(st.integers(0, 400), st.binary(min_size=1, max_size=8))
def test_a_damaged_record_is_refused_or_whole(at: int, damage: bytes) -> None:
    value = encode_usage(RECORD)
    at = min(at, len(value) - 1)
    damaged = value[:at] + damage + value[at + len(damage) :]
    try:
        record = decode_usage(encode_usage_key(RECORD), damaged)
    except UndecodableRecordError:
        return
    assert encode_usage(record) == damaged


@given(st.integers(0, 400))
def test_a_truncated_record_is_refused(length: int) -> None:
    value = encode_usage(RECORD)
    if length < len(value):
        with pytest.raises(UndecodableRecordError):
            decode_usage(encode_usage_key(RECORD), value[:length])


def test_a_count_beyond_the_value_is_refused_before_memory_is_taken() -> None:
    value = bytearray(encode_usage(RECORD))
    value[-40:-36] = b"\xff\xff\xff\xff"  # the number of topics
    with pytest.raises(UndecodableRecordError, match="truncated"):
        decode_usage(encode_usage_key(RECORD), bytes(value))


def test_a_key_of_another_agent_is_refused() -> None:
    key = bytearray(encode_usage_key(RECORD))
    key[-1] ^= 1
    with pytest.raises(UndecodableRecordError, match="key_mismatch"):
        decode_usage(bytes(key), encode_usage(RECORD))


def test_counters_that_do_not_fit_are_no_record() -> None:
    with pytest.raises(ValueError, match="broker 3"):
        encode_usage_key(UsageRecord(3, -1, 0, 0, 0, None, (), (), ()))


def test_agents_pass_usage_over() -> None:
    store, topic = RemoteWalMetadataStore(), FakeTopic()
    topic.append(encode_usage_key(RECORD), encode_usage(RECORD))
    consumer = RemoteWalMetadataConsumer(KafkaClientConfig(""), store, consumer_factory=topic.consumer)
    consumer.start()
    assert consumer.wait_until_ready(10.0)
    consumer.close()
    assert store.progress == {0: 1}
    assert not [name for name in store.counters if name.startswith("unknown")]


def test_agents_log_records_of_another_format_once_and_skip_them(capsys: pytest.CaptureFixture[str]) -> None:
    store, topic = RemoteWalMetadataStore(), FakeTopic()
    for version in (9, 9, 8):
        topic.append(b"rwm:shape:1", bytes([version, 7]))
    consumer = RemoteWalMetadataConsumer(KafkaClientConfig(""), store, consumer_factory=topic.consumer)
    consumer.start()
    assert consumer.wait_until_ready(10.0)
    consumer.close()
    assert (store.progress, store.counters["unknown_version"]) == ({0: 3}, 3)
    assert capsys.readouterr().out.count("metadata_record_of_another_format") == 2
