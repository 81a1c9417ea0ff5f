"""Limits the memory that the frames of all connections on one side of an agent take together. Sans-IO.

Each connection has limits of its own, but there are many connections. So bytes that were received and not yet passed on
are counted here for all of them. A connection that would exceed the limit stops reading its socket, and its peer waits
in TCP. Waiting connections continue in the order in which their frames began.

Small frames never wait: they have arrived before anybody can ask, and Kafka's protocol depends on them. While the limit
is exceeded, a connection queues at most one of them. Large frames wait piece by piece.

There is no deadlock. When only waiting connections hold memory (halves of large frames), the first of them continues
despite the limit. So the limit may be exceeded by one large frame and by the small frames. Bytes that are kept only in
case somebody asks for them again are dropped before anybody waits, so a stalled peer does not block the others.

A connection is stalled while the peer that its frames go to does not read, which a broker that throttles a client does
for minutes. What stalled connections hold blocks no others: the others may exceed the limit then, up to twice the
limit. Stalled connections themselves get only what is within the limit.

A budget gives each address a share (`share_of`), so that a stranger with many half frames keeps nobody waiting: who is
above his share is passed over by others until what he holds is given back, or is all waiting.

An agent has several budgets: for other agents' requests, for responses to them, and for responses from them. The second
waits for another agent to read, the third for the local broker only: with one budget for both, two agents could wait
for each other. And a peer that fills the first with half requests blocks no response.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from itertools import count
from weakref import WeakValueDictionary


@dataclass(slots=True)
class _Waiter:
    ticket: int
    size: int
    held: int
    go_on: Callable[[], None]
    share: "_Share | None"


class MemoryBudget:
    """Counts the bytes of frames that are in memory, and the connections that wait for more."""

    def __init__(self, max_bytes: float = math.inf, on_wait: Callable[[], None] = lambda: None) -> None:
        """`on_wait` is called each time a connection has to wait for memory."""
        self.used = 0
        self.peak = 0
        self._max_bytes = max_bytes
        self._on_wait = on_wait
        self._waiting: dict[Hashable, _Waiter] = {}
        self._stalled: dict[Hashable, Callable[[], int]] = {}
        self._tickets = count()
        self._kept: dict[Hashable, tuple[int, Callable[[], None]]] = {}
        self._shares: WeakValueDictionary[Hashable, _Share] = WeakValueDictionary()

    def share_of(self, holder: Hashable) -> "MemoryBudget":
        """Return a share of this budget for one peer's connections, which together may take a quarter of it."""
        share = self._shares.get(holder)
        if share is None:
            share = self._shares[holder] = _Share(self, self._max_bytes / 4)
        return share

    @property
    def is_spent(self) -> bool:
        """Whether a connection that has a frame queued should stop reading."""
        return self.used > self._max_bytes

    def take(self, size: int) -> None:
        """Count bytes that have already arrived, even if they exceed the limit."""
        self.used += size
        self.peak = max(self.peak, self.used)

    def try_take(self, size: int) -> bool:
        """Take this many bytes at once. Returns False if the caller must wait, also when others wait already."""
        if self._waiting or self.used + size > self._max_bytes:
            return False
        self.take(size)
        return True

    def give_back(self, size: int) -> None:
        """Count bytes as free again."""
        self.used -= size
        if self._waiting:
            self._let_go_on()

    def adjust(self, size: int) -> None:
        """Count this many more bytes, which have already arrived; a negative number gives bytes back."""
        if size > 0:
            self.take(size)
        elif size:
            self.give_back(-size)

    def keep(self, owner: Hashable, size: int, let_go: Callable[[], None]) -> None:
        """Take memory that may be dropped when connections need it; `let_go` is called then."""
        self.take(size)
        self._kept[owner] = size, let_go

    def release_kept(self, owner: Hashable) -> None:
        """Give back what `keep` took, unless it was dropped before."""
        size, _ = self._kept.pop(owner, (0, None))
        self.give_back(size)

    def ticket(self) -> int:
        """Return a place in the waiting order, to be kept until the frame is complete."""
        return next(self._tickets)

    def wait(
        self,
        owner: Hashable,
        ticket: int,
        size: int,
        held: int,
        go_on: Callable[[], None],
        share: "_Share | None" = None,
    ) -> None:
        """Call `go_on` once `size` bytes were taken for the owner, who keeps the `held` bytes that it has until
        then."""
        self.forget(owner)
        self._waiting[owner] = _Waiter(ticket, size, held, go_on, share)
        self._let_go_on()
        if owner in self._waiting:
            self._on_wait()

    def forget(self, owner: Hashable) -> None:
        """Stop waiting for the owner. What it held must be given back by `give_back`."""
        self._waiting.pop(owner, None)

    def stall(self, owner: Hashable, held: Callable[[], int]) -> None:
        """Note that the owner is stalled until `go_on`, and gives back none of what `held` returns."""
        self._stalled[owner] = held
        self._let_go_on()

    def go_on(self, owner: Hashable) -> None:
        """Note that the owner is no longer stalled."""
        self._stalled.pop(owner, None)
        self._let_go_on()

    def _may_exceed(self, size: int) -> bool:
        """Whether somebody who is not stalled may take so much beyond the limit: all is held by those who wait."""
        stuck = sum(waiter.held for owner, waiter in self._waiting.items() if owner not in self._stalled)
        if self.used + size <= 2 * self._max_bytes:
            stuck += sum(held() for held in self._stalled.values())
        return self.used <= stuck

    def _let_go_on(self) -> None:
        while self._waiting:
            by_age = sorted(self._waiting, key=lambda each: (each in self._stalled, self._waiting[each].ticket))
            held = Counter[_Share | None]()
            for waiter in self._waiting.values():
                held[waiter.share] += waiter.held
            owner = next((one for one in by_age if self._is_within_share(self._waiting[one], held)), by_age[0])
            first = self._waiting[owner]
            while self._kept and self.used + first.size > self._max_bytes:
                kept_by = next(iter(self._kept))
                size, let_go = self._kept.pop(kept_by)
                self.used -= size
                let_go()
            is_within = self.used + first.size <= self._max_bytes and self._is_within_share(first, held)
            if not is_within:
                owner = by_age[0]
                first = self._waiting[owner]
                if owner in self._stalled or not self._may_exceed(first.size):
                    return
            self.forget(owner)
            (first.share or self).take(first.size)
            first.go_on()

    def _is_within_share(self, waiter: _Waiter, held: Mapping["_Share | None", int]) -> bool:
        """Whether it may go on as far as its share says: there is room, or all of the share waits."""
        share = waiter.share
        return share is None or share.used + waiter.size <= share.max_bytes or share.used <= held[share]


