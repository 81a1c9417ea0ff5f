"""How much of memory the frames of all connections on one side of an agent may take together. Sans-IO.

Each connection has bounds of its own, but there are many. So what is received and not yet passed on is counted here,
for all of them; who would go beyond the bound stops reading its socket, and its peer waits in TCP. Those who wait go
on in the order in which their frames began.

Small frames never wait for memory: they are there before anybody can ask, and all that matters to Kafka's protocol is
in them. While the bound is passed, a connection has one of them queued at most. Large ones wait piece by piece.

It never comes to a standstill: when nothing is left that could be given back but what those who wait hold themselves
(halves of large frames), the first of them goes on whatever the bound. So the bound may be passed by one large frame,
and by the small frames. And what is only kept in case somebody asks for it again is let go before anybody waits: a peer
that stands still must not hold up the others.

An agent has several of these: for what other agents ask, for what goes to them, and for what comes from them. What the
second holds waits for another agent to read, what the third holds waits for the local broker alone: with one budget for
both, two agents could wait for each other. And who fills the first with half requests holds up no response.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count


@dataclass(slots=True)
class _Waiter:
    ticket: int
    size: int
    held: int
    go_on: Callable[[], None]


class MemoryBudget:
    """Bytes that are held, and who waits for more."""

    def __init__(self, max_bytes: float = math.inf, on_wait: Callable[[], None] = lambda: None) -> None:
        """`on_wait` hears of each time that somebody has to wait."""
        self.used = 0
        self.peak = 0
        self._max_bytes = max_bytes
        self._on_wait = on_wait
        self._waiting: dict[Hashable, _Waiter] = {}
        self._held_by_waiting = 0
        self._tickets = count()
        self._kept: dict[Hashable, tuple[int, Callable[[], None]]] = {}

    @property
    def is_spent(self) -> bool:
        """Whether who has something queued should stop reading."""
        return self.used > self._max_bytes

    def take(self, size: int) -> None:
        """It is there already."""
        self.used += size
        self.peak = max(self.peak, self.used)

    def try_take(self, size: int) -> bool:
        """False when it has to be waited for; nobody is overtaken."""
        if self._waiting or self.used + size > self._max_bytes:
            return False
        self.take(size)
        return True

    def give_back(self, size: int) -> None:
        """It is not held any more."""
        self.used -= size
        if self._waiting:
            self._let_go_on()

    def keep(self, owner: Hashable, size: int, let_go: Callable[[], None]) -> None:
        """Take what may be let go of when others need it; `let_go` is told."""
        self.take(size)
        self._kept[owner] = size, let_go

    def keep_no_more(self, owner: Hashable) -> None:
        """Give it back, unless it was let go of."""
        size, _ = self._kept.pop(owner, (0, None))
        self.give_back(size)

    def ticket(self) -> int:
        """A place in the order, to be kept for as long as a frame takes."""
        return next(self._tickets)

    def wait(self, owner: Hashable, ticket: int, size: int, held: int, go_on: Callable[[], None]) -> None:
        """Have `go_on` called when `size` more was taken for the owner, who holds `held` and gives none of it back."""
        self.forget(owner)
        self._waiting[owner] = _Waiter(ticket, size, held, go_on)
        self._held_by_waiting += held
        self._let_go_on()
        if owner in self._waiting:
            self._on_wait()

    def forget(self, owner: Hashable) -> None:
        """It waits no more. What it held is given back by `give_back`."""
        waiter = self._waiting.pop(owner, None)
        if waiter is not None:
            self._held_by_waiting -= waiter.held

    def _let_go_on(self) -> None:
        while self._waiting:
            owner = min(self._waiting, key=lambda each: self._waiting[each].ticket)
            first = self._waiting[owner]
            while self._kept and self.used + first.size > self._max_bytes:
                kept_by = next(iter(self._kept))
                size, let_go = self._kept.pop(kept_by)
                self.used -= size
                let_go()
            if self.used + first.size > self._max_bytes and self.used > self._held_by_waiting:
                return
            self.forget(owner)
            self.take(first.size)
            first.go_on()
