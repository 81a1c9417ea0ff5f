"""Whose replica a Fetch is of: as the product reads it, and as Kafka would."""

from typing import Any

from kafka.protocol.consumer import FetchRequest

from replication.wire.fetch_frame import replica_of
from replication.wire.kafka_frame import MalformedFrameError


def replica(frame: bytes, version: int) -> int | None:
    """As read here; None: it is malformed."""
    walk = replica_of(frame, version)
    while True:
        try:
            next(walk)
        except StopIteration as end:
            return int(end.value)
        except MalformedFrameError:
            return None


def replica_for_kafka(frame: bytes, version: int) -> int | None:
    """As a reader says that, as Kafka's own, looks at no size of a tag that it knows; None: it cannot be read."""
    try:
        message: Any = FetchRequest.decode(frame, version=version, header=True)
    except Exception:
        return None
    state = message.replica_state if version >= 15 else None
    return int(message.replica_id if state is None else state.replica_id)
