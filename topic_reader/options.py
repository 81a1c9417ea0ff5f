"""The options of the Spark source: their names, their values, and which go together.

A name or a value that is not known is an error that says what was meant. Nothing falls back to a default in silence,
because a misspelt option would change which records are read.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from plugin.errors import meant
from topic_reader.read import IsolationLevel
from topic_reader.sources import Source

EARLIEST, LATEST = -2, -1
"""Kafka's numbers for them in options."""
COLUMNS: Final = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "LONG",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
"""Spark's types of the Kafka source's columns."""
_SETTLED_MS: Final = 30_000
"""Kafka's default of `replica.lag.time.max.ms`."""

ByPartition = Mapping[str, Mapping[int, int]]
"""Offsets by topic and partition."""


@dataclass(frozen=True)
class Bound:
    """Where a read starts or ends: offsets by partition, or a time."""

    offsets: int | ByPartition | None = None
    """EARLIEST or LATEST for all partitions."""
    timestamp_ms: int | None = None
    option: str = ""

    def check_complete(self, topic: str, partitions: Iterable[int]) -> None:
        """Raise ValueError if offsets are given for only some of the topic's partitions."""
        given = self.partitions_of(topic)
        if isinstance(self.offsets, Mapping) and (missing := [str(one) for one in partitions if one not in given]):
            raise ValueError(f"{self.option}: partition {', '.join(missing)} of {topic} is missing; -2 means earliest")

    def partitions_of(self, topic: str) -> list[int]:
        return [*self.offsets.get(topic, {})] if isinstance(self.offsets, Mapping) else []

    def offset_of(self, topic: str, partition: int, default: int) -> int:
        if isinstance(self.offsets, Mapping):
            return self.offsets.get(topic, {}).get(partition, default)
        return default if self.offsets is None else self.offsets


@dataclass(frozen=True)
class ReaderOptions:
    source: Source
    topics: tuple[str, ...]
    assigned: Mapping[str, list[int]]
    """Partitions by topic, if not all are to be read."""
    columns: tuple[str, ...]
    is_committed: bool
    fails_on_data_loss: bool
    starting: Bound
    ending: Bound
    settled_ms: int
    pushes_filters: bool

    @classmethod
    def parse(
        cls, given: Mapping[str, str], *, without_effect: Collection[str] = (), is_batch: bool = False
    ) -> "ReaderOptions":
        """Parse the options. Raises ValueError for options that are unknown, contradict each other, or have no
        effect."""
        values = dict(_value(key, text) for key, text in given.items())
        if ignored := [name for name in without_effect if name in values]:
            raise ValueError(f"the option {ignored[0]} has no effect here")
        for one, other in _EXCLUSIVE:
            if one in values and other in values:
                raise ValueError(f"give one of the options {one} and {other}")
        assigned = values.get("assign", {})
        topics = tuple(assigned) or values.get("subscribe", ())
        if not topics or "brokerConfig" not in values:
            raise ValueError("the options brokerConfig, and subscribe or assign, are needed")
        for name in ("startingOffsets", "endingOffsets"):
            for topic in values.get(name, ()) if isinstance(values.get(name), dict) else ():
                if topic not in topics:
                    raise ValueError(f"{name}: {topic} is not read{_meant(topic, topics)}")
        _check_bounds(values, is_batch=is_batch)
        if values.get("includeHeaders") and "headers" not in values.get("columns", COLUMNS):
            raise ValueError("includeHeaders has no effect beside columns that do not name headers")
        source = {field: values[name] for name, field in _OF_SOURCE.items() if name in values}
        everything = [name for name in COLUMNS if name != "headers" or values.get("includeHeaders")]
        return cls(
            Source(**source),
            topics,
            assigned,
            tuple(values.get("columns", everything)),
            values.get("kafka.isolation.level") == "read_committed",
            values.get("failOnDataLoss", True),
            Bound(values.get("startingOffsets"), values.get("startingTimestamp"), "startingOffsets"),
            Bound(values.get("endingOffsets"), values.get("endingTimestamp"), "endingOffsets"),
            values.get("settledMs", _SETTLED_MS),
            values.get("pushFilters", False),
        )


