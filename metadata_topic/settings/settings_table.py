"""What `__remote_wal_topic_settings` holds: a table of typed values, each under the key of its kind and name.

The topic has one partition and is compacted: the last record of each key counts. A new kind of value is one more
`Kind`, and a field of `SettingsTable`.

====================================  ================================================================
key                                   value
====================================  ================================================================
``topic:<name>``                      `TopicSettings`
``pattern:<regular expression>``      `TopicSettings` of topics with such names without own settings
``agent:<broker id>``                 `AgentRegistration`
``pause:<scope>``                     `Pause`
``lease:<broker id>``                 `Leases`
``tail:<topic>:<partition>``          `TailRequest`
``tail-stored:<topic>:<partition>``   `TailStored`
``balancer:cluster``                  `Balancer`
``restored:<topic id>``               up to which offset another settings topic was put into this one
====================================  ================================================================

What a topic inherits does not replace its own settings, if it comes behind them (`Kind.yields`).

A record's value is JSON: ``version``, the ``value``, and for a record that an agent put back after the topic was lost,
``restored``: the id of the settings topic that had it, its offset there, and whether it stands for what nobody could
read. Without a record, or after a tombstone, there is no such value. A record that cannot be read, as one of another
version, changes nothing that is known. If nothing is known under its key, the strictest value of its kind counts:
`Kind.unreadable`.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, cast

from pydantic import TypeAdapter, ValidationError, with_config

from kafka_log.topic_partition import TopicId, is_topic_name
from metadata_topic.records.errors import TopicSettingsError
from metadata_topic.settings.patterns import first_match
from metadata_topic.settings.settings_records import (
    ALL,
    Balancer,
    Leases,
    Pause,
    Pauses,
    TailRequest,
    TailStored,
    TopicPartitionName,
)
from metadata_topic.settings.topic_settings import (
    AS_READ,
    FILE,
    INTERNAL_TOPICS,
    AgentRegistration,
    TopicSettings,
    check_pattern,
    check_topic,
    settings_of,
)
from plugin.errors import fault_text

N = TypeVar("N", bound=Hashable)
V = TypeVar("V")

FORMAT_VERSION: Final = 1
_PAUSED_KINDS: Final = frozenset({"broker", "zone", "topic"})


class MalformedSettingError(ValueError):
    """A record of the settings topic cannot be decoded."""


class Place(NamedTuple):
    """The record that a value was written with: the settings topic's id in hexadecimal digits, and the offset."""

    topic: str
    offset: int
    is_unread: bool = False
    """Whether that record could not be read, so that the value stands for it: the record itself counts if known."""
    losses: int = 0
    """How many losses of earlier topics that topic had noted: of two topics' values, those of more losses are newer."""


@with_config(AS_READ)
@dataclass(frozen=True, slots=True)
class _Record(Generic[V]):
    version: Literal[1]
    value: V | None
    restored: Place | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Kind(Generic[N, V]):
    """One kind of values in the settings topic: how its names become keys, and its values become records."""

    field: str
    """The field of `SettingsTable`."""
    prefix: str
    parse: Callable[[str], N]
    """Returns the name of a key's text. Raises ValueError, TopicSettingsError for a name that has no meaning."""
    record: TypeAdapter[_Record[V]]
    text: Callable[[N], str] = str
    yields: Callable[[V, V], bool] = lambda _value, _known: False
    """Whether a value does not replace the known one that it comes behind."""
    unreadable: V | None = None
    """What a value that cannot be read counts as, if none was known before: what loses nothing."""
    strictness: Callable[[V], int] = lambda _value: 0
    """Of two values of one place the higher counts: records take others' offsets when a topic's end is lost."""

    def key(self, name: N) -> bytes:
        """Return the key of the record for a name. Raises TopicSettingsError or ValueError for an invalid name."""
        text = self.text(name)
        self.parse(text)
        return f"{self.prefix}:{text}".encode()

    def encode(self, value: V | None, restored: Place | None = None) -> bytes:
        """Return the value of a record. Without a value but with a place it says that the value was removed."""
        return self.record.dump_json(_Record(FORMAT_VERSION, value, restored))

    def decode(self, value: bytes) -> tuple[V | None, Place | None]:
        """Return the record's value, and where it was restored from. Raises MalformedSettingError, and nothing else."""
        try:
            record = self.record.validate_json(value)
        except ValidationError as error:
            raise MalformedSettingError("; ".join(map(_told, error.errors(include_url=False)))) from error
        return record.value, record.restored


