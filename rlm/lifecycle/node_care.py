"""Decides whose objects an agent takes care of: its own broker's, and those of brokers that are gone. Sans-IO.

Every agent registers its incarnation in the metadata topic before it uploads anything; from then on records of its
older incarnations are refused. A broker that has been missing from the cluster for longer than a time gets a caretaker:
the lowest id among the living brokers with a registered agent. All agents see the same, so one of them finds that it is
the one, and registers itself for the gone broker's last incarnation. An operator may name an heir before (`remote-wal
decommission`); a living caretaker stays. When the broker comes back, its agent registers a new incarnation; an agent
that kept running registers its own again.

Two caretakers at once, by agents that see different clusters for a moment, do no harm: deletions are idempotent and
judged by the same metadata.
"""

from collections.abc import Collection
from typing import NamedTuple, Protocol


class NodeRegistration(NamedTuple):
    """The content of a node registration record."""

    broker_id: int
    incarnation: int
    caretaker_broker_id: int


class Registrations(Protocol):
    """The metadata store, as used here."""

    def registration_of(self, broker_id: int, /) -> NodeRegistration | None:
        """Return the last registration for this broker's objects."""

    def broker_ids(self) -> Collection[int]:
        """Return every broker that has segments or a registration."""


class NodeCare:
    """Decides about registrations. One thread at a time."""

    def __init__(self, broker_id: int, incarnation: int, registrations: Registrations, takeover_ms: int) -> None:
        self._own = NodeRegistration(broker_id, incarnation, broker_id)
        self._registrations = registrations
        self._takeover_ms = takeover_ms
        self._missing_since_ms: dict[int, int] = {}

    def registrations_due(self, living: Collection[int], now_ms: int) -> list[NodeRegistration]:
        """Return what to publish now; `living` are the brokers in a complete answer of the cluster."""
        own_id = self._own.broker_id
        due = []
        known = self._registrations.registration_of(own_id)
        # An older incarnation's is no reason: our own was published first, and is on its way.
        if known is not None and known.incarnation == self._own.incarnation and known != self._own:
            due.append(self._own)
        able = [broker_id for broker_id in living if self._registrations.registration_of(broker_id) is not None]
        known_brokers = set(self._registrations.broker_ids())
        for broker_id in [missing for missing in self._missing_since_ms if missing in living]:
            del self._missing_since_ms[broker_id]
        for broker_id in sorted(known_brokers - set(living) - {own_id}):
            since_ms = self._missing_since_ms.setdefault(broker_id, now_ms)
            if now_ms - since_ms < self._takeover_ms or min(able, default=None) != own_id:
                continue
            registration = self._registrations.registration_of(broker_id)
            if registration is not None and registration.caretaker_broker_id in able:
                continue  # it has a living one: the agent that took over, or an heir that somebody named
            wanted = NodeRegistration(broker_id, registration.incarnation if registration else 0, own_id)
            if registration != wanted:
                due.append(wanted)
        return due

    def brokers_in_care(self) -> frozenset[int]:
        """Return the brokers whose objects this agent may delete."""
        own_id = self._own.broker_id
        found = set()
        for broker_id in self._registrations.broker_ids():
            registration = self._registrations.registration_of(broker_id)
            if registration is not None and registration.caretaker_broker_id == own_id:
                found.add(broker_id)
        own = self._registrations.registration_of(own_id)
        if own is None:
            found.add(own_id)
        return frozenset(found)

    def is_fenced(self) -> bool:
        """Whether a newer incarnation of this agent was registered, so that this one must not write any more."""
        known = self._registrations.registration_of(self._own.broker_id)
        return known is not None and known.incarnation > self._own.incarnation
