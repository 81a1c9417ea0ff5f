"""A topic's settings by their keys, as the command line gives them."""

import pytest

from metadata_topic.records.errors import TopicSettingsError
from metadata_topic.settings.setting_keys import SETTING_KEYS, changed_settings
from metadata_topic.settings.topic_settings import (
    ENABLE_KEY,
    FILE,
    OWN,
    LinkPolicy,
    TopicSettings,
    encode_topic_settings,
)

SET = TopicSettings(True, LinkPolicy.ALWAYS, 250, True, -2, durable=True, upload_wait_max_ms=50)
TEXTS = {
    "remote.wal.storage.enable": "true",
    "remote.wal.link.policy": "always",
    "remote.wal.link.latency.bound.ms": "250",
    "remote.wal.link.upload.wait.max.ms": "50",
    "remote.wal.archive.enable": "true",
    "remote.wal.retention.ms": "-2",
    "remote.wal.durable.enable": "true",
}


def test_every_key_is_read_and_shown_in_the_same_words() -> None:
    assert changed_settings("orders", TopicSettings(), TEXTS) == SET
    assert {name: key.text_of(SET) for name, key in SETTING_KEYS.items()} == TEXTS
    assert all(key.is_set(SET) and not key.is_set(TopicSettings()) for key in SETTING_KEYS.values())


def test_every_field_that_is_written_has_a_key() -> None:
    assert set(SETTING_KEYS) == set(TEXTS)
    assert all(name.encode() in encode_topic_settings(SET) for name in SETTING_KEYS)


def test_a_key_goes_back_to_its_default_and_leaves_the_others() -> None:
    assert changed_settings("orders", SET, {"remote.wal.link.policy": None}) == TopicSettings(
        True, LinkPolicy.COST, 250, True, -2, durable=True, upload_wait_max_ms=50
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("remote.wal.storage.enable", "yes"),
        ("remote.wal.link.policy", "never"),
        ("remote.wal.link.latency.bound.ms", "0"),
        ("remote.wal.link.latency.bound.ms", ""),
        ("remote.wal.retention.ms", "-3"),
        ("remote.wal.retention.ms", "1h"),
        ("remote.wal.retention.ms", str(2**63)),
        ("remote.wal.retention.ms", "\u0661"),
        ("remote.wal.unknown", "1"),
    ],
)
def test_a_value_that_is_none_is_refused_by_the_keys_name(name: str, text: str) -> None:
    with pytest.raises(TopicSettingsError, match=name.replace(".", r"\.")):
        changed_settings("orders", TopicSettings(), {name: text})


def test_off_in_so_many_words_is_a_setting_and_what_is_set_is_inherited_no_more() -> None:
    by_file = TopicSettings(enable=True, archive=True, origin=FILE)
    assert changed_settings("orders", by_file, {ENABLE_KEY: "false"}) == TopicSettings(archive=True, origin=OWN)
    assert changed_settings("orders", by_file, {"remote.wal.archive.enable": None}) == TopicSettings(enable=True)
    assert changed_settings("orders", TopicSettings(origin=OWN), {ENABLE_KEY: None}).is_default
    assert not TopicSettings(origin=OWN).is_default


def test_a_topic_that_is_switched_off_stays_off_whatever_else_is_set_until_it_is_switched_on_or_inherits() -> None:
    off = changed_settings("orders", TopicSettings(enable=True), {ENABLE_KEY: "false"})
    for changes in ({"remote.wal.link.policy": "cost"}, {"remote.wal.durable.enable": "false"}, {}):
        off = changed_settings("orders", off, changes)
        assert (off.enable, off.origin) == (False, OWN)
    assert changed_settings("orders", off, {ENABLE_KEY: "true"}) == TopicSettings(enable=True)
    assert changed_settings("orders", off, {ENABLE_KEY: None}).is_default
