"""Remembers the partitions of transactions whose ends were not told to clients yet. Sans-IO.

A coordinator forgets the partitions of a transaction that is over, so an EndTxn that is repeated then finds none. The
agent that was asked first remembers them, for all of its clients' connections, until it has told that the markers are
stored. As a transactional id has one transaction after the other, a transaction is identified by its id and its start
time, which coordinators keep when it is over. One that was forgotten, or asked for at another agent, is not known.

Source: TransactionMetadata.prepareComplete of Kafka, KIP-664.
"""

from typing import Final

Partitions = frozenset[tuple[str, int]]
Transaction = tuple[str, int]
"""Its transactional id, and when it began, in milliseconds as its coordinator says."""

MAX_PARTITIONS: Final = 20_000
"""Most partitions remembered, of all transactions together; the ones asked for first are forgotten first."""


class EndedTransactions:
    """Remembers ended transactions, see the module."""

    def __init__(self, max_partitions: int = MAX_PARTITIONS) -> None:
        self._max_partitions = max_partitions
        self._known: dict[Transaction, Partitions] = {}
        self._partitions = 0

    def remember(self, transaction: Transaction, partitions: Partitions) -> None:
        """Remember all partitions that a transaction has as it ends."""
        self.forget(transaction)
        self._known[transaction] = partitions
        self._partitions += _size(partitions)
        while self._partitions > self._max_partitions:
            self.forget(next(iter(self._known)))

    def partitions(self, transaction: Transaction) -> Partitions | None:
        """Return the transaction's partitions; None: not known."""
        return self._known.get(transaction)

    def forget(self, transaction: Transaction) -> None:
        """Forget a transaction: nobody need ask for it any more."""
        self._partitions -= _size(self._known.pop(transaction, None))


def _size(partitions: Partitions | None) -> int:
    return 0 if partitions is None else max(len(partitions), 1)
