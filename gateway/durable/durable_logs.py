"""Decides which topics' answers are held, and for which offsets of which logs. Sans-IO, for all clients of an agent.

The agent reports topics' settings and ids, the logs that are led here, and how far each is stored and published.

Holds true: `hold` lets an answer go at once only if the topic is known not to be durable, or all below the offset is
stored and published. It waits for what is not known yet: settings that were not read, a topic or a leadership that the
agent has not heard of, a topic that was created again under a known name. A topic whose settings are not there yet is
durable if a pattern may make it so. By its name a topic counts as not durable only if no topic of that name may be
durable, or the log's directory says that it is the known one. If a log is truncated below the offset that a
hold waits for, or is not led here any more, the hold ends with `NOT_LED`: the broker has acknowledged the records, but
that does not count any more.

With one replica, a log is not truncated while its broker lives. With several, acks=all survives a change of leadership,
as in Kafka. acks=1 does not: then nobody knows whether the record at an offset is the acknowledged one.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final, Protocol

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.offset_ranges import OffsetRange
from metadata_topic.settings.settings_table import SettingsTable
from rlm.write_path.assignment import Assignment


class Verdict(Enum):
    """How waiting for a partition ended; the value labels a counter."""

    STORED = "stored"
    REPLICATED = "replicated"
    NOT_LED = "not_led"
    TIMED_OUT = "timed_out"

    @property
    def is_kept(self) -> bool:
        """Whether the records are as safe as the response says, so that it may go to the client."""
        return self in (Verdict.STORED, Verdict.REPLICATED)


class Hold:
    """One partition of a held response, until it has a verdict."""

    __slots__ = ("_tell", "end_offset", "log", "partition", "topic", "verdict")

    def __init__(
        self, topic: TopicId | str, partition: int, end_offset: int | None, tell: Callable[[], object]
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.end_offset = end_offset
        """Exclusive; None: the broker did not say where the records are."""
        self.log: TopicIdPartition | None = None
        """None: not known yet."""
        self.verdict: Verdict | None = None
        self._tell = tell

    def end(self, verdict: Verdict) -> None:
        """Set the verdict, only once, and call `tell`."""
        self.verdict = verdict
        self._tell()


class StoredLogs(Protocol):
    """The subset of the write path that held responses need."""

    def published_offset(self, partition: TopicIdPartition) -> int | None:
        """Return the offset below which all is stored and published; None or negative: not known yet."""

    def awaited(self, partition: TopicIdPartition) -> None:
        """Note that a response waits for this log to be stored."""

    def is_same_log(self, log: TopicIdPartition) -> bool:
        """Whether the broker still has that log under the topic's name, not the log of a recreated topic."""


