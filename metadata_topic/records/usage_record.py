"""Usage records of the metadata topic: what an agent has moved and asked for since it started, for cost reports.

Counters are cumulative over one incarnation of the agent, so a record that is read twice, or that went missing, changes
no sum: what happened between two records is their difference. The key is `rwm:usage:`, broker id (4), incarnation (8)
and sequence (8); agents do not read them. The value, big endian:

====  ============================================  =========================================================
size  field                                         remark
====  ============================================  =========================================================
1, 1  format version 1, record type 32
4     broker id                                     these three equal to the key's
8     incarnation
8     sequence                                      counts the incarnation's records from 0
8     event timestamp, ms
8     start of the counting, ms                     when the incarnation began
2     rack's length in bytes, and the rack (UTF-8)  0 bytes: not known
2     number of stores, and for each store:
1     - its prices' length, and the prices          the section of price tables, for instance `s3_express`
56    - put, get, head, delete, list, put bytes, get bytes
4     number of followers, and for each (20):
4     - the follower's broker id
8, 8  - bytes between the agents; bytes that the same frames have without links
4     number of topics, and for each topic and follower (36):
16    - topic id
4     - the follower's broker id
8, 8  - record bytes that were linked; those that were sent inline, as they crossed: packed
====  ============================================  =========================================================

What the agent has moved for clients as a zone gateway is in a separate record beside it, with the same sequence,
because readers of usage records refuse longer ones. Its key is `rwm:usage:clients:` with the same three numbers, so
older agents ignore it, and older jobs keep it aside as a type that they do not know. The value, big endian:

====  ============================================  =========================================================
size  field                                         remark
====  ============================================  =========================================================
1, 1  format version 1, record type 33
4     broker id                                     these three equal to the key's
8     incarnation
8     sequence                                      of the usage record beside it
8     event timestamp, ms
2     own zone's length in bytes, and the zone      that of the clients of this agent (UTF-8)
1     its store's prices' length, and the prices    the section of price tables, for instance `s3_express`
32    put, get, put bytes, get bytes                of the RouterChannel, among those that the usage record has
2     number of zones, and for each zone:
2     - its length in bytes, and the zone           the clients' (UTF-8)
48    - the fields of `ClientZoneUsage`
====  ============================================  =========================================================
"""

import struct
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from kafka_log.topic_partition import TopicId
from metadata_topic.records.record_fields import (
    FOREIGN_KEY,
    FORMAT_VERSION,
    RecordReader,
    UndecodableRecordError,
    packed,
)

USAGE: Final = 32
USAGE_KEY: Final = b"rwm:usage:"
CLIENT_USAGE: Final = 33
CLIENT_USAGE_KEY: Final = USAGE_KEY + b"clients:"

_ID: Final = struct.Struct(">iQQ")
"""Behind the beginning of a key: broker id, incarnation, sequence."""
_HEAD: Final = struct.Struct(">BBiQQqqH")
_STORE: Final = struct.Struct(">7Q")
_PEER: Final = struct.Struct(">iQQ")
_TOPIC: Final = struct.Struct(">16siQQ")
_CLIENT_HEAD: Final = struct.Struct(">BBiQQqH")
_ROUTER: Final = struct.Struct(">4Q")
_ZONE: Final = struct.Struct(">6Q")
_COUNTS: Final = {bits: struct.Struct(f">{code}") for bits, code in ((8, "B"), (16, "H"), (32, "I"))}


class StoreUsage(NamedTuple):
    """Requests to one object store, each attempt counted, and the bytes of objects that they moved."""

    prices: str
    """The section of price tables for these requests."""
    put: int
    get: int
    head: int
    delete: int
    list: int
    put_bytes: int
    get_bytes: int


class FollowerUsage(NamedTuple):
    """The connections from one follower's agent, counted at the leader's end; both directions together."""

    follower: int
    peer_bytes: int
    """Bytes on the wire."""
    stock_bytes: int
    """What the relayed frames have without links: the bytes that stock Kafka would have sent."""


