"""The other agents' addresses: those of the configured list, and those that agents registered.

If a broker has both, the listed address is tried first, because it may be a special route. An address that answered is
kept while it fails (agents restart) until the agent registers another one. An address that never answered gives way to
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
        """Replace the registered addresses by all that are registered now."""
        for broker_id in self._registered.keys() | registered.keys():
            if self._registered.get(broker_id) != registered.get(broker_id):
                self._answered.pop(broker_id, None)
        self._registered = dict(registered)

    def answered(self, broker_id: int, address: Address) -> None:
        """Record that the broker's agent said hello at this address."""
        self._answered[broker_id] = address

    def failed(self, broker_id: int, address: Address) -> None:
        """Record that no hello came from this address."""
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
