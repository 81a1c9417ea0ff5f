"""What the agents of a cluster have recorded of the lease in its bucket, in `__remote_wal_topic_settings`.

The key is ``lease:<broker id>``, the value a list of ``[number, value]``: the last two that this broker's agent, or a
command run beside it, wanted to write, so that one which could not be written hides none that was.
"""

import json
from typing import NamedTuple

from metadata_topic.settings.topic_settings import MalformedSettingError

_PREFIX = b"lease:"
_KEPT = 2


class LeaseValue(NamedTuple):
    """One renewal."""

    number: int
    value: str
    """Random: two clusters never choose the same."""


Leases = tuple[LeaseValue, ...]


def is_lease_key(key: bytes | None) -> bool:
    """Whether the record is one of these."""
    return key is not None and key.startswith(_PREFIX)


def lease_key(broker_id: int) -> bytes:
    """The record's key."""
    return _PREFIX + str(broker_id).encode()


def with_lease(known: Leases, lease: LeaseValue) -> Leases:
    """What to record next."""
    return (*known, lease)[-_KEPT:]


def encode_leases(leases: Leases) -> bytes:
    """The record's value."""
    return json.dumps([list(lease) for lease in leases]).encode()


def decode_leases(key: bytes, value: bytes | None) -> tuple[int, Leases]:
    """By broker. Raises MalformedSettingError, and nothing else."""
    try:
        broker_id = int(key.removeprefix(_PREFIX))
        return broker_id, tuple(LeaseValue(int(number), str(text)) for number, text in json.loads(value or b"[]"))
    except Exception as error:  # whatever a stranger's bytes may raise
        raise MalformedSettingError(f"{type(error).__name__}: {error}") from error