class TopicUsage(NamedTuple):
    """Record bytes of one topic that one follower got, linked and inline."""

    topic_id: TopicId
    follower: int
    linked_bytes: int
    inline_bytes: int
    """As they crossed: packed."""


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """Cumulative counters of one agent since it started."""

    broker_id: int
    incarnation: int
    sequence: int
    event_timestamp_ms: int
    since_ms: int
    """When the counting began, by the same clock."""
    rack: str | None
    stores: tuple[StoreUsage, ...]
    followers: tuple[FollowerUsage, ...]
    topics: tuple[TopicUsage, ...]


def is_usage_key(key: bytes) -> bool:
    """Whether a record with this key is about usage: a usage record, or another kind that accompanies it."""
    return key.startswith(USAGE_KEY)


def encode_usage_key(record: UsageRecord) -> bytes:
    """Return a usage record's key. Raises ValueError when a field does not fit the format."""
    return USAGE_KEY + packed(_name(record), _ID, record.broker_id, record.incarnation, record.sequence)


def encode_usage(record: UsageRecord) -> bytes:
    """Encode a usage record as its value. Raises ValueError when a field does not fit the format."""
    pack = partial(packed, _name(record))
    rack = (record.rack or "").encode()
    parts = [
        pack(
            _HEAD, FORMAT_VERSION, USAGE, record.broker_id, record.incarnation, record.sequence,
            record.event_timestamp_ms, record.since_ms, len(rack),
        ),
        rack,
        pack(_COUNTS[16], len(record.stores)),
    ]  # fmt: skip
    for store in record.stores:
        name = store.prices.encode()
        parts += [pack(_COUNTS[8], len(name)), name, pack(_STORE, *store[1:])]
    for layout, rows in ((_PEER, record.followers), (_TOPIC, record.topics)):
        parts += [pack(_COUNTS[32], len(rows)), *(pack(layout, *row) for row in rows)]
    return b"".join(parts)


def decode_usage(key: bytes | None, value: bytes | None) -> UsageRecord:
    """Decode a usage record. Raises UndecodableRecordError for anything that `encode_usage` does not make, and
    nothing else.
    """
    reader = _reader(key, value, USAGE_KEY, USAGE)
    _, _, broker_id, incarnation, sequence, event_timestamp_ms, since_ms, rack_length = reader.fields(_HEAD)
    rack = _read_text(reader, rack_length)
    stores = tuple(
        StoreUsage(_read_text(reader, *reader.fields(_COUNTS[8])), *reader.fields(_STORE))
        for _ in range(*reader.fields(_COUNTS[16]))
    )
    followers = tuple(map(FollowerUsage._make, reader.rows(_PEER, *reader.fields(_COUNTS[32]))))
    topics = tuple(map(TopicUsage._make, reader.rows(_TOPIC, *reader.fields(_COUNTS[32]))))
    reader.end()
    record = UsageRecord(
        broker_id, incarnation, sequence, event_timestamp_ms, since_ms, rack or None, stores, followers, topics
    )
    if encode_usage_key(record) != key:
        raise UndecodableRecordError("key_mismatch", "key and value name different usage records")
    return record


def _reader(key: bytes | None, value: bytes | None, begin: bytes, record_type: int) -> RecordReader:
    """Return a reader of the value, if key and value are of this record type. Raises UndecodableRecordError."""
    if key is None or not key.startswith(begin):
        raise UndecodableRecordError(FOREIGN_KEY, f"not the key of a record of type {record_type}")
    if value is None or len(value) < 2:
        raise UndecodableRecordError("truncated", "a usage record without a value")
    if value[0] != FORMAT_VERSION or value[1] != record_type:
        raise UndecodableRecordError("version", f"format version {value[0]}, record type {value[1]}")
    return RecordReader(value)


def _name(record: "UsageRecord | ClientUsageRecord") -> str:
    return f"usage of broker {record.broker_id}"


def _read_text(reader: RecordReader, length: int) -> str:
    """Read `length` bytes of UTF-8. Raises UndecodableRecordError."""
    try:
        return bytes(reader.take(length)).decode()
    except UnicodeDecodeError as error:
        raise UndecodableRecordError("text", "a name is not UTF-8") from error


