"""Says by the settings topic which topics' records may be packed. Any thread may ask.

A topic that is off must never enter a stream that others' records share. So what is not known is not packed: a topic
whose name is not known yet counts as off if any topic or pattern that it may be is off.
"""

from collections.abc import Hashable, Mapping
from typing import Final

from kafka_log.topic_partition import TopicId
from metadata_topic.settings.patterns import is_match
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.topic_settings import settings_of

_MAX_RESPONSES: Final = 10_000
"""Answers that are kept; clients can name any number of topics that do not exist."""


class PackRules:
    """Which topics' records this agent may pack; before `learned`, none."""

    def __init__(self) -> None:
        self._known: tuple[SettingsTable, Mapping[TopicId, str]] | None = None
        self._answers: dict[Hashable, bool] = {}

    def learned(self, table: SettingsTable, names: Mapping[TopicId, str]) -> None:
        """Set what decides about packing: the settings topic's content, and the names of topics with replicas here."""
        self._known, self._answers = (table, names), {}

    def allows(self, topic: Hashable) -> bool:
        """Whether the records of this topic, given by id or name, may be packed."""
        answers, known = self._answers, self._known
        if (found := answers.get(topic)) is None:
            if len(answers) >= _MAX_RESPONSES:
                answers.clear()
            found = answers[topic] = known is not None and _allows(*known, topic)
        return found


def _allows(table: SettingsTable, names: Mapping[TopicId, str], topic: Hashable) -> bool:
    topics = table.topics
    off_patterns = [pattern for pattern, one in table.patterns.items() if not one.pack]
    topic_id = TopicId(topic) if isinstance(topic, bytes) else None
    name = topic if isinstance(topic, str) else None
    if topic_id is not None:
        name = names.get(topic_id)
    if name is not None:
        found = settings_of(topics, name, topic_id) if topic_id is not None else topics.get(name)
        if found is not None and topic_id is None and found.topic_id is not None:
            is_other = names.get(found.topic_id) != name  # an earlier topic of the name, as far as is known
            found = None if is_other and found.pack else found
        return found.pack if found is not None else not any(is_match(one, name) for one in off_patterns)
    off = [one for one in topics.values() if not one.pack and one.is_of(topic_id)]
    return not off and not off_patterns
