"""Says by the settings topic which topics' records may be packed. Any thread may ask.

A topic that is off must never enter a stream that others' records share. So what is not known is not packed: a topic
whose name is not known yet counts as off if any topic or pattern that it may be is off.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Final

from kafka_log.topic_partition import TopicId
from metadata_topic.settings.patterns import is_match
from metadata_topic.settings.settings_topic import SettingsReader
from metadata_topic.settings.topic_settings import settings_of

_KNOWN_S: Final = 1.0
"""How long an answer counts."""


class PackRules:
    """The rules of one agent."""

    def __init__(
        self, reader: SettingsReader, names: Callable[[], Mapping[TopicId, str]], clock: Callable[[], float]
    ) -> None:
        """`reader` has read the topic; `names` returns the topics of which replicas are here."""
        self._reader = reader
        self._names = names
        self._clock = clock
        self._answers: dict[Hashable, bool] = {}
        self._until_s = float("-inf")

    def allows(self, topic: Hashable) -> bool:
        """Whether this topic, by id or name, may be packed."""
        now_s = self._clock()
        if now_s >= self._until_s:
            self._answers, self._until_s = {}, now_s + _KNOWN_S
        if topic not in self._answers:
            self._answers[topic] = self._allows(topic)
        return self._answers[topic]

    def _allows(self, topic: Hashable) -> bool:
        topics, patterns = self._reader.table.topics, self._reader.table.patterns
        off_patterns = [pattern for pattern, one in patterns.items() if not one.pack]
        topic_id = TopicId(topic) if isinstance(topic, bytes) else None
        name = topic if isinstance(topic, str) else None
        if topic_id is not None:
            name = self._names().get(topic_id)
        if name is not None:
            found = settings_of(topics, name, topic_id) if topic_id is not None else topics.get(name)
            return found.pack if found is not None else not any(is_match(one, name) for one in off_patterns)
        off = [one for one in topics.values() if not one.pack and one.is_of(topic_id)]
        return not off and not off_patterns
