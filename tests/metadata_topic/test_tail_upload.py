"""Requests for tails and their answers, as records of the settings topic."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata_topic.settings.settings_records import (
    TailRequest,
    TailStored,
    decode_tail,
    encode_tail,
    request_key,
    stored_key,
)
from metadata_topic.settings.settings_topic import SettingsView
from metadata_topic.settings.topic_settings import (
    MalformedSettingError,
    TopicSettings,
    encode_topic_settings,
    topic_key,
)
from metadata_topic.topic.topic_follower import TopicRecord

T0 = ("orders.eu", 3)
REQUEST = TailRequest("r1", 42, 1_700_000_000_000)
STORED = TailStored("r1", 2, 43)


def record(key: bytes, value: bytes | None, offset: int = 0) -> TopicRecord:
    return TopicRecord(0, offset, key, value)


def test_both_are_read_as_written() -> None:
    assert decode_tail(request_key(T0), encode_tail(REQUEST)) == (T0, TailRequest, REQUEST)
    assert decode_tail(stored_key(T0), encode_tail(STORED)) == (T0, TailStored, STORED)
    assert decode_tail(request_key(T0), None) == (T0, TailRequest, None)


def test_the_view_has_the_last_of_each_and_leaves_settings_alone() -> None:
    view = SettingsView()
    assert view.apply_all([record(topic_key("orders"), encode_topic_settings(TopicSettings(True)))])
    assert not view.apply_all([record(request_key(T0), encode_tail(REQUEST))])
    view.apply_all([record(stored_key(T0), encode_tail(STORED))])
    assert (dict(view.tail_requests), dict(view.tails_stored)) == ({T0: REQUEST}, {T0: STORED})
    view.apply_all([record(request_key(T0), None), record(stored_key(T0), None)])
    assert (dict(view.tail_requests), dict(view.tails_stored)) == ({}, {})
    assert list(view.topics) == ["orders"]
    assert view.malformed == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"tail:t:x", b"{}"),
        (b"tail:t", b"{}"),
        (b"tail:../t:0", encode_tail(REQUEST)),
        (b"tail:__consumer_offsets:0", encode_tail(REQUEST)),
        (b"tail-other:t:0", encode_tail(REQUEST)),
        (b"tail:t:0", b'{"request_id": "r", "up_to": true, "deadline_ms": 1}'),
        (b"tail:t:0", b'{"request_id": "r", "up_to": 1}'),
        (b"tail:t:0", b"[]"),
    ],
)
def test_what_means_nothing_is_refused_and_counted(key: bytes, value: bytes) -> None:
    with pytest.raises(MalformedSettingError):
        decode_tail(key, value)
    view = SettingsView()
    view.apply_all([record(key, value)])
    assert (view.malformed, dict(view.tail_requests)) == (1, {})


@given(st.binary(max_size=40), st.none() | st.binary(max_size=60))
def test_no_bytes_of_a_stranger_raise_anything_else(suffix: bytes, value: bytes | None) -> None:
    key = b"tail" + suffix
    with contextlib.suppress(MalformedSettingError):
        decode_tail(key, value)
