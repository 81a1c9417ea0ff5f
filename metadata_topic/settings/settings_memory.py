"""Remembers topics' settings in the agent's state directory, for when the settings topic is lost.

A topic that was recreated, or lost its end, does not have earlier settings. Without this memory, durable topics would
become ordinary ones, and producers would get a success before their records are stored. So the last known settings stay
valid for each topic that the new settings topic does not mention.
"""

import json
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Final

import structlog

from kafka_log.topic_partition import TopicId
from metadata_topic.settings.topic_settings import (
    MalformedSettingError,
    TopicSettings,
    decode_setting,
    encode_topic_settings,
    topic_key,
)
from metadata_topic.store.topic_continuity import RememberedTopic, TopicContinuity
from plugin.durable_files import write_durably

log = structlog.get_logger(__name__)

FILE_NAME: Final = "topic-settings.json"


class SettingsMemory:
    """The file of the last known settings. For the thread that reads the settings topic; any may read `missing`."""

    def __init__(self, state_directory: Path) -> None:
        self._path = state_directory / FILE_NAME
        self.continuity = TopicContinuity()
        """The continuity of the settings topic."""
        self._known: Mapping[str, TopicSettings] = {}
        self._told: Set[str | int] = frozenset()

    def load(self) -> None:
        """Load the settings that the previous agent knew."""
        try:
            known = json.loads(self._path.read_text())
            topic_id = known["topic_id"]
            self._known = {
                name: settings
                for name, value in known["topics"].items()
                if isinstance(settings := decode_setting(topic_key(name), value.encode())[1], TopicSettings)
            }
            remembered = RememberedTopic(
                None if topic_id is None else TopicId(bytes.fromhex(topic_id)), {0: int(known["end"])}
            )
            self.continuity.remember(remembered)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError, MalformedSettingError) as error:
            log.error("topic_settings_memory_unreadable", file=str(self._path), error=str(error),
                      hint="written anew; a settings topic that was lost meanwhile is not noticed")  # fmt: skip

    def note_read(self, topics: Mapping[str, TopicSettings], told: Set[str | int], end: int) -> None:
        """Record a read of the topic to its `end`: it has these settings, and records of all that are `told`."""
        self._told = told
        if self.missing:
            log.error("settings_topic_lost", topics=sorted(self.missing), doubts=self.continuity.doubts,
                      consequence="what was known last of them goes on to count", hint="set them again")  # fmt: skip
            return
        topic_id = self.continuity.topic_id
        fields = {
            "topic_id": None if topic_id is None else topic_id.hex(),
            "end": end,
            "topics": {name: encode_topic_settings(settings).decode() for name, settings in topics.items()},
        }
        try:
            write_durably(self._path, json.dumps(fields))
            self._known = topics
        except OSError as error:
            log.warning("topic_settings_not_remembered", error=str(error))

    @property
    def missing(self) -> dict[str, TopicSettings]:
        """The known settings that a lost topic does not have any more."""
        if not self.continuity.doubts:
            return {}
        return {name: settings for name, settings in self._known.items() if name not in self._told}
