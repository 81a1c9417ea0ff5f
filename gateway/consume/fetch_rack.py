"""Writes the zone into consumers' Fetch requests that have no rack, so that brokers send them to a replica there.

KIP-392: a leader whose `replica.selector.class` knows racks answers such a Fetch with the preferred replica. The
consumer continues there, whether its own `client.rack` is set or not.

Sans-IO. Anything that is no Fetch of an understood version, is larger than a Fetch should be, or contradicts itself
passes unchanged.
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
"""Some 2,000 partitions. A larger request passes unchanged."""
_KEY_AND_VERSION = struct.Struct(">hh")


def with_zone(frame: Buffer, zone: str) -> Buffer:
    """Return a client's frame; if it is a consumer's Fetch without a rack, with the zone as its rack."""
    if not _KEY_AND_VERSION.size < len(frame) <= MAX_EDITED_BYTES:
        return frame
    api_key, api_version = _KEY_AND_VERSION.unpack_from(frame)
    if api_key != FETCH_API_KEY or not understands_fetch(api_version):
        return frame
    try:
        view = scan_fetch_request(frame, api_version)
    except MalformedFrameError:
        return frame  # the broker decides about it
    if view.rack or view.replica_id != CONSUMER_REPLICA_ID:
        return frame
    return with_rack(frame, view, zone)
