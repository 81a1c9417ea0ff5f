"""Usage records: what is written is read, and nothing else is taken for one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.topic_partition import TopicId
from metadata_topic.records.publishable import broker_of, encoded, name_of
from metadata_topic.records.record_fields import UndecodableRecordError
from metadata_topic.records.usage_record import (
    ClientUsage,
    ClientZoneUsage,
    FollowerUsage,
    RouterUsage,
    StoreUsage,
    TopicUsage,
    UsageRecord,
    decode_usage,
    encode_usage_key,
)
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.topic.consumer import RemoteWalMetadataConsumer
from tests.metadata_topic.fake_topic import FakeTopic

counts = st.integers(0, 2**60 - 1)
brokers = st.integers(-1, 2**31 - 1)
texts = st.text(max_size=20)
usage_records = st.builds(
    UsageRecord,
    broker_id=st.integers(0, 2**31 - 1),
    incarnation=st.integers(0, 2**48 - 1),
    sequence=st.integers(0, 2**63 - 1),
    event_timestamp_ms=st.integers(0, 253_402_300_799_999),
    since_ms=st.integers(0, 253_402_300_799_999),
    rack=st.none() | texts,
    stores=st.lists(st.builds(StoreUsage, texts, *[counts] * 7), max_size=3).map(tuple),
    followers=st.lists(st.builds(FollowerUsage, brokers, counts, counts), max_size=5).map(tuple),
    topics=st.lists(
        st.builds(TopicUsage, st.binary(min_size=16, max_size=16).map(TopicId), brokers, counts, counts, counts),
        max_size=5,
    ).map(tuple),
    clients=st.none()
    | st.builds(
        ClientUsage,
        texts,
        texts,
        st.builds(RouterUsage, *[counts] * 4),
        st.lists(st.builds(ClientZoneUsage, texts, *[counts] * 6), max_size=4).map(tuple),
    ),
)

RECORD = UsageRecord(
    3, 7, 2, 1_700_000_000_000, 1_699_999_000_000, "zone-a",
    (StoreUsage("s3_express", 10, 20, 1, 2, 3, 1000, 2000),),
    (FollowerUsage(1, 50, 4000),),
    (TopicUsage(TopicId(b"orders".ljust(16)), 1, 3000, 500, 900),),
    ClientUsage(
        "az1", "s3_express", RouterUsage(10, 20, 1000, 2000),
        (ClientZoneUsage("az1", 900, 30, 800, 70, 60, 50), ClientZoneUsage("az2", near_bytes=5)),
    ),
)  # fmt: skip
KEY, VALUE = encoded(RECORD)


@given(usage_records)
def test_what_is_written_is_read(record: UsageRecord) -> None:
    assert decode_usage(*encoded(record)) == record


def test_what_is_counted_for_clients_is_in_arrays() -> None:
    rows = b'[["az1",900,30,800,70,60,50],["az2",0,0,0,0,0,5]]'
    assert b'"clients":["az1","s3_express",[10,20,1000,2000],' + rows + b"]" in VALUE


def test_a_record_of_one_part_has_no_field_of_parts() -> None:
    rest = replace(RECORD, is_rest=True)
    assert encoded(rest)[1].replace(b',"is_rest":true', b"") == VALUE
    assert decode_usage(*encoded(rest)) == rest


def test_a_truncated_record_is_refused() -> None:
    for length in range(len(VALUE)):
        with pytest.raises(UndecodableRecordError):
            decode_usage(KEY, VALUE[:length])


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (KEY[:-1] + bytes([KEY[-1] ^ 1]), VALUE, "key_mismatch"),
        (b"rwm:gaps:1", VALUE, "foreign_key"),
        (KEY, b"\x02" + VALUE[1:], "version"),
        (KEY, b"\x01\x20" + VALUE[2:], "version"),
        (KEY, VALUE.replace(b"3000", b"-300"), "json"),
        (KEY, VALUE.replace(b'"rack"', b'"rock"'), "json"),
        (KEY, VALUE.replace(b"6f7264", b"6f72"), "json"),
        (KEY, VALUE.replace(b"[10,20,1000,2000]", b"10"), "json"),
        (KEY, VALUE.replace(b"[10,20,1000,2000]", b"[10]"), "json"),
        (KEY, VALUE.replace(b'"broker_id":3', b'"broker_id":99999999999'), "json"),
    ],
)
def test_what_no_agent_writes_is_refused(key: bytes, value: bytes, reason: str) -> None:
    assert (key, value) != (KEY, VALUE)
    with pytest.raises(UndecodableRecordError) as told:
        decode_usage(key, value)
    assert told.value.reason == reason


@pytest.mark.parametrize(
    "odd",
    [
        replace(RECORD, incarnation=2**48),
        replace(RECORD, sequence=2**63),
        replace(RECORD, event_timestamp_ms=253_402_300_800_000),
        replace(RECORD, event_timestamp_ms=-1),
        replace(RECORD, since_ms=2**63),
        replace(RECORD, followers=(FollowerUsage(2**31, 1, 1),)),
        replace(RECORD, topics=(TopicUsage(TopicId(b"orders".ljust(16)), -(2**31) - 1, 0, 0, 0),)),
        replace(RECORD, stores=(StoreUsage("s3_express", 2**60, 0, 0, 0, 0, 0, 0),)),
    ],
)
def test_what_does_not_fit_into_the_reports_columns_is_refused(odd: UsageRecord) -> None:
    with pytest.raises(UndecodableRecordError):
        decode_usage(*encoded(odd))


def test_it_is_published_among_its_brokers_records() -> None:
    assert (broker_of(RECORD), name_of(RECORD)) == (3, "broker 3")


def test_counters_that_do_not_fit_are_no_record() -> None:
    with pytest.raises(ValueError, match="broker 3"):
        encode_usage_key(UsageRecord(3, -1, 0, 0, 0, None))


def read_by_an_agent(topic: FakeTopic, store: RemoteWalMetadataStore) -> None:
    consumer = RemoteWalMetadataConsumer(KafkaClientConfig(""), store, consumer_factory=topic.consumer)
    consumer.start()
    assert consumer.wait_until_ready(10.0)
    consumer.close()


def test_agents_pass_usage_over() -> None:
    store, topic = RemoteWalMetadataStore(), FakeTopic()
    topic.append(KEY, VALUE)
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
