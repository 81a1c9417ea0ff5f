"""Values of the settings topic beside those of topics and agents: requests for tails, leases, pauses, the balancer.

Whoever asks for a tail removes the request and the answer afterwards. A request whose sender could not is ignored from
its deadline on, and the next request for the partition takes its place. A broker's leases have the last two numbers, so
that a failed write never hides the one before it. Removing a pause resumes links.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, NamedTuple

from pydantic import Field, with_config

from metadata_topic.settings.topic_settings import AS_READ

TopicPartitionName = tuple[str, int]
"""A topic's name and a partition's number."""


@with_config(AS_READ)
@dataclass(frozen=True, slots=True)
class TailRequest:
    """An operator's request to the leader's agent to upload now all records of a partition below the offset `up_to`."""

    request_id: str
    up_to: int
    """An offset: the log's end as the requester has seen it."""
    deadline_ms: int
    """Wall clock, milliseconds since 1970; nobody waits for it later."""


@with_config(AS_READ)
@dataclass(frozen=True, slots=True)
class TailStored:
    """The response of the leader's agent to a `TailRequest`: every record below `offset` is stored."""

    request_id: str
    broker_id: int
    offset: int


class LeaseValue(NamedTuple):
    """One renewal of the lease in the cluster's bucket."""

    number: int
    value: str
    """Random: two clusters never choose the same."""


Leases = tuple[LeaseValue, ...]
"""What one broker's agent, or a command run beside it, wanted to write under the last two numbers of the lease."""


def with_lease(known: Leases, lease: LeaseValue) -> Leases:
    """Return the leases to record next: the known ones from the number before this one's on, and this one."""
    return (*(one for one in known if one.number >= lease.number - 1), lease)


@with_config(AS_READ)
@dataclass(frozen=True, slots=True)
class Balancer:
    """Who balances the cluster: of several processes, one at a time (`recovery.reassignment.balance_turn`)."""

    holder: str
    """Random, of one process."""
    beat: int
    """Another number with each sign of life."""
    apart: tuple[float, float, float] | None = None
    """How far brokers' loads are apart (`recovery.reassignment.plan.apart`); None: not measured yet."""
    measured_ms: Annotated[int, Field(ge=0)] = 0
    """When that was, wall clock, milliseconds since 1970."""

    @property
    def apart_in(self) -> dict[str, float]:
        """How far brokers' loads are apart, by the kind of load; empty if it was not measured yet."""
        return {} if self.apart is None else dict(zip(("in", "out", "stored"), self.apart, strict=True))


ALL: Final = "all"
LOCAL: Final = "local"
"""The scope of the file beside one agent (`agent.link_pauses`), which no record has."""
_LATEST_MS: Final = int(datetime.max.replace(tzinfo=UTC).timestamp() * 1000)


@with_config(AS_READ)
@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of links: who set it, when, and why."""

    by: str
    since_ms: Annotated[int, Field(ge=0, le=_LATEST_MS)]
    """Wall clock, milliseconds since 1970."""
    reason: str = ""

    def describe(self, scope: str) -> str:
        """Describe the pause of this scope in one sentence for people."""
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        reason = f" ({self.reason})" if self.reason else ""
        return f"{links_of(scope)} are paused since {since} by {self.by}{reason}; to end it: {resuming(scope)}"


Pauses = Mapping[str, Pause]
"""By scope: `all`, `broker:<id>`, `zone:<name>`, `topic:<name>`."""


def resuming(scope: str) -> str:
    """Return the command line that ends the pause of this scope."""
    return f"remote-wal resume --{scope.replace(':', ' ', 1)}"


def links_of(scope: str) -> str:
    """Return the links of this scope, in words for people."""
    match scope.partition(":"):
        case ("all", _, _):
            return "all links"
        case ("local", _, _):
            return "this agent's links"
        case (kind, _, name):
            return f"links of {kind} {name}"
