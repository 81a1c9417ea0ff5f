"""What an agent has moved for clients by the zone gateway since it started, as a record of the metadata topic.

Published beside the usage record of the same sequence, and read with it: cumulative counters over one incarnation of
the agent (`metadata_topic.records.usage_record`). A record of its own, as readers of usage records take no longer ones.
Its key begins as theirs do, so older agents pass it over, and older jobs keep it aside as a type that they do not know.
The key is `rwm:usage:clients:`, broker id (4), incarnation (8) and sequence (8). The value, big endian:

====  ============================================  =========================================================
size  field                                         remark
====  ============================================  =========================================================
1, 1  format version 1, record type 33
4     broker id                                     these three equal to the key's
8     incarnation
8     sequence                                      of the usage record beside it
8     event timestamp, ms
2     own zone's length in bytes, and the zone      the one that clients come by this agent from (UTF-8)
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

from metadata_topic.records.record_fields import FORMAT_VERSION, RecordReader, UndecodableRecordError, packed
from metadata_topic.records.usage_record import USAGE_ID, USAGE_KEY, read_text

CLIENT_USAGE: Final = 33
CLIENT_USAGE_KEY: Final = USAGE_KEY + b"clients:"

_HEAD: Final = struct.Struct(">BBiQQqH")
_ROUTER: Final = struct.Struct(">4Q")
_ZONE: Final = struct.Struct(">6Q")
_BYTE: Final = struct.Struct(">B")
_SHORT: Final = struct.Struct(">H")


class RouterUsage(NamedTuple):
    """Answered requests for objects of the RouterChannel, and the bytes that they moved."""

    put: int = 0
    """PUTs of the gateways."""
    get: int = 0
    """GETs of the agents beside the brokers."""
    put_bytes: int = 0
    get_bytes: int = 0


class ClientZoneUsage(NamedTuple):
    """Bytes of one zone's clients to and from brokers of other zones.

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
    """Cumulative counters of one agent's incarnation."""

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
    """Whether a record with this key is one of these; `is_usage_key` is True as well."""
    return key.startswith(CLIENT_USAGE_KEY)


def encode_client_usage_key(record: ClientUsageRecord) -> bytes:
    """Return the key. Raises ValueError when a field does not fit the format."""
    return CLIENT_USAGE_KEY + packed(_name(record), USAGE_ID, record.broker_id, record.incarnation, record.sequence)


def encode_client_usage(record: ClientUsageRecord) -> bytes:
    """Return the value. Raises ValueError when a field does not fit the format."""
    pack = partial(packed, _name(record))
    zone, prices = record.zone.encode(), record.prices.encode()
    parts = [
        pack(
            _HEAD, FORMAT_VERSION, CLIENT_USAGE, record.broker_id, record.incarnation, record.sequence,
            record.event_timestamp_ms, len(zone),
        ),
        zone,
        pack(_BYTE, len(prices)),
        prices,
        pack(_ROUTER, *record.router),
        pack(_SHORT, len(record.zones)),
    ]  # fmt: skip
    for one in record.zones:
        name = one.zone.encode()
        parts += [pack(_SHORT, len(name)), name, pack(_ZONE, *one[1:])]
    return b"".join(parts)


def decode_client_usage(key: bytes | None, value: bytes | None) -> ClientUsageRecord:
    """Decode a record. Raises UndecodableRecordError for anything else, and nothing else."""
    if key is None or not is_client_usage_key(key):
        raise UndecodableRecordError("foreign_key", "not the key of a record about clients' usage")
    if value is None or len(value) < 2:
        raise UndecodableRecordError("truncated", "a record about clients' usage without a value")
    if value[0] != FORMAT_VERSION or value[1] != CLIENT_USAGE:
        raise UndecodableRecordError("version", f"format version {value[0]}, record type {value[1]}")
    reader = RecordReader(value)
    _, _, broker_id, incarnation, sequence, event_timestamp_ms, zone_length = reader.fields(_HEAD)
    zone = read_text(reader, zone_length)
    prices = read_text(reader, *reader.fields(_BYTE))
    router = RouterUsage._make(reader.fields(_ROUTER))
    zones = tuple(
        ClientZoneUsage(read_text(reader, *reader.fields(_SHORT)), *reader.fields(_ZONE))
        for _ in range(*reader.fields(_SHORT))
    )
    reader.end()
    record = ClientUsageRecord(broker_id, incarnation, sequence, event_timestamp_ms, zone, prices, router, zones)
    if encode_client_usage_key(record) != key:
        raise UndecodableRecordError("key_mismatch", "key and value name different records about clients' usage")
    return record


def _name(record: ClientUsageRecord) -> str:
    return f"clients' usage by broker {record.broker_id}'s agent"