def _value(key: str, text: str) -> tuple[str, Any]:
    name = next((one for one in _PARSERS if one.lower() == key.lower()), None)
    if name is None:
        raise ValueError(f"there is no option {key}{_meant(key, _PARSERS)}")
    try:
        return name, _PARSERS[name](text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _meant(word: str, known: Collection[str]) -> str:
    return meant(word, known) or f"; known are {', '.join(known)}"


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
        return text

    return parse


def _boolean(text: str) -> bool:
    return _one_of("true", "false")(text.lower()) == "true"


def _whole_number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{text!r} is no number of milliseconds")
    return int(text)


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in _text(text).split(",") if name.strip())


def _columns(text: str) -> tuple[str, ...]:
    for name in (names := _names(text)):
        if name not in COLUMNS:
            raise ValueError(f"there is no {name}{_meant(name, COLUMNS)}")
    return names


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"{max(found, key=[name for name, _ in pairs].count)} stands twice")
    return found


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text, object_pairs_hook=_without_repeats)
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{text!r} is no JSON object")
    return found


def _assigned(text: str) -> dict[str, list[int]]:
    found = _object(text)
    for numbers in found.values():
        if not isinstance(numbers, list) or not numbers or not all(type(one) is int and one >= 0 for one in numbers):
            raise ValueError(f"{numbers!r} is no list of partitions, as in {{'topic': [0, 1]}}")
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"{numbers!r} has a partition twice")
    return found


def _offsets(text: str) -> int | ByPartition:
    if text in (words := {"earliest": EARLIEST, "latest": LATEST}):
        return words[text]
    if not text.lstrip().startswith("{"):
        raise ValueError(f"{text!r} is neither earliest nor latest nor a JSON object")
    found = _object(text)
    for offsets in found.values():
        if not isinstance(offsets, dict) or not all(type(one) is int and one >= EARLIEST for one in offsets.values()):
            raise ValueError(f"{offsets!r} are no offsets by partition, as in {{'topic': {{'0': 23}}}}")
        for number in offsets:
            if not number.isdecimal() or str(int(number)) != number:
                raise ValueError(f"{number!r} is no partition")
    return {topic: {int(number): offset for number, offset in offsets.items()} for topic, offsets in found.items()}


def _check_bounds(values: Mapping[str, Any], *, is_batch: bool) -> None:
    if is_batch and LATEST in _numbers(values.get("startingOffsets")):
        raise ValueError("startingOffsets: a batch that starts at latest (-1) has no records; is endingOffsets meant?")
    if values.get("endingTimestamp", values.get("startingTimestamp", 0)) < values.get("startingTimestamp", 0):
        raise ValueError("endingTimestamp is before startingTimestamp")
    if EARLIEST in _numbers(values.get("endingOffsets")):
        raise ValueError("endingOffsets: what ends at earliest (-2) has no records; is startingOffsets meant?")


def _numbers(offsets: int | ByPartition | None) -> set[int]:
    if isinstance(offsets, Mapping):
        return {offset for of_topic in offsets.values() for offset in of_topic.values()}
    return set() if offsets is None else {offsets}


_OF_SOURCE: Final = {
    "brokerConfig": "broker_config",
    "kafka.bootstrap.servers": "bootstrap_servers",
    "commandConfig": "command_config",
    "clusterMetadata": "cluster_metadata",
    "clusterId": "cluster_id",
    "fromObjects": "from_objects",
}
"""The fields of Source."""
_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "brokerConfig": _text,
    "kafka.bootstrap.servers": _text,
    "commandConfig": _text,
    "clusterMetadata": _text,
    "clusterId": _text,
    "fromObjects": _boolean,
    "subscribe": _names,
    "assign": _assigned,
    "columns": _columns,
    "includeHeaders": _boolean,
    "kafka.isolation.level": _one_of(*get_args(IsolationLevel)),
    "failOnDataLoss": _boolean,
    "startingOffsets": _offsets,
    "startingTimestamp": _whole_number,
    "endingOffsets": _offsets,
    "endingTimestamp": _whole_number,
    "settledMs": _whole_number,
    "pushFilters": _boolean,
}
_EXCLUSIVE: Final = (
    ("subscribe", "assign"),
    ("startingOffsets", "startingTimestamp"),
    ("endingOffsets", "endingTimestamp"),
)
