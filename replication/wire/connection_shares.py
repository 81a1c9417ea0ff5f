"""Limits how many connections each peer may hold. Sans-IO.

A connection counts for its source address from the moment it is accepted. Once it has proved to be another broker's
agent, it counts for that broker only. So nobody can use up another's share: neither a broken agent, nor strangers, nor
connections that never finish their handshake.
"""

from collections import Counter
from dataclasses import dataclass

Holder = str | int
"""A source address, or a broker's id."""


class TooManyConnectionsError(Exception):
    """`holder` already has its share, or the limit for all together is reached."""

    def __init__(self, holder: Holder, held: int) -> None:
        self.holder = holder
        self.held = held
        super().__init__(f"{holder} holds {held} connections")


@dataclass(slots=True)
class ConnectionShare:
    """The share that one connection takes. `holder` changes at most once."""

    address: str
    holder: Holder
    has_left: bool = False


class ConnectionShares:
    """The connections that one listener holds, counted by holder."""

    def __init__(self, max_unnamed: int, max_of_one: int) -> None:
        """`max_unnamed` bounds all connections of unknown holders together, `max_of_one` each address and each
        broker.
        """
        self._max_unnamed = max_unnamed
        self._max_of_one = max_of_one
        self._held: Counter[Holder] = Counter()
        self._unnamed = 0

    def enter(self, address: str) -> ConnectionShare:
        """Count a connection that was just accepted. Raises TooManyConnectionsError."""
        if self._unnamed >= self._max_unnamed:
            raise TooManyConnectionsError(address, self._held[address])
        self._add(address)
        self._unnamed += 1
        return ConnectionShare(address, address)

    def name(self, share: ConnectionShare, broker_id: int) -> None:
        """Count this connection for a broker's agent from now on. Raises TooManyConnectionsError."""
        self._add(broker_id)
        self._drop(share)
        share.holder = broker_id

    def _add(self, holder: Holder) -> None:
        if self._held[holder] >= self._max_of_one:
            raise TooManyConnectionsError(holder, self._held[holder])
        self._held[holder] += 1

    def leave(self, share: ConnectionShare) -> None:
        """Stop counting a connection: it ended, or is counted elsewhere from now on. Idempotent."""
        if not share.has_left:
            share.has_left = True
            self._drop(share)

    def _drop(self, share: ConnectionShare) -> None:
        self._held[share.holder] -= 1
        if not self._held[share.holder]:
            del self._held[share.holder]
        if isinstance(share.holder, str):
            self._unnamed -= 1
