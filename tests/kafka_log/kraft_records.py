"""Records of KRaft's own log, made by the message definitions of Kafka's metadata module."""

import struct

from kafka_log.crc32c import crc32c
from kafka_log.topic_partition import TopicId
from tests.kafka_log.batches import varint

ORDERS = TopicId(b"orders".ljust(16))
DIRECTORY = b"directory-1".ljust(16)


def unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def text(text: str) -> bytes:
    return unsigned_varint(len(text) + 1) + text.encode()


def int32s(*values: int) -> bytes:
    return unsigned_varint(len(values) + 1) + b"".join(struct.pack(">i", value) for value in values)


def uuids(*values: bytes) -> bytes:
    return unsigned_varint(len(values) + 1) + b"".join(values)


def tagged(**fields: bytes) -> bytes:
    """`t<number>=bytes`."""
    tags = sorted((int(name[1:]), raw) for name, raw in fields.items())
    return unsigned_varint(len(tags)) + b"".join(
        unsigned_varint(tag) + unsigned_varint(len(raw)) + raw for tag, raw in tags
    )


def message(api_key: int, version: int, body: bytes) -> bytes:
    return unsigned_varint(1) + unsigned_varint(api_key) + unsigned_varint(version) + body


def topic_record(name: str, topic_id: bytes) -> bytes:
    return message(2, 0, text(name) + topic_id + tagged())


def partition_record(
    topic_id: bytes,
    number: int,
    replicas: tuple[int, ...],
    directories: tuple[bytes, ...],
    in_sync: tuple[int, ...] | None = None,
    eligible: tuple[int, ...] = (),
    last_known: tuple[int, ...] = (),
) -> bytes:
    """Led by its first replica in epoch 4, all in sync unless said otherwise."""
    in_sync = replicas if in_sync is None else in_sync
    body = struct.pack(">i", number) + topic_id + int32s(*replicas) + int32s(*in_sync) + int32s() + int32s()
    return message(
        3,
        2,
        body
        + struct.pack(">iii", replicas[0], 4, 7)
        + uuids(*directories)
        + tagged(t1=int32s(*eligible), t2=int32s(*last_known)),
    )


TOPIC = topic_record("orders", ORDERS)
PARTITION = partition_record(ORDERS, 0, (1, 2), (DIRECTORY, DIRECTORY[::-1]))
CONFIG = message(4, 0, b"\x02" + text("orders") + text("segment.bytes") + text("1048576") + tagged())
BROKER = message(
    0,
    4,
    struct.pack(">i", 1) + b"\0" + bytes(16) + bytes(8)
    + unsigned_varint(2) + text("CLIENT") + text("host") + struct.pack(">HH", 9092, 0) + tagged()
    + unsigned_varint(2) + text("metadata.version") + struct.pack(">hh", 1, 20) + tagged()
    + text("az1") + b"\1\0" + tagged(t0=uuids(DIRECTORY), t1=uuids(DIRECTORY)),
)  # fmt: skip


def broker_change(**fields: bytes) -> bytes:
    """Of broker 1's registration."""
    return message(17, 3, struct.pack(">iq", 1, 0) + tagged(**fields))


def partition_change(**fields: bytes) -> bytes:
    return message(5, 2, struct.pack(">i", 0) + ORDERS + tagged(**fields))


def metadata_batch(base_offset: int, *values: bytes, attributes: int = 0) -> bytes:
    records = b""
    for delta, value in enumerate(values):
        body = b"\0" + varint(0) + varint(delta) + varint(-1) + varint(len(value)) + value + varint(0)
        records += varint(len(body)) + body
    after_crc = struct.pack(">hiqqqhii", attributes, len(values) - 1, 0, 0, -1, -1, -1, len(values)) + records
    return struct.pack(">qiibI", base_offset, 9 + len(after_crc), 1, 2, crc32c(after_crc)) + after_crc
