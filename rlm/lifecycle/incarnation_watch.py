"""Whether this agent's incarnation counts, and what to do when the metadata topic knows a newer one of its broker.

Theory. Every reader refuses what an incarnation publishes once a higher one of its broker is registered before it. Two
ways lead there. A newer agent took this one's place: then it is over, nothing is uploaded any more, and it says so. Or
the number of this one is too low from the start: its state directory was lost, and the clock was ahead once. Then it
would upload in vain; a number above the registered one is all that it lacks.

Yet whoever holds the registered one may be alive: a second agent of the same broker, with a state directory of its own.
It must win, as it is in the midst of its uploads. Its endpoints do not tell (they are loopback, mostly), so it is asked
by way of the topic, which both read and write: this agent registers again, in vain, and a living one answers such a
registration by registering its own again (at its start, too, to one that it cannot date). Without an answer for a time
that is long beside any reading of the topic, and with the topic read to its end on both sides of it, the number above
is taken, as by a restart. One that was merely paused finds itself superseded.

Until it counts, nothing is led as far as this agent knows: all bytes go inline.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.records import RemoteWalNodeRegistration

log = structlog.get_logger(__name__)

ANSWER_S = 20.0
_LOOK_S = 1.0


class IncarnationTakenError(Exception):
    """This incarnation never counted; `above` is the registered one, which nobody alive holds."""

    def __init__(self, above: int) -> None:
        self.above = above
        super().__init__(f"incarnation {above} is registered, and its agent is gone")


class KnownRegistrations(Protocol):
    """What is asked of the metadata store."""

    def registration_of(self, broker_id: int, /) -> RemoteWalNodeRegistration | None: ...

    def refused_registrations_of(self, broker_id: int, /) -> int:
        """How many came behind that of a higher incarnation."""


class IncarnationWatch:
    """Use it in the event loop; `fenced_because` may be read on any thread."""

    def __init__(
        self,
        broker_id: int,
        incarnation: int,
        store: KnownRegistrations,
        register: Callable[[], None],
        read_to_end: Callable[[], Awaitable[bool]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`register` publishes this incarnation's registration (PublicationBacklogFullError); `read_to_end` is True
        when the store knows all that was in the topic at the call.
        """
        self._broker_id = broker_id
        self._incarnation = incarnation
        self._store = store
        self._register = register
        self._read_to_end = read_to_end
        self._sleep = sleep
        self._counted = False
        self._answered = 0
        self.fenced_because: str | None = None
        """Why nothing is uploaded; None while this incarnation counts, as far as is known."""

    def look(self) -> bool:
        """Whether this incarnation counts, by what was read."""
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
        """For as long as the agent runs, once the topic was read. Raises IncarnationTakenError."""
        while True:
            if not self.look() and not self._counted:
                await self._ask()
            await self._sleep(_LOOK_S)

    def _newer(self) -> int | None:
        known = self._store.registration_of(self._broker_id)
        return known.incarnation if known is not None and known.incarnation > self._incarnation else None

    def _answer(self) -> None:
        """Tell a newcomer of a lower number that this one is alive."""
        refused = self._store.refused_registrations_of(self._broker_id)
        if refused > self._answered:
            try:
                self._register()
            except PublicationBacklogFullError:
                return  # it is tried again
            log.info("registered_again", incarnation=self._incarnation, refused=refused)
            self._answered = refused

    async def _ask(self) -> None:
        """Wait for an answer of who holds the registered incarnation."""
        asked = self._store.refused_registrations_of(self._broker_id)
        try:
            self._register()
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
        self._counted = True  # not again: it lives, or another one does
        self.fenced_because = f"{self.fenced_because}, and its agent is alive: this one is the second of its broker"
        log.error("agent_is_the_second", registered=after, incarnation=self._incarnation,
                  consequence="nothing is uploaded", hint="one broker has one agent: end one of them")  # fmt: skip
