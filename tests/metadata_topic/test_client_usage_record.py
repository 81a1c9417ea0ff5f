"""Records of what went by the gateway: what is written is read, older readers pass it over, and nothing else is taken
for one.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_cluster.client_config import KafkaClientConfig
from metadata_topic.records.client_usage_record import (
    ClientUsageRecord,
    ClientZoneUsage,
    RouterUsage,
    decode_client_usage,
    encode_client_usage,
    encode_client_usage_key,
)
from metadata_topic.records.publishable import broker_of, encoded, name_of
from metadata_topic.records.record_fields import UndecodableRecordError
from metadata_topic.records.usage_record import UsageRecord, decode_usage, encode_usage, encode_usage_key
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.topic.consumer import RemoteWalMetadataConsumer
from tests.metadata_topic.fake_topic import FakeTopic

counts = st.integers(0, 2**64 - 1)
texts = st.text(max_size=20).filter(lambda text: len(text.encode()) < 256)
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

RECORD = ClientUsageRecord(
    3, 7, 2, 1_700_000_000_000, "az1", "s3_express", RouterUsage(10, 20, 1000, 2000),
    (ClientZoneUsage("az1", 900, 30, 800, 70, 60, 50), ClientZoneUsage("az2", near_bytes=5)),
)  # fmt: skip
KEY, VALUE = encode_client_usage_key(RECORD), encode_client_usage(RECORD)


@given(client_usage_records)
def test_what_is_written_is_read(record: ClientUsageRecord) -> None:
    assert decode_client_usage(encode_client_usage_key(record), encode_client_usage(record)) == record


@given(st.integers(0, len(VALUE)), st.binary(min_size=1, max_size=8))
def test_a_damaged_record_is_refused_or_whole(at: int, damage: bytes) -> None:
    damaged = VALUE[:at] + damage + VALUE[at + len(damage) :]
    try:
        record = decode_client_usage(KEY, damaged)
    except UndecodableRecordError:
        return
    assert encode_client_usage(record) == damaged


@pytest.mark.parametrize("length", range(len(VALUE)))
def test_a_truncated_record_is_refused(length: int) -> None:
    with pytest.raises(UndecodableRecordError):
        decode_client_usage(KEY, VALUE[:length])


def test_a_key_of_another_agent_is_refused() -> None:
    with pytest.raises(UndecodableRecordError, match="key_mismatch"):
        decode_client_usage(KEY[:-1] + bytes([KEY[-1] ^ 1]), VALUE)


def test_another_version_is_refused() -> None:
    with pytest.raises(UndecodableRecordError, match="format version 2"):
        decode_client_usage(KEY, b"\x02" + VALUE[1:])


def test_neither_kind_of_usage_is_taken_for_the_other() -> None:
    usage = UsageRecord(3, 7, 2, 0, 0, "az1", (), (), ())
    with pytest.raises(UndecodableRecordError):
        decode_usage(KEY, VALUE)
    with pytest.raises(UndecodableRecordError):
        decode_client_usage(encode_usage_key(usage), encode_usage(usage))


def test_it_is_published_as_the_brokers() -> None:
    assert encoded(RECORD) == (KEY, VALUE)
    assert (broker_of(RECORD), name_of(RECORD)) == (3, "broker 3")


def test_agents_pass_it_over() -> None:
    store, topic = RemoteWalMetadataStore(), FakeTopic()
    topic.append(KEY, VALUE)
    consumer = RemoteWalMetadataConsumer(KafkaClientConfig(""), store, consumer_factory=topic.consumer)
    consumer.start()
    assert consumer.wait_until_ready(10.0)
    consumer.close()
    assert store.progress == {0: 1}
    assert not [name for name in store.counters if name.startswith("unknown")]
