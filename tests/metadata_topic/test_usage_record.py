"""Usage records, a broker's and a gateway's: what is written is read, and nothing else is taken for one."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.topic_partition import TopicId
from metadata_topic.records.publishable import broker_of, encoded, name_of
from metadata_topic.records.record_fields import UndecodableRecordError
from metadata_topic.records.usage_record import (
    ClientUsageRecord,
    ClientZoneUsage,
    FollowerUsage,
    RouterUsage,
    StoreUsage,
    TopicUsage,
    UsageRecord,
    decode_client_usage,
    decode_usage,
    encode_client_usage,
    encode_client_usage_key,
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
client_usage_records = st.builds(
    ClientUsageRecord,
    broker_id=st.integers(0, 2**31 - 1),
    incarnation=st.integers(0, 2**48 - 1),
    sequence=counts,
    event_timestamp_ms=st.integers(0, 2**62),
    zone=texts,
    prices=texts,
    router=st.builds(RouterUsage, *[counts] * 4),
    zones=st.lists(st.builds(ClientZoneUsage, texts, *[counts] * 6), max_size=4).map(tuple),
)

CLIENT_RECORD = ClientUsageRecord(
    3, 7, 2, 1_700_000_000_000, "az1", "s3_express", RouterUsage(10, 20, 1000, 2000),
    (ClientZoneUsage("az1", 900, 30, 800, 70, 60, 50), ClientZoneUsage("az2", near_bytes=5)),
)  # fmt: skip
KEY, VALUE = encode_usage_key(RECORD), encode_usage(RECORD)
CLIENT_KEY, CLIENT_VALUE = encode_client_usage_key(CLIENT_RECORD), encode_client_usage(CLIENT_RECORD)

Decode = Callable[[bytes, bytes], UsageRecord | ClientUsageRecord]
both_kinds = pytest.mark.parametrize(
    ("decode", "key", "value"),
    [(decode_usage, KEY, VALUE), (decode_client_usage, CLIENT_KEY, CLIENT_VALUE)],
    ids=["broker", "gateway"],
)


@given(usage_records | client_usage_records)
def test_what_is_written_is_read(record: UsageRecord | ClientUsageRecord) -> None:
    decode: Decode = decode_usage if isinstance(record, UsageRecord) else decode_client_usage
    assert decode(*encoded(record)) == record


@both_kinds
@given(at=st.integers(0, 400), damage=st.binary(min_size=1, max_size=8))
def test_a_damaged_record_is_refused_or_whole(decode: Decode, key: bytes, value: bytes, at: int, damage: bytes) -> None:
    at = min(at, len(value) - 1)
    damaged = value[:at] + damage + value[at + len(damage) :]
    try:
        record = decode(key, damaged)
    except UndecodableRecordError:
        return
    assert encoded(record)[1] == damaged


@both_kinds
def test_a_truncated_record_is_refused(decode: Decode, key: bytes, value: bytes) -> None:
    for length in range(len(value)):
        with pytest.raises(UndecodableRecordError):
            decode(key, value[:length])


def test_a_count_beyond_the_value_is_refused_before_memory_is_taken() -> None:
    value = bytearray(VALUE)
    value[-40:-36] = b"\xff\xff\xff\xff"  # the number of topics
    with pytest.raises(UndecodableRecordError, match="truncated"):
        decode_usage(KEY, bytes(value))


@both_kinds
def test_a_key_of_another_agent_is_refused(decode: Decode, key: bytes, value: bytes) -> None:
    with pytest.raises(UndecodableRecordError, match="key_mismatch"):
        decode(key[:-1] + bytes([key[-1] ^ 1]), value)


def test_another_version_is_refused() -> None:
    with pytest.raises(UndecodableRecordError, match="format version 2"):
        decode_client_usage(CLIENT_KEY, b"\x02" + CLIENT_VALUE[1:])


def test_neither_kind_of_usage_is_taken_for_the_other() -> None:
    with pytest.raises(UndecodableRecordError):
        decode_usage(CLIENT_KEY, CLIENT_VALUE)
    with pytest.raises(UndecodableRecordError):
        decode_client_usage(KEY, VALUE)


def test_a_gateways_record_is_published_as_a_brokers() -> None:
    assert encoded(CLIENT_RECORD) == (CLIENT_KEY, CLIENT_VALUE)
    assert (broker_of(CLIENT_RECORD), name_of(CLIENT_RECORD)) == (3, "broker 3")


def test_counters_that_do_not_fit_are_no_record() -> None:
    with pytest.raises(ValueError, match="broker 3"):
        encode_usage_key(UsageRecord(3, -1, 0, 0, 0, None, (), (), ()))


def read_by_an_agent(topic: FakeTopic, store: RemoteWalMetadataStore) -> None:
    consumer = RemoteWalMetadataConsumer(KafkaClientConfig(""), store, consumer_factory=topic.consumer)
    consumer.start()
    assert consumer.wait_until_ready(10.0)
    consumer.close()


@pytest.mark.parametrize(("key", "value"), [(KEY, VALUE), (CLIENT_KEY, CLIENT_VALUE)], ids=["broker", "gateway"])
def test_agents_pass_usage_over(key: bytes, value: bytes) -> None:
    store, topic = RemoteWalMetadataStore(), FakeTopic()
    topic.append(key, value)
    read_by_an_agent(topic, store)
    assert store.progress == {0: 1}
    assert not [name for name in store.counters if name.startswith("unknown")]


def test_agents_log_records_of_another_format_once_and_skip_them(capsys: pytest.CaptureFixture[str]) -> None:
    store, topic = RemoteWalMetadataStore(), FakeTopic()
    for version in (9, 9, 8):
        topic.append(b"rwm:shape:1", bytes([version, 7]))
    read_by_an_agent(topic, store)
    assert (store.progress, store.counters["unknown_version"]) == ({0: 3}, 3)
    assert capsys.readouterr().out.count("metadata_record_of_another_format") == 2
