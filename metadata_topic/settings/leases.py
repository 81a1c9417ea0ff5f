"""The agents' records of the lease in their cluster's bucket, in `__remote_wal_topic_settings`.

The key is ``lease:<broker id>``, the value a list of ``[number, value]``: what this broker's agent, or a command run
beside it, wanted to write under its last two numbers. So failed writes never hide the one before them.
"""

import json
from typing import NamedTuple

from metadata_topic.settings.topic_settings import MalformedSettingError

_PREFIX = b"lease:"


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
    """Return the record's key."""
    return _PREFIX + str(broker_id).encode()


def with_lease(known: Leases, lease: LeaseValue) -> Leases:
    """Return the leases to record next."""
    return (*(one for one in known if one.number >= lease.number - 1), lease)


def encode_leases(leases: Leases) -> bytes:
    """Return the record's value."""
    return json.dumps([list(lease) for lease in leases]).encode()


def decode_leases(key: bytes, value: bytes | None) -> tuple[int, Leases]:
    """Decode a record, by broker. Raises MalformedSettingError, and nothing else."""
    try:
        broker_id = int(key.removeprefix(_PREFIX))
        return broker_id, tuple(LeaseValue(int(number), str(text)) for number, text in json.loads(value or b"[]"))
    except Exception as error:  # any error that foreign bytes may cause
        raise MalformedSettingError(f"{type(error).__name__}: {error}") from error
