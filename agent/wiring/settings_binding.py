"""Binds topics' settings that name no topic id to the topics that have the names now.

Older records, and those of writers that do not know the id, give only a topic's name. Without binding, a topic that is
deleted and created again would inherit them.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

import structlog

from kafka_cluster.errors import KafkaClusterError
from kafka_log.topic_partition import TopicId
from metadata_topic.settings.topic_settings import TopicSettings
from rlm.write_path.assignment import Assignment

log = structlog.get_logger(__name__)

LOOK_S = 10.0
"""Seconds. A broker may still name a deleted topic for some seconds, so an id counts once two looks have seen it."""


class SettingsBinding:
    """Binds the settings of topics whose partition 0 is led here. Use it in the event loop."""

    def __init__(
        self, topics: Callable[[], Mapping[str, TopicSettings]], bind: Callable[[Mapping[str, TopicId]], None]
    ) -> None:
        """`topics` returns the settings as they were read; `bind` writes them, and blocks."""
        self._topics = topics
        self._bind = bind
        self._led: Mapping[str, TopicId] = {}
        self._seen: Mapping[str, TopicId] = {}

    def assigned(self, assignments: Iterable[Assignment]) -> None:
        """Note what is led here from now on."""
        logs = ((one.topic, one.topic_id_partition) for one in assignments)
        self._led = {topic: log.topic_id for topic, log in logs if log.partition == 0}

    def look(self) -> dict[str, TopicId]:
        """Return the topics to be bound now, with their ids."""
        unbound = {name for name, settings in self._topics().items() if settings.topic_id is None}
        before, self._seen = self._seen, {name: one for name, one in self._led.items() if name in unbound}
        return {name: topic_id for name, topic_id in self._seen.items() if before.get(name) == topic_id}

    async def run(self) -> None:
        """Look, and bind, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not (owners := self.look()):
                continue
            try:
                await asyncio.to_thread(self._bind, owners)
            except KafkaClusterError as error:
                log.warning("topic_settings_not_bound", topics=sorted(owners), reason=str(error),
                            consequence="they count for whichever topic has the name")  # fmt: skip
