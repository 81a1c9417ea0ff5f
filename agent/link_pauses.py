"""Pauses links on an operator's word: by records of the settings topic, or by a file where Kafka is down.

While links are paused, this agent links nothing that it leads and wants no links for what it follows; uploads that
retention or durable topics need go on. A file `paused.json` in the state directory pauses this agent alone, whatever
the file holds. Until the settings topic was read once, links are paused, because they may be. Then the last known
records count until it is read again, so a failure of the part that follows Kafka does not resume links.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from metadata_topic.settings.settings_records import ALL, LOCAL, Pause, Pauses
from metadata_topic.settings.settings_table import PAUSES, MalformedSettingError
from plugin.durable_files import sync_directory, write_durably

log = structlog.get_logger(__name__)

_FILE_NAME: Final = "paused.json"
_LOOK_S: Final = 4.0


class LinkPauses:
    """The pauses of links that concern this agent. Changed in the event loop; any thread may ask."""

    def __init__(
        self, broker_id: int, zone: str | None, state_directory: Path, on_change: Callable[[], object] = lambda: None
    ) -> None:
        """`on_change` is called in the event loop, after a change."""
        self._on_change = on_change
        self._own_scopes = {ALL, f"broker:{broker_id}"} | ({f"zone:{zone}"} if zone is not None else set())
        self._state_directory = state_directory
        self._recorded: Pauses | None = None
        """None: not read yet."""
        self._local = read_local(state_directory)
        self._by_topic: dict[str, str] = {}
        self._of_agent: str | None = None
        self.shown: Pauses = {}
        """The pauses in force, by scope: of this agent, and of any topic."""
        self._weigh()

    def recorded(self, pauses: Pauses) -> None:
        """Set the pauses to those in the settings topic."""
        was_known, self._recorded = self._recorded is not None, pauses
        self._weigh()
        if not was_known:
            self._on_change()

    async def run(self) -> None:
        """Look for the local pause file until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Look for the local pause file once."""
        self._local = await asyncio.to_thread(read_local, self._state_directory)
        self._weigh()

    def _weigh(self) -> None:
        """Find the pauses in force, and tell of what has changed."""
        shown = {
            scope: pause
            for scope, pause in (self._recorded or {}).items()
            if scope in self._own_scopes or scope.startswith("topic:")
        }
        if self._local is not None:
            shown[LOCAL] = self._local
        if shown == self.shown:
            return
        before, self.shown = self.shown, shown
        told = {scope: pause.describe(scope) for scope, pause in sorted(shown.items())}
        self._by_topic = {
            scope.removeprefix("topic:"): text for scope, text in told.items() if scope.startswith("topic:")
        }
        self._of_agent = next((text for scope, text in told.items() if not scope.startswith("topic:")), None)
        for scope in sorted(shown.keys() - before.keys()):
            log.warning("links_paused", scope=scope, by=shown[scope].by, reason=shown[scope].reason)
        for scope in sorted(before.keys() - shown.keys()):
            log.warning("links_resumed", scope=scope)
        self._on_change()

    def is_paused(self) -> bool:
        """Whether links from and to this agent are paused, for all topics."""
        return self._of_agent is not None or self._recorded is None

    def find_reason(self, topic: str) -> str | None:
        """Return why this topic's links are paused here, for people; None if they are not."""
        unknown = "whether links are paused is not known yet" if self._recorded is None else None
        return self._of_agent or self._by_topic.get(topic) or unknown

    @property
    def told(self) -> list[str]:
        """The pauses in force, as texts for people."""
        return [pause.describe(scope) for scope, pause in sorted(self.shown.items())]


def read_local(state_directory: Path) -> Pause | None:
    """Return the pause in the state directory's file; None without one. An unreadable file counts as a pause."""
    path = state_directory / _FILE_NAME
    try:
        paused, _ = PAUSES.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, MalformedSettingError):
        paused = None
    if paused is None:
        since_ms = 0
        with suppress(OSError):
            since_ms = int(path.stat().st_mtime * 1000)
        paused = Pause(f"the file {path}", since_ms)
    return paused


def write_local(state_directory: Path, pause: Pause) -> None:
    """Pause links of the agent with this state directory. Raises OSError."""
    write_durably(state_directory / _FILE_NAME, PAUSES.encode(pause).decode())


def remove_local(state_directory: Path) -> bool:
    """End the local pause of the agent with this state directory. Returns whether there was one. Raises OSError."""
    try:
        (state_directory / _FILE_NAME).unlink()
    except FileNotFoundError:
        return False
    sync_directory(state_directory)
    return True
