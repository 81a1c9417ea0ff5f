"""Asking the agents for the upload of a partition's tail, by records of `__remote_wal_topic_settings`.

===============================  ==========================================================
key                              value
===============================  ==========================================================
``tail:<topic>:<partition>``     ``request_id``, ``up_to``, ``deadline_ms``: whoever leads
                                 the partition is to upload what is below ``up_to`` now
``tail-stored:<topic>:<part.>``  ``request_id``, ``broker_id``, ``offset``: the leader's
                                 agent has stored all that is below ``offset``
===============================  ==========================================================

Whoever asks removes both records afterwards; one that could not is passed over from its deadline on, and the next
request for the partition takes its place.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from metadata_topic.settings.topic_settings import MalformedSettingError, check_topic, typed

TopicPartitionName = tuple[str, int]
"""A topic's name and a partition's number."""

_REQUEST = "tail"
_STORED = "tail-stored"
_PREFIX = b"tail"


@dataclass(frozen=True, slots=True)
class TailRequest:
    """A request to upload what is below `up_to` now."""

    request_id: str
    up_to: int
    """An offset: the log's end as the requester has seen it."""
    deadline_ms: int
    """Wall clock, milliseconds since 1970; nobody waits for it later."""


@dataclass(frozen=True, slots=True)
class TailStored:
    """The answer of the leader's agent: everything below `offset` is stored."""

    request_id: str
    broker_id: int
    offset: int


_KINDS: Mapping[str, type[TailRequest] | type[TailStored]] = MappingProxyType(
    {_REQUEST: TailRequest, _STORED: TailStored}
)

TailRecord = tuple[TopicPartitionName, type[TailRequest] | type[TailStored], TailRequest | TailStored | None]
"""The partition, which of the two it is, and its value; None: it was removed."""


def is_tail_key(key: bytes | None) -> bool:
    """Whether the record is one of these."""
    return key is not None and key.startswith(_PREFIX)


def request_key(where: TopicPartitionName) -> bytes:
    """Return the key of a request."""
    return f"{_REQUEST}:{where[0]}:{where[1]}".encode()


def stored_key(where: TopicPartitionName) -> bytes:
    """Return the key of an answer."""
    return f"{_STORED}:{where[0]}:{where[1]}".encode()


def encode_tail(value: TailRequest | TailStored) -> bytes:
    """Return the record's value."""
    return json.dumps({name: getattr(value, name) for name in type(value).__slots__}, sort_keys=True).encode()


def decode_tail(key: bytes, value: bytes | None) -> TailRecord:
    """Decode a record. Raises MalformedSettingError, and nothing else."""
    try:
        kind, topic, number = key.decode("utf-8").split(":")
        where = (topic, int(number))
        check_topic(topic)
        of = _KINDS[kind]
        if value is None:
            return where, of, None
        fields = json.loads(value.decode("utf-8"))
        return where, of, of(**{name: typed(fields, name, wanted) for name, wanted in of.__annotations__.items()})
    except Exception as error:  # any error that foreign bytes may cause
        raise MalformedSettingError(f"{type(error).__name__}: {error}") from error
