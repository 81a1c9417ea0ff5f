"""Topics without settings of their own inherit a pattern's, or those of the broker's file."""

import asyncio
import queue
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from pydantic import ValidationError

from agent.settings.upload_settings import StorageSettings
from agent.wiring.inherited_settings import InheritedSettings, inherited
from kafka_cluster.errors import KafkaClusterError
from kafka_log.topic_partition import TopicId
from metadata_topic.records.errors import TopicSettingsError
from metadata_topic.settings.settings_topic import Change
from metadata_topic.settings.topic_settings import FILE, OWN, LinkPolicy, TopicSettings, check_pattern

OLD, NEW = TopicId(b"o" * 16), TopicId(b"n" * 16)
OFF, ENABLED = TopicSettings(), TopicSettings(enable=True)
BY_FILE = TopicSettings(enable=True, origin=FILE)


def file(**keys: str) -> StorageSettings:
    return StorageSettings.model_validate(
        {f"remote.wal.storage.{key.replace('_', '.')}": one for key, one in keys.items()}
    )


def by(pattern: str, **settings: Any) -> dict[str, TopicSettings]:
    return {pattern: TopicSettings(enable=True, origin=f"pattern {pattern}", **settings)}


PATTERNS = by("orders-.*", link_policy=LinkPolicy.ALWAYS) | by("orders-eu-.*") | by("[a-z]+")


@pytest.mark.parametrize(
    ("topic", "keys", "wanted"),
    [
        ("Clicks", {}, OFF),
        ("Clicks", {"enable": "true"}, BY_FILE),
        ("Clicks", {"enable": "true", "topics_include": "Cl.*, X"}, BY_FILE),
        ("Clicks", {"enable": "true", "topics_include": "Cl"}, OFF),  # a whole name must match
        ("Clicks", {"enable": "true", "topics_exclude": "X,.*icks"}, OFF),
        ("Clicks", {"topics_include": "Clicks"}, OFF),
        ("Clicks", {"enable": "true", "topics_include": "Cl[a-z]{1,4},X"}, BY_FILE),  # a quantifier's comma is no other
        ("Clicks", {"enable": "true", "topics_exclude": "Z{,2}, [A-Za-z]{2,},X"}, OFF),
        ("clicks", {"enable": "true"}, PATTERNS["[a-z]+"]),
        ("orders-us-1", {}, PATTERNS["orders-.*"]),
        ("orders-eu-1", {}, PATTERNS["orders-eu-.*"]),  # the longest
    ],
)
def test_a_pattern_comes_before_the_file(topic: str, keys: dict[str, str], wanted: TopicSettings) -> None:
    assert inherited(topic, PATTERNS, file(**keys)) == wanted


@pytest.mark.parametrize("pattern", ["(", r"(a)\1", "(?=a)", "a{2000}"])
def test_what_re2_does_not_understand_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError, match=r"topics\.exclude`\s.*no regular expression"):
        file(topics_exclude=f"a,{pattern}")
    with pytest.raises(TopicSettingsError, match="no regular expression"):
        check_pattern(pattern)


@pytest.mark.timeout(60)
def test_no_topics_name_makes_matching_slow() -> None:
    assert inherited("a" * 249, by("([a-z0-9]+[.]?)*-orders"), file()) == OFF


class Known:
    """The settings topic, as read."""

    def __init__(self, topics: Mapping[str, TopicSettings], patterns: Mapping[str, TopicSettings]) -> None:
        self.topics, self.patterns = topics, patterns


def changed(
    now: TopicSettings | None, storage: StorageSettings, patterns: Mapping[str, TopicSettings] | None = None
) -> TopicSettings | None:
    """What becomes of `now`, the settings of a topic that is led here; None: nothing is written."""
    known = Known({} if now is None else {"clicks": now}, patterns or {})
    settings = InheritedSettings(storage, cast(Any, known), lambda _changes: None)
    settings.set_led({"clicks": NEW})
    due = settings.look()
    return due["clicks"](now if now is not None and now.is_of(NEW) else OFF) if due else None


ON = file(enable="true")
BOUND = replace(BY_FILE, topic_id=NEW)


@pytest.mark.parametrize(
    ("now", "storage", "wanted"),
    [
        (None, file(), None),
        (None, ON, BY_FILE),
        (BOUND, ON, None),
        (replace(BY_FILE, topic_id=OLD), ON, BY_FILE),  # a topic that is made anew inherits for itself
        (BOUND, file(), replace(OFF, topic_id=NEW)),  # which counts as no record
        (replace(ENABLED, topic_id=NEW, link_policy=LinkPolicy.ALWAYS), ON, None),
        (TopicSettings(origin=OWN, topic_id=NEW), ON, None),
        (TopicSettings(wal_retention_ms=5, topic_id=NEW), ON, None),
    ],
)
def test_only_what_is_no_topics_own_word_is_changed(
    now: TopicSettings | None, storage: StorageSettings, wanted: TopicSettings | None
) -> None:
    assert changed(now, storage) == wanted


def test_a_changed_pattern_changes_its_topics_and_one_that_is_removed_leaves_them_to_the_file() -> None:
    before = replace(by("c.*")["c.*"], topic_id=NEW)
    assert changed(before, file(), by("c.*", archive=True)) == replace(before, archive=True)
    assert changed(before, ON) == BOUND
    assert changed(before, file()) == replace(OFF, topic_id=NEW)


def test_kafkas_own_topics_and_those_that_others_lead_inherit_nothing() -> None:
    settings = InheritedSettings(ON, cast(Any, Known({}, {})), lambda _changes: None)
    settings.set_led({"__consumer_offsets": NEW, "__remote_wal_topic_settings": NEW})
    assert settings.look() == {}


async def test_what_failed_is_tried_again_and_what_is_written_is_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent.wiring.inherited_settings._LOOK_S", 0.0)
    tries, looks = queue.Queue[int](), list[None]()

    def change(_changes: object) -> None:
        tries.put(len(looks))
        if len(looks) == 1:
            raise KafkaClusterError("change settings", "clicks", "nobody leads it")

    class Watched(InheritedSettings):
        def look(self) -> dict[str, Change]:
            looks.append(None)
            return super().look()

    settings = Watched(ON, cast(Any, Known({}, {})), change)
    settings.set_led({"clicks": NEW})
    running = asyncio.create_task(settings.run())
    told = [await asyncio.to_thread(tries.get, timeout=60.0) for _ in range(2)]
    for _ in range(100):
        await asyncio.sleep(0)
    settings.set_led({"clicks": NEW, "orders": OLD})
    told += [await asyncio.to_thread(tries.get, timeout=60.0) for _ in range(2)]
    running.cancel()
    assert told == [1, 2, 3, 3]