def _told(fault: Any) -> str:
    return f"{'.'.join(map(str, fault['loc'])) or 'value'}: {fault_text(fault)}"


def _topic_name(text: str) -> str:
    check_topic(text)
    return text


def _pattern(text: str) -> str:
    check_pattern(text)
    return text


def _broker_id(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("no broker id")
    return int(text)


def _scope(text: str) -> str:
    kind, _, name = text.partition(":")
    if text != ALL and not (kind in _PAUSED_KINDS and name):
        raise ValueError(f"a pause of an unknown kind: {kind}")
    return text


def _is_inherited_behind_own(value: TopicSettings, known: TopicSettings) -> bool:
    """An operator may have set the topic while an agent wrote what it inherits."""
    return value.is_inherited and known.is_own and known.is_of(value.topic_id)


def _partition(text: str) -> TopicPartitionName:
    topic, _, number = text.rpartition(":")
    return _topic_name(topic), _broker_id(number)


def _partition_text(where: TopicPartitionName) -> str:
    return f"{where[0]}:{where[1]}"


def _is_durable(settings: TopicSettings) -> bool:
    return settings.is_durable


_STRICTEST: Final = TopicSettings(enable=True, durable=True, pack=False, origin="a record that cannot be read")
TOPICS: Final = Kind(
    "topics",
    "topic",
    _topic_name,
    TypeAdapter(_Record[TopicSettings]),
    yields=_is_inherited_behind_own,
    unreadable=_STRICTEST,
    strictness=_is_durable,
)
PATTERNS: Final = Kind(
    "patterns",
    "pattern",
    _pattern,
    TypeAdapter(_Record[TopicSettings]),
    unreadable=_STRICTEST,
    strictness=_is_durable,
)
AGENTS: Final = Kind("agents", "agent", _broker_id, TypeAdapter(_Record[AgentRegistration]))
PAUSES: Final = Kind(
    "pauses", "pause", _scope, TypeAdapter(_Record[Pause]), unreadable=Pause("a record that cannot be read", 0)
)
LEASES: Final = Kind("leases", "lease", _broker_id, TypeAdapter(_Record[Leases]))
TAIL_REQUESTS: Final = Kind("tail_requests", "tail", _partition, TypeAdapter(_Record[TailRequest]), _partition_text)
TAILS_STORED: Final = Kind("tails_stored", "tail-stored", _partition, TypeAdapter(_Record[TailStored]), _partition_text)
BALANCER: Final = Kind("balancer", "balancer", str, TypeAdapter(_Record[Balancer]))
CLUSTER: Final = "cluster"
RESTORED: Final = Kind("restored", "restored", str, TypeAdapter(_Record[int]))

KINDS: Final[tuple[Kind[Any, Any], ...]] = (
    TOPICS, PATTERNS, AGENTS, PAUSES, LEASES, TAIL_REQUESTS, TAILS_STORED, BALANCER, RESTORED,
)  # fmt: skip
_BY_PREFIX: Final = {kind.prefix: kind for kind in KINDS}

Key = tuple[Kind[Any, Any], Hashable]
"""A kind and a name."""


def parse_key(key: bytes | None) -> Key:
    """Return the kind and name in a record's key. Raises MalformedSettingError, and nothing else."""
    try:
        prefix, _, text = (key or b"").decode().partition(":")
        kind = _BY_PREFIX[prefix]
        return kind, kind.parse(text)
    except KeyError:
        raise MalformedSettingError(f"a key of an unknown kind, {len(key or b'')} bytes") from None
    except (ValueError, TopicSettingsError) as error:
        raise MalformedSettingError(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class SettingsTable:
    """The topic's values at one time, by kind and name."""

    topics: Mapping[str, TopicSettings] = field(default_factory=dict)
    """Settings by topic, explicit and inherited; of a topic without any see `of`."""
    patterns: Mapping[str, TopicSettings] = field(default_factory=dict)
    agents: Mapping[int, AgentRegistration] = field(default_factory=dict)
    pauses: Pauses = field(default_factory=dict)
    leases: Mapping[int, Leases] = field(default_factory=dict)
    tail_requests: Mapping[TopicPartitionName, TailRequest] = field(default_factory=dict)
    tails_stored: Mapping[TopicPartitionName, TailStored] = field(default_factory=dict)
    balancer: Mapping[str, Balancer] = field(default_factory=dict)
    """One, under `CLUSTER`, if any balances."""
    restored: Mapping[str, int] = field(default_factory=dict)
    orphaned: Mapping[str, TopicSettings] = field(default_factory=dict)
    """Own settings of deleted topics, which `topics` lacks; another topic may have the name now (`read_known_settings`
    alone looks for them)."""
    outdated: frozenset[str] = frozenset()
    """Topics whose record is older than the pattern that counts here: its agent has yet to write another."""
    _strictest_first: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Rank the patterns: durable ones are the strictest, then the longest."""
        ranked = sorted(self.patterns, key=lambda one: (self.patterns[one].is_durable, len(one), one), reverse=True)
        object.__setattr__(self, "_strictest_first", tuple(ranked))

    def of(self, topic: str, topic_id: TopicId | None) -> TopicSettings | None:
        """Return the settings of a topic; None if it has none. `topic_id` is None if it is not known.

        If its record is not there yet, the strictest pattern that matches the name counts: one that is durable, then
        the longest.
        """
        found = settings_of(self.topics, topic, topic_id)
        return found if found is not None else self._by_name(topic)

    def may_be_durable(self, topic: str) -> bool:
        """Whether a topic of this name is durable, whatever its id: it may have been recreated a moment ago."""
        own = self.topics.get(topic)
        if own is not None and (own.is_durable or own.topic_id is None):
            return own.is_durable
        by_name = self._by_name(topic)
        return by_name is not None and by_name.is_durable

    def _by_name(self, topic: str) -> TopicSettings | None:
        if not self.patterns or topic in INTERNAL_TOPICS or not is_topic_name(topic):
            return None
        return self.strictest(topic)

    def strictest(self, topic: str) -> TopicSettings | None:
        """Return the settings of the pattern that matches: of several a durable one, then the longest; else None."""
        found = first_match(self._strictest_first, topic)
        return None if found is None else self.patterns[found]

    @property
    def is_any_durable(self) -> bool:
        """Whether any topic is durable, or any pattern would make a new topic durable."""
        return any(one.is_durable for topics in (self.topics, self.patterns) for one in topics.values())


def table_of(values: Mapping[Key, object]) -> SettingsTable:
    found: dict[str, dict[Hashable, object]] = {kind.field: {} for kind in KINDS}
    for (kind, name), value in values.items():
        if kind is PATTERNS and isinstance(value, TopicSettings):
            value = replace(value, origin=f"pattern {name}")
        found[kind.field][name] = value
    table = SettingsTable(**cast(Any, {field: MappingProxyType(its) for field, its in found.items()}))
    outdated = {
        topic: replace(by_pattern, topic_id=one.topic_id)
        for topic, one in (table.topics.items() if table.patterns else ())
        if (by_pattern := _newer(one, topic, table)) is not None
    }
    if not outdated:
        return table
    return replace(table, topics=MappingProxyType({**table.topics, **outdated}), outdated=frozenset(outdated))


def _newer(settings: TopicSettings, topic: str, table: SettingsTable) -> TopicSettings | None:
    """Return the pattern's settings that count although the topic's record has others; None: the record counts."""
    if settings.origin == FILE:  # who wrote it knew no pattern: the settings topic had lost it, or it is new
        return table.strictest(topic)
    if not settings.is_inherited or settings.is_durable:
        return None
    strictest = table.strictest(topic)
    if strictest is None or not strictest.is_durable:
        return None
    inherits = first_match(tuple(longest_first(table.patterns)), topic)  # who is to write that may be dead
    by_pattern = table.patterns.get(inherits or "")
    return by_pattern if by_pattern is not None and by_pattern.is_durable else None


def longest_first(patterns: Mapping[str, TopicSettings]) -> Mapping[str, TopicSettings]:
    """Return the patterns in the order in which `first_match` needs them to find what a topic inherits."""
    return {one: patterns[one] for one in sorted(patterns, key=lambda one: (len(one), one), reverse=True)}
