"""Writes what this agent owes the settings topic, and remembers what the topic holds.

- Its registration, by which others find it, as long as the topic has none of this incarnation or a newer one, and is
  not lost.
- What a lost topic held (`metadata_topic.settings.settings_memory`). The agents take turns by their brokers' ids, so
  that not all of them write the same.
- The settings of topics without any of their own: those of a pattern, or of the broker's file. The agent that leads a
  topic's partition 0 writes them as the topic's record, where every reader of settings finds it. It is replaced when
  its pattern or the file changes. A topic's own record is never touched. Inherited records of deleted topics stay, and
  count for no other topic. While the topic may lack patterns, nothing is inherited.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

import structlog

from agent.settings.upload_settings import StorageSettings
from kafka_cluster.errors import KafkaClusterError
from kafka_log.topic_partition import TopicId
from metadata_topic.settings.patterns import first_match, is_match
from metadata_topic.settings.settings_table import AGENTS, TOPICS, SettingsTable, longest_first
from metadata_topic.settings.settings_topic import SettingsReader
from metadata_topic.settings.topic_settings import (
    FILE,
    INTERNAL_TOPICS,
    AgentRegistration,
    TopicSettings,
    settings_of,
)

log = structlog.get_logger(__name__)

LOOK_S: Final = 2.0
_READ_TIMEOUT_S: Final = 10.0
_TURN_S: Final = 2.0
"""How much later than the agent before it an agent restores."""
_LONGEST_TURN_S: Final = 30.0

Records = Mapping[bytes, bytes | None]


class SettingsKeeping:
    """Writes to the settings topic what this agent must, and saves its content here. For the event loop, except
    `set_led`."""

    def __init__(
        self,
        reader: SettingsReader,
        write: Callable[[Records], None],
        registration: Callable[[], AgentRegistration],
        own: tuple[int, int],
        file: StorageSettings,
        is_fenced: Callable[[], bool],
        monotonic_s: Callable[[], float],
    ) -> None:
        """`write` writes records to the topic; `registration` returns this agent's registration. Both block
        (KafkaClusterError).

        `own` are the broker's id and the agent's incarnation.
        """
        self._reader = reader
        self._write = write
        self._registration = registration
        self._broker_id, self._incarnation = own
        self._file = file
        self._is_fenced = is_fenced
        self._monotonic_s = monotonic_s
        self._led: Mapping[str, TopicId] = {}
        self._was_registered = False
        self._saved: tuple[TopicId | None, int] | None = None
        """Of what the memory wrote last: the topic, and the number of changes."""
        self._lost_since_s: float | None = None
        self._inherited: tuple[SettingsTable, Mapping[str, TopicId]] | None = None
        """For what nothing is left to inherit: a thousand topics' names need not be matched again."""

    def set_led(self, topics: Mapping[str, TopicId]) -> None:
        """Set the topics whose partition 0 is led here."""
        self._led = topics

    async def run(self) -> None:
        """Write and save what is due, from time to time, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Write to the settings topic what is due, once, and save its content in the state directory."""
        for due in (self._due_registration, self._due_restorations, self._due_inheritance):
            try:
                if records := await due():
                    await asyncio.to_thread(self._write, records)
            except KafkaClusterError as error:
                log.warning("settings_not_written", reason=str(error), consequence="tried again")
        memory = self._reader.memory
        held = memory.topic_id, memory.changes
        if self._reader.ready and not memory.is_lost and held != self._saved:
            try:
                await asyncio.to_thread(memory.save)
                self._saved = held
            except OSError as error:
                log.warning("settings_not_remembered", error=str(error))

    async def _due_registration(self) -> Records:
        # While values are missing, a registration would let others take the topic for whole.
        if (
            self._reader.memory.is_lost
            or self._is_fenced()
            or (self._was_registered and not await self._is_unregistered())
        ):
            return {}
        registration = await asyncio.to_thread(self._registration)
        self._was_registered = True
        return {AGENTS.key(self._broker_id): AGENTS.encode(registration)}

    async def _is_unregistered(self) -> bool:
        """Whether the topic, read to its end, has no record of this incarnation or a newer one."""
        return self._is_missing() and await self._is_read() and self._is_missing()

    def _is_missing(self) -> bool:
        known = self._reader.agents.get(self._broker_id)
        return known is None or known.incarnation < self._incarnation

    async def _is_read(self) -> bool:
        return await asyncio.to_thread(self._reader.read_to_end, _READ_TIMEOUT_S)

    async def _due_restorations(self) -> Records:
        memory = self._reader.memory
        if not memory.restorations():
            self._lost_since_s = None
            return {}
        if self._lost_since_s is None:
            self._lost_since_s = self._monotonic_s()
        before = sum(one < self._broker_id for one, agent in self._reader.agents.items() if not agent.is_gone)
        if self._monotonic_s() - self._lost_since_s < min(before * _TURN_S, _LONGEST_TURN_S):
            return {}
        return memory.restorations() if await self._is_read() else {}

    async def _due_inheritance(self) -> Records:
        table, led = self._reader.table, self._led
        if self._reader.memory.is_lost or (table, led) == self._inherited:
            return {}
        found = self.inheriting(table, led)
        self._inherited = None if found else (table, led)
        return {TOPICS.key(topic): TOPICS.encode(settings) for topic, settings in found.items()}

    def inheriting(self, table: SettingsTable, led: Mapping[str, TopicId]) -> dict[str, TopicSettings]:
        """Return the settings to write for topics without settings of their own, where the inherited ones have
        changed."""
        found = {}
        patterns = longest_first(table.patterns)
        for topic, topic_id in led.items():
            now = settings_of(table.topics, topic, topic_id) or TopicSettings()
            wanted = replace(inherited(topic, patterns, self._file), topic_id=topic_id)
            is_nothing = not wanted.enable and not now.is_inherited
            is_due = wanted != now or topic in table.outdated
            if topic not in INTERNAL_TOPICS and not now.is_own and not is_nothing and is_due:
                found[topic] = wanted
        return found


def inherited(topic: str, patterns: Mapping[str, TopicSettings], file: StorageSettings) -> TopicSettings:
    """Return the settings of a topic without its own: those of the first pattern that matches, else those in the
    file."""
    if (found := first_match(tuple(patterns), topic)) is not None:
        return patterns[found]
    is_meant = not file.topics_include or _matches(topic, file.topics_include)
    is_on = file.topics_enable and is_meant and not _matches(topic, file.topics_exclude)
    return TopicSettings(enable=is_on, origin=FILE)


def _matches(topic: str, patterns: Collection[str]) -> bool:
    return any(is_match(pattern, topic) for pattern in patterns)