class RouterUsage(NamedTuple):
    """Answered requests for objects that gateways wrote for producers, and the bytes that they moved."""

    put: int = 0
    """PUTs of the gateways."""
    get: int = 0
    """GETs of the agents beside the brokers."""
    put_bytes: int = 0
    get_bytes: int = 0


class ClientZoneUsage(NamedTuple):
    """Bytes that one zone's clients exchanged with brokers of other zones.

    The first four are counted at the gateway, `near_bytes` beside the brokers, `untold_bytes` at both sides.
    """

    zone: str
    sent_bytes: int = 0
    """Bytes sent by clients, which would cross zones without the gateway."""
    sent_crossed_bytes: int = 0
    """Bytes that crossed zones instead."""
    given_bytes: int = 0
    """Bytes to clients, which would cross zones without the gateway."""
    given_crossed_bytes: int = 0
    untold_bytes: int = 0
    """The part of `given_bytes` for which nobody checked whether the zone has a replica."""
    near_bytes: int = 0
    """Record bytes in `given_bytes` of partitions with a replica in the zone, which follower fetching would read
    there.
    """


@dataclass(frozen=True, slots=True)
class ClientUsageRecord:
    """Cumulative counters of what one agent has moved for clients, as a zone gateway, since it started."""

    broker_id: int
    incarnation: int
    sequence: int
    """The sequence of the usage record that it accompanies, which says since when it counts."""
    event_timestamp_ms: int
    zone: str
    """The zone of the clients that connect to this agent."""
    prices: str
    """The section of price tables for the RouterChannel."""
    router: RouterUsage
    zones: tuple[ClientZoneUsage, ...]


def is_client_usage_key(key: bytes) -> bool:
    """Whether a record with this key is a client usage record; `is_usage_key` is True for it as well."""
    return key.startswith(CLIENT_USAGE_KEY)


def encode_client_usage_key(record: ClientUsageRecord) -> bytes:
    """Return a client usage record's key. Raises ValueError when a field does not fit the format."""
    return CLIENT_USAGE_KEY + packed(_name(record), _ID, record.broker_id, record.incarnation, record.sequence)


def encode_client_usage(record: ClientUsageRecord) -> bytes:
    """Encode a client usage record as its value. Raises ValueError when a field does not fit the format."""
    pack = partial(packed, _name(record))
    zone, prices = record.zone.encode(), record.prices.encode()
    parts = [
        pack(
            _CLIENT_HEAD, FORMAT_VERSION, CLIENT_USAGE, record.broker_id, record.incarnation, record.sequence,
            record.event_timestamp_ms, len(zone),
        ),
        zone,
        pack(_COUNTS[8], len(prices)),
        prices,
        pack(_ROUTER, *record.router),
        pack(_COUNTS[16], len(record.zones)),
    ]  # fmt: skip
    for one in record.zones:
        name = one.zone.encode()
        parts += [pack(_COUNTS[16], len(name)), name, pack(_ZONE, *one[1:])]
    return b"".join(parts)


def decode_client_usage(key: bytes | None, value: bytes | None) -> ClientUsageRecord:
    """Decode a client usage record. Raises UndecodableRecordError for anything else, and nothing else."""
    reader = _reader(key, value, CLIENT_USAGE_KEY, CLIENT_USAGE)
    _, _, broker_id, incarnation, sequence, event_timestamp_ms, zone_length = reader.fields(_CLIENT_HEAD)
    zone = _read_text(reader, zone_length)
    prices = _read_text(reader, *reader.fields(_COUNTS[8]))
    router = RouterUsage._make(reader.fields(_ROUTER))
    zones = tuple(
        ClientZoneUsage(_read_text(reader, *reader.fields(_COUNTS[16])), *reader.fields(_ZONE))
        for _ in range(*reader.fields(_COUNTS[16]))
    )
    reader.end()
    record = ClientUsageRecord(broker_id, incarnation, sequence, event_timestamp_ms, zone, prices, router, zones)
    if encode_client_usage_key(record) != key:
        raise UndecodableRecordError("key_mismatch", "key and value name different records about clients' usage")
    return record