class DurableLogs:
    """Knows up to where durable logs are stored and published, and ends holds. Event loop only."""

    def __init__(self, ask_anew: Callable[[], object] = lambda: None) -> None:
        """`ask_anew` makes the agent ask the cluster again for topics and leaders."""
        self.ask_anew: Final = ask_anew
        self._logs: StoredLogs | None = None
        self._table: SettingsTable | None = None
        """None: not read yet."""
        self.may_hold = True
        """Whether any topic is durable, as far as is known."""
        self._names: Mapping[TopicId, str] = {}
        self._ids: Mapping[str, TopicId] = {}
        self._is_here: Callable[[TopicIdPartition], bool] = lambda _log: False
        self._led: dict[tuple[str, int], TopicIdPartition] = {}
        self._unplaced: dict[Hold, None] = {}
        self._waiting: dict[TopicIdPartition, dict[Hold, None]] = {}
        self._unreadable: dict[TopicIdPartition, list[OffsetRange]] = {}
        """Offsets that uploads leave out because the log's bytes are damaged: they never count as stored."""

    def named(self, topic: TopicId | str) -> tuple[str, TopicId] | None:
        """Return the name and id of a topic that has a directory here; None if it is not known."""
        name, topic_id = (topic, self._ids.get(topic)) if isinstance(topic, str) else (self._names.get(topic), topic)
        return (name, topic_id) if name is not None and topic_id is not None else None

    def is_durable(self, topic: TopicId | str, partition: int) -> bool | None:
        """Return whether a topic is durable, judged by a partition that is led here; None if that is not known yet."""
        table = self._table
        if table is None or not self.may_hold:
            return None if table is None else False
        by_name = isinstance(topic, str)
        name, topic_id = (topic, self._ids.get(topic)) if isinstance(topic, str) else (self._names.get(topic), topic)
        if name is None:
            return None
        settings = table.of(name, topic_id)
        if settings is not None and settings.is_durable:
            return True
        is_certain = not by_name or not table.may_be_durable(name)
        if is_certain or (topic_id is not None and self._is_here(TopicIdPartition(topic_id, partition))):
            return False
        return None

    @property
    def waiting(self) -> int:
        """How many partitions of held responses wait."""
        return len(self._unplaced) + sum(map(len, self._waiting.values()))

    # What connections ask.

    def hold(
        self, topic: TopicId | str, partition: int, end_offset: int | None, tell: Callable[[], object]
    ) -> Hold | None:
        """Hold a response until all below `end_offset` is stored and published; None: it need not be held.

        `tell` is called at the verdict, unless the verdict is known at once.
        """
        held = Hold(topic, partition, end_offset, tell)
        fate = self._fate(held)
        if fate is Verdict.STORED:
            return None
        if isinstance(fate, Verdict):
            held.verdict = fate
        else:
            self._wait(held, fate)
        return held

    def let_go(self, held: Hold) -> None:
        """Drop a hold, because its response is no longer waited for."""
        self._unplaced.pop(held, None)
        if held.log is not None:
            self._forget(held.log, held)

    def _fate(self, held: Hold) -> Verdict | TopicIdPartition | None:
        """Return how a hold ends, if that is known now, else the log that it waits for; None: neither is known."""
        is_durable = self.is_durable(held.topic, held.partition)
        if is_durable is None:
            return None
        if not is_durable:
            return Verdict.STORED
        if held.end_offset is None:
            return Verdict.TIMED_OUT
        name = held.topic if isinstance(held.topic, str) else self._names[held.topic]
        led = self._led.get((name, held.partition))
        if led is not None and (held.topic not in (name, led.topic_id) or self._is_other_log(led)):
            return None
        return led if led is None or not self._is_stored(led, held.end_offset) else Verdict.STORED

    def _is_other_log(self, led: TopicIdPartition) -> bool:
        return self._logs is not None and not self._logs.is_same_log(led)

    def _is_stored(self, log: TopicIdPartition, end_offset: int) -> bool:
        if any(begin < end_offset <= end for begin, end in self._unreadable.get(log, ())):
            return False
        published = self._logs.published_offset(log) if self._logs is not None else None
        return published is not None and published >= end_offset

    def _wait(self, held: Hold, log: TopicIdPartition | None) -> None:
        held.log = log
        if log is None:
            self._unplaced[held] = None
            self.ask_anew()
            return
        self._waiting.setdefault(log, {})[held] = None
        if self._logs is not None:
            self._logs.awaited(log)

    def _forget(self, log: TopicIdPartition, held: Hold) -> None:
        waiting = self._waiting.get(log, {})
        waiting.pop(held, None)
        if not waiting:
            self._waiting.pop(log, None)

    # What the agent tells.

    def logs_arrived(self, logs: StoredLogs) -> None:
        """Start to use this write path."""
        self._logs = logs
        self._look_at_unplaced()

    def logs_left(self) -> None:
        """Note that there is no write path until the next `logs_arrived`; all logs must have been released before."""
        self._logs = None

    def topics_known(
        self,
        table: SettingsTable,
        names: Mapping[TopicId, str],
        is_here: Callable[[TopicIdPartition], bool] = lambda _log: False,
    ) -> None:
        """Note all topics' settings; `names` are those of topics with a replica here.

        `is_here` returns whether a log's directory still belongs to that topic.
        """
        self._table, self._names, self.may_hold = table, names, table.is_any_durable
        self._is_here = is_here
        self._ids = {name: topic_id for topic_id, name in names.items()}
        self._look_at_unplaced()

    def assigned(self, assignments: Iterable[Assignment]) -> None:
        """Note the durable logs that are led here, and refuse the holds for all other logs."""
        self._led = {
            (one.topic, one.topic_id_partition.partition): one.topic_id_partition
            for one in assignments
            if one.is_durable
        }
        led = set(self._led.values())
        for log in list(self._waiting):
            if log in led:
                self.look(log)
            else:
                self.released(log)
        self._look_at_unplaced()

    def look(self, log: TopicIdPartition) -> None:
        """End the holds of this log that are met, because more may be stored and published."""
        for held in list(self._waiting.get(log, ())):
            if held.end_offset is not None and self._is_stored(log, held.end_offset):
                self._end(log, held, Verdict.STORED)

    def cut(self, log: TopicIdPartition, offset: int) -> None:
        """Refuse the holds beyond an offset: the log was truncated there, or cannot be stored beyond it."""
        for held in list(self._waiting.get(log, ())):
            if held.end_offset is not None and held.end_offset > offset:
                self._end(log, held, Verdict.NOT_LED)

    def unreadable(self, log: TopicIdPartition, begin: int, end: int) -> None:
        """Note offsets that will never be stored; holds that include them wait until the request's time is over."""
        self._unreadable.setdefault(log, []).append((begin, end))

    def released(self, log: TopicIdPartition) -> None:
        """Refuse all holds of a log that is no longer led here."""
        self._unreadable.pop(log, None)
        self.cut(log, -1)

    def _end(self, log: TopicIdPartition, held: Hold, verdict: Verdict) -> None:
        self._forget(log, held)
        held.end(verdict)

    def _look_at_unplaced(self) -> None:
        for held in list(self._unplaced):
            fate = self._fate(held)
            if fate is None:
                continue
            del self._unplaced[held]
            if isinstance(fate, Verdict):
                held.end(fate)
            else:
                self._wait(held, fate)
