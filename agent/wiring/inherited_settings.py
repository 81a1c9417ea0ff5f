"""Gives topics without settings of their own those of a pattern, or of the broker's file.

Each agent does so for topics whose partition 0 it leads, as a record in the settings topic, where every reader of
settings finds it. The record is replaced when its pattern or the file changes, and removed when neither applies any
more. A topic's own record is never touched. Inherited records of deleted topics stay, and count for no other topic.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

import structlog

from agent.settings.upload_settings import StorageSettings
from kafka_cluster.errors import KafkaClusterError
from kafka_log.topic_partition import TopicId
from metadata_topic.settings.patterns import is_match
from metadata_topic.settings.settings_topic import Change, SettingsReader
from metadata_topic.settings.topic_settings import FILE, INTERNAL_TOPICS, TopicSettings, settings_of

log = structlog.get_logger(__name__)

_LOOK_S: Final = 2.0


class InheritedSettings:
    """Use it in the event loop, except `set_led`."""

    def __init__(
        self, file: StorageSettings, reader: SettingsReader, change: Callable[[Mapping[str, Change]], object]
    ) -> None:
        """`change` changes topics' settings, and blocks."""
        self._file = file
        self._reader = reader
        self._change = change
        self._led: Mapping[str, TopicId] = {}

    def set_led(self, topics: Mapping[str, TopicId]) -> None:
        """Set the topics whose partition 0 is led here. Any thread may call it."""
        self._led = topics

    def look(self) -> dict[str, Change]:
        """Return the changes that are due."""
        known, patterns, found = self._reader.topics, self._reader.patterns, {}
        for topic, topic_id in self._led.items():
            change = _inheriting(inherited(topic, patterns, self._file))
            now = settings_of(known, topic, topic_id) or TopicSettings()
            if topic not in INTERNAL_TOPICS and change(now) != now:
                found[topic] = change
        return found

    async def run(self) -> None:
        """Look, and write, until cancelled."""
        done = None
        while True:
            await asyncio.sleep(_LOOK_S)
            if (known := (self._reader.topics, self._reader.patterns, self._led)) == done:
                continue  # a thousand topics' names need not be matched again
            for topic, change in self.look().items():
                try:
                    await asyncio.to_thread(self._change, {topic: change})
                except KafkaClusterError as error:
                    log.warning("settings_not_inherited", topic=topic, reason=str(error), consequence="tried again")
                    break
            else:
                done = known


def inherited(topic: str, patterns: Mapping[str, TopicSettings], file: StorageSettings) -> TopicSettings:
    """Return the settings of a topic without own ones: of the longest pattern that matches, else of the file."""
    matching = [pattern for pattern in patterns if is_match(pattern, topic)]
    if matching:
        return patterns[max(matching, key=lambda pattern: (len(pattern), pattern))]
    is_meant = not file.topics_include or _matches(topic, file.topics_include)
    if file.topics_enable and is_meant and not _matches(topic, file.topics_exclude):
        return TopicSettings(enable=True, origin=FILE)
    return TopicSettings()


def _matches(topic: str, patterns: Collection[str]) -> bool:
    return any(is_match(pattern, topic) for pattern in patterns)


def _inheriting(wanted: TopicSettings) -> Change:
    """Return the change to these settings, of a topic that has none of its own."""

    def change(before: TopicSettings) -> TopicSettings:
        return before if before.is_own else replace(wanted, topic_id=before.topic_id)

    return change
