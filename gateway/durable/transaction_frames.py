"""Reads and changes EndTxn frames, and encodes and reads DescribeTransactions, which is asked beside them.

A frame here is what follows the four-byte size prefix. EndTxn of versions 0 to 5, DescribeTransactions of version 0.

Source: Kafka's message definitions EndTxnRequest, EndTxnResponse, DescribeTransactionsRequest and
DescribeTransactionsResponse; KIP-98, KIP-482, KIP-664, KIP-890.
"""

import struct
from enum import Enum
from typing import Final, NamedTuple

from kafka_log.crc32c import Buffer
from replication.wire.kafka_frame import FrameCursor, MalformedFrameError, encode_unsigned_varint

END_TXN_API_KEY: Final = 26
MAX_END_TXN_VERSION: Final = 5
_DESCRIBE_API_KEY: Final = 65
_FLEXIBLE_VERSION: Final = 3
_PRODUCER_VERSION: Final = 5
"""From it on the answer names the producer id and epoch to go on with."""

_API = struct.Struct(">hhi")  # key, version, correlation id
_PRODUCER = struct.Struct(">qh")
_ERROR = struct.Struct(">h")
_STATE = struct.Struct(">iqqh")  # time-out, start time, producer id, epoch
_NO_PRODUCER: Final = (-1, -1)
_THROTTLE_BYTES = _CORRELATION_BYTES = 4
_COMMITTED_BYTES: Final = 1


class EndTxnRequest(NamedTuple):
    """The fields of an EndTxn request that are read."""

    api_version: int
    correlation_id: int
    client_id: bytes
    """The field as in the frame, with its length in front."""
    transactional_id: str


class TransactionState(Enum):
    """The states that matter here, with Kafka's names."""

    OPEN = frozenset({"Ongoing"})
    ENDING = frozenset({"PrepareCommit", "PrepareAbort"})
    """Not all markers are written."""
    EMPTY = frozenset({"Empty", "Dead"})
    """There was nothing since the producer began."""
    OVER = frozenset({"CompleteCommit", "CompleteAbort"})
    """All markers are in the logs, with acks=all. Which partitions they are of is forgotten."""


class Description(NamedTuple):
    """What a coordinator says of a transaction."""

    error: int
    state: TransactionState | None
    """None: a state that is not known here, or there is an error."""
    began_ms: int
    """By the coordinator's clock; told of what is over, too."""
    partitions: frozenset[tuple[str, int]]
    """Topics and partitions that have records or offsets of it, and no marker yet."""


def is_end_txn(frame: Buffer) -> bool:
    """Whether a frame is an EndTxn request, in whatever version."""
    return len(frame) >= _API.size and _API.unpack_from(frame, 0)[0] == END_TXN_API_KEY


def scan_end_txn(frame: Buffer) -> EndTxnRequest | None:
    """Read an EndTxn request; None: it is of another version. Raises MalformedFrameError."""
    cursor = FrameCursor(frame)
    _, version, correlation_id = cursor.fields(_API)
    if not 0 <= version <= MAX_END_TXN_VERSION:
        return None
    begin = cursor.position
    cursor.skip(max(cursor.int16(), 0))
    client_id = bytes(frame[begin : cursor.position])
    is_flexible = version >= _FLEXIBLE_VERSION
    if is_flexible:
        cursor.skip_tagged_fields()
    transactional_id = cursor.compact_string() if is_flexible else cursor.string()
    cursor.skip(_PRODUCER.size + _COMMITTED_BYTES)
    return EndTxnRequest(version, correlation_id, client_id, transactional_id)


def scan_end_txn_answer(answer: Buffer, api_version: int) -> tuple[int, int]:
    """Return the error code of an EndTxn answer, and its position. Raises MalformedFrameError."""
    cursor = FrameCursor(answer)
    cursor.skip(_CORRELATION_BYTES)
    if api_version >= _FLEXIBLE_VERSION:
        cursor.skip_tagged_fields()
    cursor.skip(_THROTTLE_BYTES)
    at = cursor.position
    error = cursor.int16()
    if api_version >= _PRODUCER_VERSION:
        cursor.skip(_PRODUCER.size)
    if api_version >= _FLEXIBLE_VERSION:
        cursor.skip_tagged_fields()
    cursor.expect_end()
    return error, at


def refuse_end_txn(answer: bytearray, api_version: int, at: int, error: int) -> None:
    """Replace an EndTxn answer's success, which stands at `at`, by this error."""
    _ERROR.pack_into(answer, at, error)
    if api_version >= _PRODUCER_VERSION:
        _PRODUCER.pack_into(answer, at + _ERROR.size, *_NO_PRODUCER)


def describe_transaction(request: EndTxnRequest, correlation_id: int) -> bytes:
    """Encode a DescribeTransactions request for the same transaction, as the same client."""
    name = request.transactional_id.encode()
    body = b"\x00\x02" + encode_unsigned_varint(len(name) + 1) + name + b"\x00"  # no tags; an array of one; no tags
    return _API.pack(_DESCRIBE_API_KEY, 0, correlation_id) + request.client_id + body


def scan_description(answer: Buffer) -> Description:
    """Return the state of the one transaction that was asked for. Raises MalformedFrameError."""
    cursor = FrameCursor(answer)
    cursor.skip(_CORRELATION_BYTES)
    cursor.skip_tagged_fields()
    cursor.skip(_THROTTLE_BYTES)
    if cursor.array_length(min_item_bytes=2) != 1:
        raise MalformedFrameError(cursor.position, "not the description of one transaction")
    error = cursor.int16()
    cursor.compact_string()
    name = cursor.compact_string()
    _, began_ms, *_ = cursor.fields(_STATE)
    partitions = set[tuple[str, int]]()
    for _ in range(cursor.array_length(min_item_bytes=2)):
        topic = cursor.compact_string()
        partitions.update((topic, cursor.int32()) for _ in range(cursor.array_length(min_item_bytes=4)))
        cursor.skip_tagged_fields()
    state = next((one for one in TransactionState if name in one.value), None)
    return Description(error, state if not error else None, began_ms, frozenset(partitions))
