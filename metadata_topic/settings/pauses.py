"""Records of `__remote_wal_topic_settings` that pause links: for all agents, a broker, a zone, or a topic.

The key is ``pause:<scope>``, with the scope ``all``, ``broker:<id>``, ``zone:<name>`` or ``topic:<name>``; the value
has ``by``, ``since_ms`` and ``reason``. Removing the record resumes links.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

from metadata_topic.settings.topic_settings import MalformedSettingError, typed

ALL: Final = "all"
LOCAL: Final = "local"
"""The scope of the file beside one agent (`agent.link_pauses`), which no record has."""
_PREFIX = b"pause:"
_KINDS: Final = frozenset({"broker", "zone", "topic"})


@dataclass(frozen=True, slots=True)
class Pause:
    """Who paused links, when, and why."""

    by: str
    since_ms: int
    """Wall clock, milliseconds since 1970."""
    reason: str = ""

    def told(self, scope: str) -> str:
        """Describe it as one sentence for people."""
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        reason = f" ({self.reason})" if self.reason else ""
        return f"{_links_of(scope)} are paused since {since} by {self.by}{reason}; to end it: {resuming(scope)}"


Pauses = Mapping[str, Pause]
"""By scope."""


def resuming(scope: str) -> str:
    """Return the command that ends the pause."""
    return f"remote-wal resume --{scope.replace(':', ' ', 1)}"


def _links_of(scope: str) -> str:
    match scope.partition(":"):
        case ("all", _, _):
            return "all links"
        case ("local", _, _):
            return "this agent's links"
        case (kind, _, name):
            return f"links of {kind} {name}"


def is_pause_key(key: bytes | None) -> bool:
    """Whether the record is one of these."""
    return key is not None and key.startswith(_PREFIX)


def pause_key(scope: str) -> bytes:
    """Return the record's key."""
    return _PREFIX + scope.encode()


def encode_pause(pause: Pause) -> bytes:
    """Return the record's value."""
    return json.dumps(asdict(pause), sort_keys=True).encode()


def decode_pause(value: bytes) -> Pause:
    """Decode a record's value. Raises MalformedSettingError, and nothing else."""
    try:
        fields = json.loads(value)
        pause = Pause(typed(fields, "by", str), typed(fields, "since_ms", int), typed(fields, "reason", str))
        pause.told(ALL)
    except Exception as error:  # any error that foreign bytes may cause
        raise MalformedSettingError(f"{type(error).__name__}: {error}") from error
    return pause


def decode_pause_record(key: bytes, value: bytes | None) -> tuple[str, Pause | None]:
    """Decode a record, by scope; None: it was removed. Raises MalformedSettingError, and nothing else."""
    scope = key.removeprefix(_PREFIX).decode(errors="replace")
    kind, _, name = scope.partition(":")
    if scope != ALL and not (kind in _KINDS and name):
        raise MalformedSettingError(f"a pause of an unknown kind: {kind}")
    return scope, None if value is None else decode_pause(value)
