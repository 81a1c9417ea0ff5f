"""Records that pause links: what is written, read, and said."""

import threading

import pytest

from kafka_cluster.client_config import KafkaClientConfig
from metadata_topic.settings.settings_records import Pause, decode_pause_record, encode_pause, pause_key
from metadata_topic.settings.settings_topic import SettingsReader
from metadata_topic.settings.topic_settings import MalformedSettingError
from metadata_topic.topic.topic_follower import FollowSettings
from tests.metadata_topic.fake_topic import FakeTopic

PAUSE = Pause("anna@ops-1", 1_700_000_000_000, "store is slow")


@pytest.mark.parametrize("scope", ["all", "broker:1", "zone:az-1", "topic:orders"])
def test_a_pause_is_read_as_written_and_a_tombstone_ends_it(scope: str) -> None:
    assert decode_pause_record(pause_key(scope), encode_pause(PAUSE)) == (scope, PAUSE)
    assert decode_pause_record(pause_key(scope), None) == (scope, None)


@pytest.mark.parametrize(
    ("scope", "value"),
    [
        ("all", b"not json"),
        ("all", b"[]"),
        ("all", b'{"by": "anna", "since_ms": "today", "reason": ""}'),
        ("all", b'{"by": "anna", "since_ms": 1e99, "reason": ""}'),
        ("all", b'{"by": "anna", "since_ms": 999999999999999999999, "reason": ""}'),
        ("broker:", encode_pause(PAUSE)),
        ("local", encode_pause(PAUSE)),
        ("moon:1", encode_pause(PAUSE)),
    ],
)
def test_what_has_no_meaning_pauses_nothing(scope: str, value: bytes) -> None:
    with pytest.raises(MalformedSettingError):
        decode_pause_record(pause_key(scope), value)


def test_who_paused_when_and_how_it_ends_is_told() -> None:
    since = "since 2023-11-14 22:13:20 UTC by anna@ops-1 (store is slow); to end it: remote-wal resume"
    assert PAUSE.describe("all") == f"all links are paused {since} --all"
    assert PAUSE.describe("topic:orders") == f"links of topic orders are paused {since} --topic orders"
    assert PAUSE.describe("local") == f"this agent's links are paused {since} --local"


def test_the_reader_tells_of_each_pause_and_its_end() -> None:
    topic, changed = FakeTopic(), threading.Semaphore(0)
    topic.append(pause_key("all"), encode_pause(PAUSE))
    topic.append(pause_key("moon:1"), encode_pause(PAUSE))
    quick = FollowSettings(batch_wait_ms=10, retry_pause_ms=1)
    reader = SettingsReader(KafkaClientConfig("nowhere:1"), consumer_factory=topic.consumer, settings=quick)
    reader.on_pauses = changed.release
    reader.start()
    try:
        assert changed.acquire(timeout=10)
        assert (dict(reader.pauses), reader.malformed) == ({"all": PAUSE}, 1)
        topic.append(pause_key("all"), None)
        assert changed.acquire(timeout=10)
        assert dict(reader.pauses) == {}
    finally:
        reader.close()
