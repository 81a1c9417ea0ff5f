"""Usage records of the metadata topic: what an agent has moved and asked for since it started, for cost reports.

Counters are cumulative over one incarnation of the agent, so a record that is read twice, or that went missing, changes
no sum: what happened between two records is their difference. The key is `rwm:usage:`, broker id (4), incarnation (8)
and sequence (8), big endian; agents do not read them. The value is the format version, the record type, and the record
in JSON: tuples as arrays, topics' ids as hexadecimal digits. What is too large for a record is in several of the same
key: without the first one, which stands before the others, the sequence is unknown.
"""

import operator
import struct
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields, replace
from functools import partial
from typing import Annotated, Final, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter, ValidationError, with_config

from kafka_log.topic_partition import TopicId
from metadata_topic.records.record_fields import (
    FOREIGN_KEY,
    FORMAT_VERSION,
    HIGHEST_INCARNATION,
    UndecodableRecordError,
    packed,
)

USAGE: Final = 34
USAGE_KEY: Final = b"rwm:usage:"
_HEAD: Final = bytes([FORMAT_VERSION, USAGE])
_ID: Final = struct.Struct(">iQQ")
"""Behind the beginning of a key: broker id, incarnation, sequence."""
_TOPICS_MAX: Final = 6000
"""Rows in a record: of up to 115 bytes each, so far below `PublisherSettings.max_record_bytes`."""
_Count = Annotated[int, Field(ge=0, lt=2**60)]
"""Reports add counters up in 64 bits: this is ten times what a gigabyte per second makes in three years."""
_BrokerId = Annotated[int, Field(ge=-(2**31), lt=2**31)]
_TimeMs = Annotated[int, Field(ge=0, lt=253_402_300_800_000)]
"""Up to the year 9999: dates have no later one."""


class StoreUsage(NamedTuple):
    """Requests to one object store, each attempt counted, and the bytes of objects that they moved."""

    prices: str
    """The section of price tables for these requests."""
    put: _Count
    get: _Count
    head: _Count
    delete: _Count
    list: _Count
    put_bytes: _Count
    get_bytes: _Count


class FollowerUsage(NamedTuple):
    """The connections from one follower's agent, counted at the leader's end; both directions together."""

    follower: _BrokerId
    peer_bytes: _Count
    """Bytes on the wire."""
    stock_bytes: _Count
    """What the relayed frames have without links: the bytes that stock Kafka would have sent."""


class TopicUsage(NamedTuple):
    """Record bytes of one topic that one follower got, linked and inline."""

    topic_id: Annotated[TopicId, Field(min_length=16, max_length=16)]
    follower: _BrokerId
    linked_bytes: _Count
    inline_bytes: _Count
    """As they crossed: packed."""
    plain_bytes: _Count
    """Those that were sent inline, before they were packed."""


@dataclass(slots=True)
class RouterUsage:
    """Answered requests for objects that gateways wrote for producers, and the bytes that they moved. Agents count in
    it."""

    put: _Count = 0
    """PUTs of the gateways."""
    get: _Count = 0
    """GETs of the agents beside the brokers."""
    put_bytes: _Count = 0
    get_bytes: _Count = 0


@dataclass(slots=True)
class ClientZoneUsage:
    """Bytes that one zone's clients exchanged with brokers of other zones.

    Agents count in it: the first four at the gateway, `near_bytes` beside the brokers, `untold_bytes` at both sides.
    """

    zone: str = ""
    sent_bytes: _Count = 0
    """Bytes sent by clients, which would cross zones without the gateway."""
    sent_crossed_bytes: _Count = 0
    """Bytes that crossed zones instead."""
    given_bytes: _Count = 0
    """Bytes to clients, which would cross zones without the gateway."""
    given_crossed_bytes: _Count = 0
    untold_bytes: _Count = 0
    """The part of `given_bytes` for which nobody checked whether the zone has a replica."""
    near_bytes: _Count = 0
    """Record bytes in `given_bytes` of partitions with a replica in the zone, which follower fetching would read
    there.
    """


