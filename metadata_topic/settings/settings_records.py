"""Records of `__remote_wal_topic_settings` that are not settings: requests for tails, leases, pauses of links.

===============================  ==========================================================
key                              value
===============================  ==========================================================
``tail:<topic>:<partition>``     ``request_id``, ``up_to``, ``deadline_ms``: whoever leads
                                 the partition is to upload what is below ``up_to`` now
``tail-stored:<topic>:<part.>``  ``request_id``, ``broker_id``, ``offset``: the leader's
                                 agent has stored all that is below ``offset``
``lease:<broker id>``            a list of ``[number, value]``: what this broker's agent, or
                                 a command run beside it, wanted to write under the last two
                                 numbers of the lease in the cluster's bucket
``pause:<scope>``                ``by``, ``since_ms``, ``reason``: who paused the links of
                                 ``all``, ``broker:<id>``, ``zone:<name>``, ``topic:<name>``
===============================  ==========================================================

Whoever asks for a tail removes both records afterwards. A request whose sender could not is ignored from its deadline
on, and the next request for the partition takes its place. Leases have the last two numbers, so that a failed write
never hides the one before it. Removing a pause resumes links.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, NamedTuple

from metadata_topic.settings.topic_settings import MalformedSettingError, check_topic, typed

TopicPartitionName = tuple[str, int]
"""A topic's name and a partition's number."""

_REQUEST = "tail"
_STORED = "tail-stored"
TAIL_PREFIX: Final = b"tail"


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


def request_key(where: TopicPartitionName) -> bytes:
    """Return the key of a tail request."""
    return f"{_REQUEST}:{where[0]}:{where[1]}".encode()


def stored_key(where: TopicPartitionName) -> bytes:
    """Return the key of the answer to a tail request."""
    return f"{_STORED}:{where[0]}:{where[1]}".encode()


def encode_tail(value: TailRequest | TailStored) -> bytes:
    """Encode a tail request, or its answer, as its record's value."""
    return json.dumps({name: getattr(value, name) for name in type(value).__slots__}, sort_keys=True).encode()


def decode_tail(key: bytes, value: bytes | None) -> TailRecord:
    """Decode the record of a tail request or its answer. Raises MalformedSettingError, and nothing else."""
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


LEASE_PREFIX: Final = b"lease:"


class LeaseValue(NamedTuple):
    """One renewal of the lease in the cluster's bucket."""

    number: int
    value: str
    """Random: two clusters never choose the same."""


Leases = tuple[LeaseValue, ...]


def lease_key(broker_id: int) -> bytes:
    """Return the key of a broker's leases."""
    return LEASE_PREFIX + str(broker_id).encode()


def with_lease(known: Leases, lease: LeaseValue) -> Leases:
    """Return the leases to record next: this one, behind the known ones from the number before it on."""
    return (*(one for one in known if one.number >= lease.number - 1), lease)


def encode_leases(leases: Leases) -> bytes:
    """Encode a broker's leases as their record's value."""
    return json.dumps([list(lease) for lease in leases]).encode()


def decode_leases(key: bytes, value: bytes | None) -> tuple[int, Leases]:
    """Decode a record into the broker's id and its leases. Raises MalformedSettingError, and nothing else."""
    try:
        broker_id = int(key.removeprefix(LEASE_PREFIX))
        return broker_id, tuple(LeaseValue(int(number), str(text)) for number, text in json.loads(value or b"[]"))
    except Exception as error:  # any error that foreign bytes may cause
        raise MalformedSettingError(f"{type(error).__name__}: {error}") from error


ALL: Final = "all"
LOCAL: Final = "local"
"""The scope of the file beside one agent (`agent.link_pauses`), which no record has."""
PAUSE_PREFIX: Final = b"pause:"
_PAUSED_KINDS: Final = frozenset({"broker", "zone", "topic"})


@dataclass(frozen=True, slots=True)
class Pause:
    """Who paused links, when, and why."""

    by: str
    since_ms: int
    """Wall clock, milliseconds since 1970."""
    reason: str = ""

    def describe(self, scope: str) -> str:
        """Describe the pause in one sentence for people."""
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        reason = f" ({self.reason})" if self.reason else ""
        return f"{_links_of(scope)} are paused since {since} by {self.by}{reason}; to end it: {resuming(scope)}"


Pauses = Mapping[str, Pause]
"""By scope."""


def resuming(scope: str) -> str:
    """Return the command that ends the pause of this scope."""
    return f"remote-wal resume --{scope.replace(':', ' ', 1)}"


def _links_of(scope: str) -> str:
    match scope.partition(":"):
        case ("all", _, _):
            return "all links"
        case ("local", _, _):
            return "this agent's links"
        case (kind, _, name):
            return f"links of {kind} {name}"


def pause_key(scope: str) -> bytes:
    """Return the key of a pause."""
    return PAUSE_PREFIX + scope.encode()


def encode_pause(pause: Pause) -> bytes:
    """Encode a pause as its record's value."""
    return json.dumps(asdict(pause), sort_keys=True).encode()


def decode_pause(value: bytes) -> Pause:
    """Decode a pause from its record's value. Raises MalformedSettingError, and nothing else."""
    try:
        fields = json.loads(value)
        pause = Pause(typed(fields, "by", str), typed(fields, "since_ms", int), typed(fields, "reason", str))
        pause.describe(ALL)
    except Exception as error:  # any error that foreign bytes may cause
        raise MalformedSettingError(f"{type(error).__name__}: {error}") from error
    return pause


def decode_pause_record(key: bytes, value: bytes | None) -> tuple[str, Pause | None]:
    """Decode a record into scope and pause; None: it was removed. Raises MalformedSettingError, and nothing else."""
    scope = key.removeprefix(PAUSE_PREFIX).decode(errors="replace")
    kind, _, name = scope.partition(":")
    if scope != ALL and not (kind in _PAUSED_KINDS and name):
        raise MalformedSettingError(f"a pause of an unknown kind: {kind}")
    return scope, None if value is None else decode_pause(value)
