"""How many connections whom may hold, sans-IO.

A connection counts from its accept on, for the address that it comes from. Once it has proved to be the agent of
another broker it counts for that broker alone. So nobody takes another's share: neither a broker whose agent went
wrong, nor strangers, nor connections that never get through their handshake.
"""

from collections import Counter
from dataclasses import dataclass

Holder = str | int
"""An address, or a broker's id."""


class TooManyConnectionsError(Exception):
    """`holder` has its share already, or all together have."""

    def __init__(self, holder: Holder, held: int) -> None:
        self.holder = holder
        self.held = held
        super().__init__(f"{holder} holds {held} connections")


@dataclass(slots=True)
class ConnectionShare:
    """One connection's. `holder` changes once."""

    address: str
    holder: Holder
    has_left: bool = False


class ConnectionShares:
    """Of one listener."""

    def __init__(self, max_unnamed: int, max_of_one: int) -> None:
        """`max_unnamed` bounds all together that are no known broker's, `max_of_one` each address and each broker."""
        self._max_unnamed = max_unnamed
        self._max_of_one = max_of_one
        self._held: Counter[Holder] = Counter()
        self._unnamed = 0

    def enter(self, address: str) -> ConnectionShare:
        """A connection was accepted. Raises TooManyConnectionsError."""
        if self._unnamed >= self._max_unnamed:
            raise TooManyConnectionsError(address, self._held[address])
        self._add(address)
        self._unnamed += 1
        return ConnectionShare(address, address)

    def name(self, share: ConnectionShare, broker_id: int) -> None:
        """It is this broker's agent. Raises TooManyConnectionsError."""
        self._add(broker_id)
        self._drop(share)
        share.holder = broker_id

    def _add(self, holder: Holder) -> None:
        if self._held[holder] >= self._max_of_one:
            raise TooManyConnectionsError(holder, self._held[holder])
        self._held[holder] += 1

    def leave(self, share: ConnectionShare) -> None:
        """The connection ended, or counts elsewhere from now on. Idempotent."""
        if not share.has_left:
            share.has_left = True
            self._drop(share)

    def _drop(self, share: ConnectionShare) -> None:
        self._held[share.holder] -= 1
        if not self._held[share.holder]:
            del self._held[share.holder]
        if isinstance(share.holder, str):
            self._unnamed -= 1
