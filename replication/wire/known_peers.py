"""The other agents' addresses: those of a list that was there at the start, and those under which agents registered.

Where both name one, the listed address is asked first: it may be another way than everybody's. An address that answered
is kept while it fails, as agents are restarted, until its agent registers another one; one that never did gives way to
the other.
"""

from collections.abc import Iterator, Mapping

from replication.wire.peer_connection import Address


class KnownPeers(Mapping[int, Address]):
    """The address to dial next, by broker id. Use it in the event loop."""

    def __init__(self, listed: Mapping[int, Address]) -> None:
        self._listed = dict(listed)
        self._registered: dict[int, Address] = {}
        self._answered: dict[int, Address] = {}
        self._failures: dict[int, int] = {}

    def learned(self, registered: Mapping[int, Address]) -> None:
        """All that are registered now."""
        for broker_id in self._registered.keys() | registered.keys():
            if self._registered.get(broker_id) != registered.get(broker_id):
                self._answered.pop(broker_id, None)
        self._registered = dict(registered)

    def answered(self, broker_id: int, address: Address) -> None:
        """Its agent said hello there."""
        self._answered[broker_id] = address

    def failed(self, broker_id: int, address: Address) -> None:
        """It did not."""
        if self.get(broker_id) == address and self._answered.get(broker_id) != address:
            self._failures[broker_id] = self._failures.get(broker_id, 0) + 1

    def _addresses(self, broker_id: int) -> list[Address]:
        found = self._listed.get(broker_id), self._registered.get(broker_id)
        return list(dict.fromkeys(address for address in found if address is not None))

    def __getitem__(self, broker_id: int) -> Address:
        if not (addresses := self._addresses(broker_id)):
            raise KeyError(broker_id)
        return addresses[self._failures.get(broker_id, 0) % len(addresses)]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._listed.keys() | self._registered.keys()))

    def __len__(self) -> int:
        return len(self._listed.keys() | self._registered.keys())
