"""Combines what the settings topic says with what an earlier one said, so that nothing of it is lost with the topic.

A topic that was deleted and made again, or lost its end, lacks values that counted. Without them durable topics become
ordinary ones, pauses end, and this cluster's lease looks like another cluster's. So an agent remembers all values, of
every kind, in its state directory, each with the place where it was written.

Theory. While the topic is the one that is remembered, and whole, it counts alone: what it lacks was removed. Otherwise
the memory counts as well: a value of it counts if the topic has none under its key, or an older one. Agents write such
values into the topic again (`restorations`), each with its place in the lost topic. So agents that knew the lost topic
up to different offsets agree, whoever comes first, and a new record is newer than all that is restored, unless it would
have yielded to it in the lost topic. Places also say how many losses their topic had noted (`RESTORED`), which orders
what two lost topics had, for agents that were away while one of them was restored. An agent that had read the lost
topic further than another one also removes what that one restored and had been removed since. Once the topic has all
that the memory has, the agent notes so in the topic (`RESTORED`), and the topic counts alone again: also for agents
that come back later, and read the lost topic less far.

A record that does not count may come behind one that does, which compaction would remove. Agents then write the one
that counts again.

Sans-IO except for `load` and `save`. The thread that reads the topic applies records; any thread may ask.
"""

import json
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from kafka_log.topic_partition import TopicId
from metadata_topic.records.topic_doubt import NOT_ASKED, EpochEnds, TopicDoubt, end_of
from metadata_topic.settings.settings_table import (
    AGENTS,
    FORMAT_VERSION,
    RESTORED,
    Key,
    Kind,
    MalformedSettingError,
    Place,
    SettingsTable,
    parse_key,
    table_of,
)
from plugin.durable_files import write_durably

if TYPE_CHECKING:
    from metadata_topic.topic.topic_follower import TopicRecord

log = structlog.get_logger(__name__)

FILE_NAME: Final = "settings-topic.json"
_UNKNOWN_TOPIC: Final = "unknown"
"""Stands for the topic's id where brokers do not tell it."""


class _Row(NamedTuple):
    value: object
    """None: it was removed."""
    place: Place
    is_restored: bool


@dataclass(slots=True)
class _Content:
    """The content of one settings topic, read up to `end`."""

    topic: str = _UNKNOWN_TOPIC
    end: int = 0
    rows: dict[Key, _Row] = field(default_factory=dict)
    epoch: int | None = None
    """The leader epoch of the last record; None: not known. Of the topic that is read see `epochs_read`."""


