"""How requests that were routed are named in messages between a gateway and the agent beside a leader. Sans-IO.

ROUTE_INLINE_REQUEST    the request's number                              to the gateway
ROUTE_OUTCOME           the request's number, then 1 if its records are    to the gateway
                        wanted by a log from now on, else 0
ORIGINAL                the request's number, then the client's frame     to the leader's agent
"""

import struct
from typing import Final

from kafka_log.crc32c import Buffer
from replication.wire.kafka_frame import MalformedFrameError

_NUMBER: Final = struct.Struct(">Q")
_OUTCOME: Final = struct.Struct(">QB")


def encode_number(number: int) -> bytes:
    """Encode a request's number, with which these messages begin."""
    return _NUMBER.pack(number)


def decode_number(body: Buffer) -> int:
    """Parse a ROUTE_INLINE_REQUEST. Raises MalformedFrameError."""
    if len(body) != _NUMBER.size:
        raise MalformedFrameError(0, f"a request's number of {len(body)} bytes")
    return split_original(body)[0]


def split_original(body: Buffer) -> tuple[int, Buffer]:
    """Return the number and the frame of an ORIGINAL. Raises MalformedFrameError."""
    if len(body) < _NUMBER.size:
        raise MalformedFrameError(0, f"an original of {len(body)} bytes")
    number: int = _NUMBER.unpack_from(body, 0)[0]
    return number, body[_NUMBER.size :]


def encode_outcome(number: int, adopted: bool) -> bytes:
    """Encode a ROUTE_OUTCOME message: whether the leader's agent adopted what a gateway stored."""
    return _OUTCOME.pack(number, adopted)


def decode_outcome(body: Buffer) -> tuple[int, bool]:
    """Parse a ROUTE_OUTCOME. Raises MalformedFrameError."""
    if len(body) != _OUTCOME.size:
        raise MalformedFrameError(0, f"an outcome of {len(body)} bytes")
    number, adopted = _OUTCOME.unpack(body)
    return number, bool(adopted)
