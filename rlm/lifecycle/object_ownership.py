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

import asyncio
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Final

import structlog

from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher

log = structlog.get_logger(__name__)


TAKEOVER_MS: Final = 3_600_000
"""How long a broker must be missing before another agent cares for its objects: longer than a restart (guessed)."""


class ObjectOwnership:
    """Decides which registrations this agent publishes, and whose objects it owns. One thread at a time."""

    def __init__(
        self,
        broker_id: int,
        incarnation: int,
        store: RemoteWalMetadataStore,
        agents: Callable[[], Collection[int]],
        takeover_ms: int = TAKEOVER_MS,
    ) -> None:
        """`agents` returns the brokers whose agents have ever registered in the settings topic."""
        self._broker_id, self._incarnation = broker_id, incarnation
        self._store = store
        self._agents = agents
        self._takeover_ms = takeover_ms
        self._missing_since_ms: dict[int, int] = {}

    def registrations_due(self, living: Collection[int], now_ms: int) -> list[RemoteWalNodeRegistration]:
        """Return the registrations to publish now; `living` are the brokers in a complete response of the cluster."""
        own_id, known = self._broker_id, self._store.registration_of(self._broker_id)
        due = []
        # An older incarnation's is no reason: our own was published first, and is on its way.
        if known is not None and known.incarnation == self._incarnation and known.caretaker_broker_id != own_id:
            due.append(RemoteWalNodeRegistration(own_id, self._incarnation, own_id, now_ms))
        able = [broker_id for broker_id in living if self._store.registration_of(broker_id) is not None]
        for broker_id in [missing for missing in self._missing_since_ms if missing in living]:
            del self._missing_since_ms[broker_id]
        for broker_id in sorted(set(self._agents()) - set(living) - {own_id}):
            since_ms = self._missing_since_ms.setdefault(broker_id, now_ms)
            if now_ms - since_ms < self._takeover_ms or min(able, default=None) != own_id:
                continue
            registration = self._store.registration_of(broker_id)
            if registration is not None and registration.caretaker_broker_id in able:
                continue  # it has a living one: the agent that took over, or an heir that somebody named
            incarnation = registration.incarnation if registration is not None else 0
            due.append(RemoteWalNodeRegistration(broker_id, incarnation, own_id, now_ms))
        return due

    def brokers_in_care(self) -> frozenset[int]:
        """Return the brokers whose objects this agent may delete."""
        own_id = self._broker_id
        return frozenset(one for one in {*self._agents(), own_id} if self._store.caretaker_of(one) == own_id)

    def is_fenced(self) -> bool:
        """Whether a newer incarnation of this agent was registered, so that this one must not write any more."""
        known = self._store.registration_of(self._broker_id)
        return known is not None and known.incarnation > self._incarnation


class DecommissionError(Exception):
    """The broker's objects cannot be given to the broker that was named as heir."""


def inheritance(
    broker_id: int,
    heir_id: int,
    living: Collection[int],
    store: RemoteWalMetadataStore,
    agents: Collection[int],
    now_ms: int,
) -> RemoteWalNodeRegistration:
    """Return the registration that gives a gone broker's objects to the heir. `living` are the cluster's brokers.

    `agents` are those of the settings topic. Raises DecommissionError if the broker lives, as its agent would take its
    objects back at once, or if the heir has no agent.
    """
    if broker_id == heir_id:
        raise DecommissionError(f"broker {broker_id} cannot be its own heir")
    if broker_id in living:
        raise DecommissionError(f"broker {broker_id} is in the cluster: stop it, and its agent, first")
    known = store.registration_of(broker_id)
    if known is None and broker_id not in agents:
        raise DecommissionError(f"no agent of broker {broker_id} is known, so there is nothing to inherit")
    heir = store.registration_of(heir_id)
    if heir_id not in living or heir is None:
        raise DecommissionError(f"broker {heir_id} is not in the cluster, or has no agent: name another heir")
    if heir.caretaker_broker_id != heir_id:
        raise DecommissionError(f"broker {heir_id} is itself cared for by broker {heir.caretaker_broker_id}")
    return RemoteWalNodeRegistration(broker_id, known.incarnation if known is not None else 0, heir_id, now_ms)


class Caretaking:
    """The brokers whose objects this agent owns now. Updated in the event loop; any thread may call `brokers`."""

    def __init__(
        self,
        care: ObjectOwnership,
        publisher: RemoteWalMetadataPublisher,
        unpublished_max_s: float,
        may_delete: Callable[[], bool] = lambda: True,
    ) -> None:
        """This agent owns no objects while metadata has waited for publication longer than `unpublished_max_s`, or
        while `may_delete` returns False."""
        self._may_delete = may_delete
        self._care = care
        self._publisher = publisher
        self._unpublished_max_s = unpublished_max_s
        self.cluster_seen = asyncio.Event()

    def brokers(self) -> frozenset[int]:
        """Return the brokers whose objects this agent may delete now."""
        if (
            not self.cluster_seen.is_set()
            or self._care.is_fenced()
            or not self._may_delete()
            or self._publisher.oldest_pending_age_s() > self._unpublished_max_s
        ):
            return frozenset()
        return self._care.brokers_in_care()

    def seen(self, living: Collection[int], now_ms: int) -> None:
        """Take the brokers in a complete response of the cluster, and publish the registrations that are due."""
        self.cluster_seen.set()
        for registration in self._care.registrations_due(living, now_ms):
            try:
                self._publisher.publish(registration)
            except PublicationBacklogFullError:
                continue  # it stays due until it is seen
            log.warning("node_registered", **asdict(registration))
