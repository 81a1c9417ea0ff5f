"""Watches whether this agent's incarnation is valid, and reacts to a newer one of its broker in the metadata topic.

Every reader refuses what an incarnation publishes after a higher one of its broker was registered. There are two
causes. A newer agent took this one's place: then this one uploads nothing any more, and says so. Or this one's number
is too low from the start, because its state directory was lost and the clock was ahead once. Then nobody would accept
its uploads; it only needs a number above the registered one.

But the holder of the registered number may be alive: a second agent of the same broker, with its own state directory.
It must win, because it is uploading. Its endpoints do not help (they are mostly loopback), so it is asked through the
topic that both read and write: this agent registers again, which is refused, and a living holder answers by registering
its own number again (also at its start, for a registration that it cannot date). If no answer comes in a time that is
long compared with reading the topic, and the topic was read to its end before and after, this agent takes the number
above, as by a restart. A holder that was only paused then finds itself superseded.

Until this incarnation is valid, no partition counts as led: all bytes go inline.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.store.store import RemoteWalMetadataStore

log = structlog.get_logger(__name__)

ANSWER_S = 20.0
_LOOK_S = 2.0


class IncarnationTakenError(Exception):
    """This agent's incarnation is too low to be valid; that in `above` is registered, and no living agent holds it."""

    def __init__(self, above: int) -> None:
        self.above = above
        super().__init__(f"incarnation {above} is registered, and its agent is gone")


class IncarnationWatch:
    """Notices a newer incarnation of this broker's agent. For the event loop; any thread may read `fenced_because`."""

    def __init__(
        self,
        broker_id: int,
        incarnation: int,
        store: RemoteWalMetadataStore,
        register: Callable[[], None],
        read_to_end: Callable[[], Awaitable[bool]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`register` publishes this incarnation's registration; it may raise PublicationBacklogFullError.

        `read_to_end` waits until the store has everything that is in the topic at the call; False if that fails.
        """
        self._broker_id = broker_id
        self._incarnation = incarnation
        self._store = store
        self.register: Final = register
        self._read_to_end = read_to_end
        self._sleep = sleep
        self._counted = False
        self._answered = 0
        self.fenced_because: str | None = None
        """Why nothing is uploaded; None while this incarnation is valid, as far as is known."""

    def look(self) -> bool:
        """Check once whether this incarnation is valid, by the registrations read so far."""
        newer = self._newer()
        if newer is not None and self.fenced_because is None:
            self.fenced_because = (
                f"incarnation {newer} of this broker's agent is registered, this is {self._incarnation}"
            )
            log.error("agent_fenced", newer=newer, incarnation=self._incarnation, consequence="nothing is uploaded",
                      superseded=self._counted)  # fmt: skip
        if newer is None:
            self._counted = True
            self._answer()
        return newer is None

    async def run(self) -> None:
        """Check as long as the agent runs, once the topic was read. Raises IncarnationTakenError."""
        while True:
            if not self.look() and not self._counted:
                await self._ask()
            await self._sleep(_LOOK_S)

    def _newer(self) -> int | None:
        known = self._store.registration_of(self._broker_id)
        return known.incarnation if known is not None and known.incarnation > self._incarnation else None

    def _answer(self) -> None:
        """Show a newcomer with a lower number that this agent is alive."""
        refused = self._store.refused_registrations_of(self._broker_id)
        if refused > self._answered:
            try:
                self.register()
            except PublicationBacklogFullError:
                return  # it is tried again
            log.info("registered_again", incarnation=self._incarnation, refused=refused)
            self._answered = refused

    async def _ask(self) -> None:
        """Ask whether the holder of the registered incarnation is alive, and wait for its answer."""
        asked = self._store.refused_registrations_of(self._broker_id)
        try:
            self.register()
        except PublicationBacklogFullError:
            return
        while self._store.refused_registrations_of(self._broker_id) <= asked:
            await self._sleep(_LOOK_S)
        if not await self._read_to_end():
            return
        before = self._store.registration_of(self._broker_id)
        log.warning(
            "registered_agent_asked", registered=before, incarnation=self._incarnation, answer_within_s=ANSWER_S
        )
        await self._sleep(ANSWER_S)
        if not await self._read_to_end():
            return
        after = self._store.registration_of(self._broker_id)
        if before is not None and after == before:
            raise IncarnationTakenError(before.incarnation)
        self._counted = True  # it was asked: it lives, or another one does
        self.fenced_because = f"{self.fenced_because}, and its agent is alive: this one is the second of its broker"
        log.error("agent_is_the_second", registered=after, incarnation=self._incarnation,
                  consequence="nothing is uploaded", hint="one broker has one agent: end one of them")  # fmt: skip