class SettingsMemory:
    """The content of the settings topic, joined with what an earlier topic had and this one lost.

    Also judges for `TopicFollower` whether the topic is still the same one, and whole.
    """

    def __init__(self, state_directory: Path | None = None) -> None:
        """Load what is remembered in this directory, if there is one."""
        self._path = None if state_directory is None else state_directory / FILE_NAME
        self._lock = threading.RLock()
        self._before = _Content()
        """What is remembered: of the topic that is read now, from an earlier time, or of a lost one."""
        self._now = _Content()
        """What is read now."""
        self._superseded: dict[Key, int] = {}
        """Offsets of the last records of keys, where they do not count: `Kind.yields`, or they restore older values."""
        self._is_lost = False
        self._cut: int | None = None
        """Where the topic ended when it was found shorter than before; None: it was not."""
        self._until = 0
        """Where the topic ended when its reading began or went on: before it is read up to there, no loss has ended."""
        self._is_cut = False
        """Whether the topic's beginning was gone when its reading began."""
        self._saved: object = None
        self.changes = 0
        """How often the content changed."""
        self.malformed = 0
        """How many records could not be read."""
        self.awaits_snapshot = False
        self.epochs_read: Mapping[int, int] = {}
        if self._path is not None:
            self._load(self._path)

    # The topic's continuity: for the thread that reads it.

    @property
    def topic_id(self) -> TopicId | None:
        """The id of the topic that is read; None while it is not known."""
        return None if self._now.topic == _UNKNOWN_TOPIC else TopicId(bytes.fromhex(self._now.topic))

    @property
    def doubts(self) -> Mapping[TopicDoubt, str]:
        """Return no doubts, ever: agents restore what the topic lost, so no person has to."""
        return {}

    @property
    def remembered_epochs(self) -> Collection[tuple[int, int]]:
        """Partition 0 with the leader epoch of the last remembered record; empty if that is unknown."""
        return [] if self._before.epoch is None else [(0, self._before.epoch)]

    def reads(self, topic_id: TopicId | None, ends: Mapping[int, int], epoch_ends: EpochEnds = NOT_ASKED) -> bool:
        """Take the topic's id and ends, as brokers report them. Returns whether reading continues from where it is."""
        topic = _UNKNOWN_TOPIC if topic_id is None else topic_id.hex()
        end = end_of(0, self.epochs_read.get(0), ends, epoch_ends)
        with self._lock:
            self._until = ends.get(0, 0)
            if _are_two(topic, self._now.topic):
                self._lose(f"its id is {topic}, it was {self._now.topic}", topic)
                return False
            if end < self._now.end:
                self._lose(f"it lost all from offset {end} on, {self._now.end} had been read", self._now.topic, end)
                return False
            self._now.topic = topic if topic != _UNKNOWN_TOPIC else self._now.topic
            before = self._before
            if before.rows and not self._is_lost:
                end = end_of(0, before.epoch, ends, epoch_ends)
                if _are_two(topic, before.topic):
                    self._found_lost(f"its id is {topic}, it was {before.topic}")
                elif end < before.end:
                    self._found_lost(f"it lost all from offset {end} on, {before.end} had been read", end)
            return True

    def doubted(self, doubt: TopicDoubt, found: str) -> None:
        """Handle the news that the topic lost its end or its beginning while it was read."""
        with self._lock:
            self._is_cut |= doubt is TopicDoubt.GAP
            if doubt is TopicDoubt.SHORTER:
                self._lose(found, self._now.topic)
            elif self._before.rows:
                self._found_lost(found)

    def _lose(self, found: str, topic: str, cut: int | None = None) -> None:
        """Remember what counted until now, and read the topic, with this id now, from its beginning.

        If nobody had restored an earlier lost topic, that one remains the lost one: who knew only the later one cannot
        note that all of it is there.
        """
        is_the_first = not self._is_lost or self._is_noted()
        lost = _Content(self._now.topic, self._now.end, epoch=self.epochs_read.get(0)) if is_the_first else self._before
        self._before = replace(lost, rows=self._counting())
        self._now, self.epochs_read = _Content(topic), {}
        self._superseded.clear()
        self._found_lost(found, cut)

    def _found_lost(self, found: str, cut: int | None = None) -> None:
        self._is_lost, self._cut = True, cut
        self.changes += 1
        log.error("settings_topic_lost", found=found, consequence="agents write what it held into it again")

    # Records.

    def apply_all(self, records: "Iterable[TopicRecord]") -> None:
        with self._lock:
            for record in records:
                self._now.end = record.offset + 1
                try:
                    self._apply(record)
                except MalformedSettingError as error:
                    self.malformed += 1
                    log.warning("malformed_setting_skipped", offset=record.offset, error=str(error))
            self._end_loss()

    def _apply(self, record: "TopicRecord") -> None:
        key = parse_key(record.key)
        kind, here = key[0], Place(self._now.topic, record.offset)
        if record.value is None:
            self._put(key, _Row(None, here, is_restored=False))
            return
        try:
            value, restored = kind.decode(record.value)
        except MalformedSettingError:
            known = self._now.rows.get(key) or self._before.rows.get(key)
            value = kind.unreadable if known is None or known.value is None else known.value
            self._put(key, _Row(value, here._replace(is_unread=True), is_restored=False))
            raise
        self._put(key, _Row(value, restored or here, restored is not None))

    def _put(self, key: Key, row: _Row) -> None:
        known = self._now.rows.get(key)
        if row.is_restored and known is not None and (row.place[:3], row.value) == (known.place[:3], known.value):
            row = known  # several agents restore the same
        elif known is not None and self._yields(key, row, known):
            self._superseded[key] = self._now.end - 1
            return
        self._now.rows[key] = row
        self._superseded.pop(key, None)
        self.changes += 1

    def _yields(self, key: Key, row: _Row, known: _Row) -> bool:
        """Whether a record does not replace what the topic has under its key."""
        if row.is_restored:
            return not self._is_newer(key, row, known)
        return None not in (row.value, known.value) and key[0].yields(row.value, known.value)

    def _is_newer(self, key: Key, row: _Row, than: _Row) -> bool:
        """Whether a restored or remembered value replaces one that the topic has."""
        place = row.place
        if key[0] is RESTORED and key[1] != self._now.topic and isinstance(row.value, int):  # who knew more, counts
            return not isinstance(than.value, int) or row.value > than.value
        is_of_now = self._cut is not None and not than.is_restored and than.place.offset >= self._cut
        if place.topic == than.place.topic and not is_of_now:
            return _rank(key, row) > _rank(key, than)
        if than.is_restored and place.losses != than.place.losses:
            return place.losses > than.place.losses
        if None not in (row.value, than.value) and key[0].yields(than.value, row.value):
            return True  # an agent that did not know the own value wrote what the topic inherits
        return place.topic == self._now.topic and than.is_restored

    # What counts.

    def _counting(self) -> dict[Key, _Row]:
        """Return the values that count, without what was removed; None for those that could not be read."""
        rows = dict(self._now.rows)
        if self._is_lost:
            rows |= self._lacking()
            for key in self._removed():
                del rows[key]
        losses = _losses(rows)
        return {
            key: row if row.is_restored else row._replace(place=row.place._replace(losses=losses))
            for key, row in rows.items()
            if row.value is not None or row.place.is_unread
        }

    def _lacking(self) -> dict[Key, _Row]:
        """Return the remembered values that the topic lacks, or has older.

        What it lacks once somebody has noted that it has all was removed since.
        """
        now, is_noted = self._now.rows, self._is_noted()
        return {
            key: row
            for key, row in self._before.rows.items()
            if row.value is not None
            and (not is_noted if (known := now.get(key)) is None else self._is_newer(key, row, known))
        }

    def _removed(self) -> list[Key]:
        """Return what others restored though it had been removed from the lost topic."""
        if self._is_noted():
            return []
        return [
            key
            for key, row in self._now.rows.items()
            if row.is_restored
            and row.value is not None
            and row.place.offset < self._known_of(row.place.topic)
            and key not in self._before.rows
        ]

    def _known_of(self, topic: str) -> int:
        """Return up to where the memory knows what became of a lost topic's values, the last or an earlier one."""
        if topic == self._before.topic:
            return self._before.end
        noted = self._before.rows.get((RESTORED, topic))
        return noted.value if noted is not None and isinstance(noted.value, int) else 0

    def table(self, *, is_read: bool) -> SettingsTable:
        """Return the values that count; until the topic was read to its end once (`is_read`), those that are
        remembered."""
        with self._lock:
            rows = self._counting() if is_read or self._is_lost or not self._before.rows else self._before.rows
            return table_of({key: row.value for key, row in rows.items() if row.value is not None})

    # What becomes of a loss.

    @property
    def is_lost(self) -> bool:
        """Whether values that count may be missing from the topic, because an earlier topic had them."""
        return self._is_lost

    @property
    def unread(self) -> list[str]:
        """The keys of records that could not be decoded. For these, the earlier value counts, or else the one that
        loses nothing."""
        with self._lock:
            rows = self._now.rows.items()
            return sorted(kind.key(name).decode() for (kind, name), row in rows if row.place.is_unread)

    @property
    def has_remembered(self) -> bool:
        """Whether values are remembered, of an earlier topic or of an earlier time."""
        return bool(self._before.rows)

    def may_lack(self) -> str | None:
        """Return why the topic may lack values of an earlier one that this agent does not remember; None if it lacks
        none."""
        with self._lock:
            rows = self._now.rows
            if self._before.rows:
                return None
            if not any(kind is AGENTS for kind, _ in rows):
                return "no agent has registered in it"
            is_remade = any(row.is_restored and row.place.topic != self._now.topic for row in rows.values())
            if (is_remade or self._is_cut) and not self.has_new(RESTORED):
                return "agents are putting back what it held before it was lost"
            return None

    def was_remade(self) -> bool:
        """Whether the settings topic was created anew and lacks, or lacked, values of the earlier one."""
        with self._lock:
            return self._is_lost or any(
                kind is RESTORED or row.is_restored for (kind, _), row in self._now.rows.items()
            )

    def has_new(self, kind: Kind[Any, Any]) -> bool:
        """Whether the topic has a value of this kind that was written to it, not restored."""
        with self._lock:
            return any(one is kind and not row.is_restored for (one, _), row in self._now.rows.items())

    def restorations(self) -> dict[bytes, bytes]:
        """Return the records (key to value) that would give the topic back what it lost; empty if it lost nothing."""
        with self._lock:
            found = {
                key: self._now.rows[key]._replace(place=Place(self._now.topic, offset + 1))
                for key, offset in self._superseded.items()
            }
            if self._is_lost:
                gone = Place(self._before.topic, self._before.end - 1, losses=_losses(self._before.rows))
                found |= self._lacking() | {key: _Row(None, gone, is_restored=True) for key in self._removed()}
                if not found:
                    return {RESTORED.key(self._before.topic): RESTORED.encode(self._known_end())}
            # A note that something is restored comes behind it, also when the writer dies in between.
            ordered = sorted(found.items(), key=lambda one: one[0][0] is RESTORED)
            return {kind.key(name): kind.encode(row.value, row.place) for (kind, name), row in ordered}

    def _known_end(self) -> int:
        """Return up to where everything of the lost topic is known: to its end, or the first unread record."""
        unread = (row.place for row in self._before.rows.values() if row.place.is_unread)
        return min((one.offset for one in unread if one.topic == self._before.topic), default=self._before.end)

    def _noted(self) -> int:
        """Return up to where agents noted that the topic has all of the lost one; -1: nobody has, since this loss.

        -1 as well before the topic is read to its end: compaction keeps each key's last record, so what the note
        vouches for may come behind it.
        """
        if self._now.end < self._until:
            return -1
        noted, cut = self._now.rows.get((RESTORED, self._before.topic)), self._cut
        if noted is None or not isinstance(noted.value, int):
            return -1
        is_of_an_earlier_loss = cut is not None and (noted.is_restored or noted.place.offset < cut)
        return -1 if is_of_an_earlier_loss else noted.value

    def _is_noted(self) -> bool:
        """Whether somebody who had read the lost topic as far as it is known here noted so."""
        return self._noted() >= self._before.end

    def _end_loss(self) -> None:
        if self._is_lost and self._noted() >= self._known_end() and not self._lacking() and not self._removed():
            self._is_lost, self._cut, self._before = False, None, _Content()
            self.changes += 1
            log.warning("settings_topic_restored", values=len(self._now.rows))

    # The file.

    def save(self) -> None:
        """Save the values that count to the state directory; the topic must have been read to its end. Raises
        OSError."""
        with self._lock:
            if self._path is None or self._is_lost or self._saved == (self._now.topic, self.changes):
                return
            known = self._now
            written = known.topic, self.changes
            fields = {
                "version": FORMAT_VERSION,
                "topic": known.topic,
                "end": known.end,
                "epoch": self.epochs_read.get(0),
                "rows": [
                    [kind.key(name).decode(), kind.encode(row.value, row.place).decode()]
                    for (kind, name), row in self._counting().items()
                ],
            }
        write_durably(self._path, json.dumps(fields))
        self._saved = written

    def _load(self, path: Path) -> None:
        try:
            fields = json.loads(path.read_text())
            if fields["version"] != FORMAT_VERSION:
                raise ValueError(f"it has version {fields['version']}, not {FORMAT_VERSION}")
            before = _Content(str(fields["topic"]), int(fields["end"]), epoch=fields.get("epoch"))
            for text, record in fields["rows"]:
                try:
                    key = parse_key(text.encode())
                except MalformedSettingError as error:  # of a newer release, as is such a record of the topic
                    log.warning("settings_memory_row_skipped", file=str(path), key=text, error=str(error))
                    continue
                try:
                    value, place = key[0].decode(record.encode())
                except MalformedSettingError as error:  # of another release: what loses nothing counts
                    log.error("settings_memory_row_unreadable", file=str(path), key=text, error=str(error))
                    value, place = key[0].unreadable, Place(before.topic, 0, is_unread=True)
                before.rows[key] = _Row(value, place or Place(before.topic, 0), is_restored=True)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.error("settings_memory_unreadable", file=str(path), error=str(error),
                      hint="written anew; a settings topic that was lost meanwhile is not noticed")  # fmt: skip
            return
        self._before = before


def _rank(key: Key, row: _Row) -> tuple[int, bool, int]:
    """Return what decides between values that one topic had under a key."""
    strictness = 0 if row.value is None else key[0].strictness(row.value)
    return row.place.offset, not row.place.is_unread, strictness


def _losses(rows: Collection[Key]) -> int:
    return sum(kind is RESTORED for kind, _ in rows)


def _are_two(topic: str, other: str) -> bool:
    """Whether these are ids of different topics, as far as is known."""
    return _UNKNOWN_TOPIC not in (topic, other) and topic != other