class _Share(MemoryBudget):
    """One holder's share of a whole."""

    def __init__(self, whole: MemoryBudget, max_bytes: float) -> None:
        super().__init__(max_bytes)
        self._whole = whole
        self.max_bytes = max_bytes

    @property
    def is_spent(self) -> bool:
        return super().is_spent or self._whole.is_spent

    def take(self, size: int) -> None:
        super().take(size)
        self._whole.take(size)

    def try_take(self, size: int) -> bool:
        if self.used + size > self.max_bytes or not self._whole.try_take(size):
            return False
        super().take(size)
        return True

    def give_back(self, size: int) -> None:
        super().give_back(size)
        self._whole.give_back(size)

    def ticket(self) -> int:
        return self._whole.ticket()

    def wait(
        self,
        owner: Hashable,
        ticket: int,
        size: int,
        held: int,
        go_on: Callable[[], None],
        share: "_Share | None" = None,
    ) -> None:
        self._whole.wait(owner, ticket, size, held, go_on, self)

    def forget(self, owner: Hashable) -> None:
        self._whole.forget(owner)

    def stall(self, owner: Hashable, held: Callable[[], int]) -> None:
        self._whole.stall(owner, held)

    def go_on(self, owner: Hashable) -> None:
        self._whole.go_on(owner)
