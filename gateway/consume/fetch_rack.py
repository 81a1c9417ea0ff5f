"""Writes the zone into consumers' Fetch requests that have no rack, so that brokers send them to a replica there.

KIP-392: a leader whose `replica.selector.class` knows racks answers such a Fetch with the preferred replica. The
consumer continues there, whether its own `client.rack` is set or not.

Sans-IO, for frames (`with_zone`) and for bytes that pass as they come in (`FetchRackEditor`); only a Fetch request
waits there until it is complete. Anything that is no Fetch of an understood version, is larger than a Fetch should be,
or contradicts itself passes unchanged.
"""

import struct

from kafka_log.crc32c import Buffer
from replication.wire.fetch_frame import (
    CONSUMER_REPLICA_ID,
    FETCH_API_KEY,
    scan_fetch_request,
    understands_fetch,
    with_rack,
)
from replication.wire.kafka_frame import MalformedFrameError

MAX_EDITED_BYTES = 64 * 1024
"""Some 2,000 partitions: as much as a connection may hold here. A larger request passes unchanged."""
_KEY_AND_VERSION = struct.Struct(">hh")
_SIZE = struct.Struct(">i")


def with_zone(frame: Buffer, zone: str) -> Buffer:
    """Return a client's frame, with the zone as its rack if it is a consumer's Fetch without one."""
    if not _is_looked_at(frame, len(frame)):
        return frame
    _, api_version = _KEY_AND_VERSION.unpack_from(frame)
    try:
        view = scan_fetch_request(frame, api_version)
    except MalformedFrameError:
        return frame  # the broker decides about it
    if view.rack or view.replica_id != CONSUMER_REPLICA_ID:
        return frame
    return with_rack(frame, view, zone)


def _is_looked_at(begin: Buffer, size: int) -> bool:
    """Whether a frame of this size and begin is a Fetch request that may lack a rack."""
    if not _KEY_AND_VERSION.size < size <= MAX_EDITED_BYTES:
        return False
    api_key, api_version = _KEY_AND_VERSION.unpack_from(begin)
    return api_key == FETCH_API_KEY and understands_fetch(api_version)


class FetchRackEditor:
    """The editor of one connection's requests."""

    def __init__(self, zone: str) -> None:
        self._zone = zone
        self._held = bytearray()
        """A frame's begin, or the part of a Fetch request that has come, sizes included."""
        self._wanted = _SIZE.size
        """How many bytes must be held before more is known."""
        self._passing = 0
        """How many bytes of the current frame pass unchanged; below 0: everything."""

    def feed(self, chunk: bytes) -> bytes:
        """Return what may pass now that these bytes have come."""
        out: list[bytes] = []
        position = 0
        while position < len(chunk):
            if self._passing:
                end = len(chunk) if self._passing < 0 else min(len(chunk), position + self._passing)
                out.append(chunk[position:end])
                self._passing -= end - position if self._passing > 0 else 0
            else:
                end = position + self._wanted - len(self._held)
                self._held += chunk[position:end]
                end = min(end, len(chunk))
                if len(self._held) == self._wanted:
                    out.append(self._looked_at())
            position = end
        return b"".join(out)

    def _looked_at(self) -> bytes:
        """Return what of the held bytes may pass: nothing while a Fetch request is incomplete."""
        (size,) = _SIZE.unpack_from(self._held)
        begin = self._held[_SIZE.size :]
        if not begin:
            if size >= _KEY_AND_VERSION.size:
                self._wanted = _SIZE.size + _KEY_AND_VERSION.size
                return b""
            self._passing = max(size, -1)  # below 0: no further frames can be found
            return self._taken()
        if len(begin) == _KEY_AND_VERSION.size:
            if _is_looked_at(begin, size):
                self._wanted = _SIZE.size + size
                return b""
            self._passing = size - _KEY_AND_VERSION.size
            return self._taken()
        edited = with_zone(self._taken()[_SIZE.size :], self._zone)
        return _SIZE.pack(len(edited)) + edited

    def _taken(self) -> bytes:
        taken = bytes(self._held)
        self._held.clear()
        self._wanted = _SIZE.size
        return taken