def _from_array(counted: type[RouterUsage | ClientZoneUsage], row: object) -> dict[str, object]:
    """Return by their names the fields of what agents count in, which is an array as tuples are."""
    if not isinstance(row, list):
        raise ValueError("not an array")
    return dict(zip([field.name for field in fields(counted)], row, strict=True))


_AS_ARRAY: Final = PlainSerializer(astuple)


class ClientUsage(NamedTuple):
    """What an agent has moved for clients, as a zone gateway."""

    zone: str
    """The zone of the clients that connect to this agent."""
    prices: str
    """The section of price tables for the RouterChannel."""
    router: Annotated[RouterUsage, BeforeValidator(partial(_from_array, RouterUsage)), _AS_ARRAY]
    """A part of what the stores count."""
    zones: tuple[Annotated[ClientZoneUsage, BeforeValidator(partial(_from_array, ClientZoneUsage)), _AS_ARRAY], ...]


@with_config(ConfigDict(strict=True, extra="forbid", ser_json_bytes="hex", val_json_bytes="hex"))
@dataclass(frozen=True, slots=True)
class UsageRecord:
    """Cumulative counters of one agent since it started."""

    broker_id: _BrokerId
    incarnation: Annotated[int, Field(le=HIGHEST_INCARNATION)]
    sequence: Annotated[int, Field(lt=2**63)]
    """Counts the incarnation's records from 0."""
    event_timestamp_ms: _TimeMs
    since_ms: _TimeMs
    """When the counting began, by the same clock."""
    rack: str | None
    stores: tuple[StoreUsage, ...] = ()
    followers: tuple[FollowerUsage, ...] = ()
    topics: tuple[TopicUsage, ...] = ()
    clients: ClientUsage | None = None
    """None: the agent is no gateway."""
    is_rest: Annotated[bool, Field(exclude_if=operator.not_)] = False
    """Whether it has only more topics for the record of the same sequence. Written only then: earlier reports know no
    such field."""

    def in_parts(self) -> Iterator["UsageRecord"]:
        """Yield the records to publish, in order: this one, with more behind it if it has many topics."""
        yield replace(self, topics=self.topics[:_TOPICS_MAX])
        for at in range(_TOPICS_MAX, len(self.topics), _TOPICS_MAX):
            rest = self.topics[at : at + _TOPICS_MAX]
            yield replace(self, stores=(), followers=(), topics=rest, clients=None, is_rest=True)


_ADAPTER: Final = TypeAdapter(UsageRecord)


def is_usage_key(key: bytes) -> bool:
    """Whether a record with this key is about usage."""
    return key.startswith(USAGE_KEY)


def encode_usage_key(record: UsageRecord) -> bytes:
    """Return a usage record's key. Raises ValueError when a field does not fit the format."""
    name = f"usage of broker {record.broker_id}"
    return USAGE_KEY + packed(name, _ID, record.broker_id, record.incarnation, record.sequence)


def encode_usage(record: UsageRecord) -> bytes:
    """Encode a usage record as its value."""
    return _HEAD + _ADAPTER.dump_json(record)


def decode_usage(key: bytes | None, value: bytes | None) -> UsageRecord:
    """Decode a usage record. Raises UndecodableRecordError for anything that `encode_usage` does not make, and
    nothing else.
    """
    if key is None or not is_usage_key(key):
        raise UndecodableRecordError(FOREIGN_KEY, "not the key of a usage record")
    if value is None or value[:2] != _HEAD:
        raise UndecodableRecordError("version", f"not format version {FORMAT_VERSION}, record type {USAGE}")
    try:
        record = _ADAPTER.validate_json(value[2:])
        is_named = encode_usage_key(record) == key
    except (ValidationError, ValueError) as error:
        raise UndecodableRecordError("json", str(error)) from error
    if not is_named:
        raise UndecodableRecordError("key_mismatch", "key and value name different usage records")
    return record
