"""Says whose objects this agent takes care of now, and publishes the registrations for it.

`rlm.lifecycle.node_care` has the rules.
"""

import asyncio
from collections.abc import Callable, Collection

import structlog

from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.metadata_publisher import MetadataPublisher
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher
from plugin.wall_clock import Clocks
from rlm.lifecycle.node_care import NodeCare, NodeRegistration

log = structlog.get_logger(__name__)


class StoreRegistrations:
    """Implements `rlm.lifecycle.node_care.Registrations` with a metadata store."""

    def __init__(self, store: RemoteWalMetadataStore, agents: Callable[[], Collection[int]]) -> None:
        """`agents` returns the brokers whose agents have ever registered in the settings topic."""
        self._store = store
        self._agents = agents

    def registration_of(self, broker_id: int, /) -> NodeRegistration | None:
        """Return the last registration for this broker's objects."""
        known = self._store.registration_of(broker_id)
        if known is None:
            return None
        return NodeRegistration(known.broker_id, known.incarnation, known.caretaker_broker_id)

    def broker_ids(self) -> Collection[int]:
        """Return every broker whose agent has ever run."""
        return self._agents()


def publish_registration(
    publisher: MetadataPublisher[RemoteWalNodeRegistration], registration: NodeRegistration, now_ms: int
) -> None:
    """Publish a registration. Raises PublicationBacklogFullError."""
    publisher.publish(RemoteWalNodeRegistration(*registration, now_ms))


class Caretaking:
    """Updated in the event loop; any thread may call `brokers`."""

    def __init__(
        self,
        care: NodeCare,
        publisher: RemoteWalMetadataPublisher,
        clocks: Clocks,
        unpublished_max_s: float,
        may_delete: Callable[[], bool] = lambda: True,
    ) -> None:
        """No objects are in care while metadata has waited for publication longer than `unpublished_max_s`.

        Nor are any while something else speaks against deleting (`may_delete` is False).
        """
        self._may_delete = may_delete
        self._care = care
        self._publisher = publisher
        self._clocks = clocks
        self._unpublished_max_s = unpublished_max_s
        self.cluster_seen = asyncio.Event()

    def brokers(self) -> frozenset[int]:
        """Return the brokers whose objects this agent may delete now."""
        if (
            not self.cluster_seen.is_set()
            or self._care.is_fenced()
            or not self._may_delete()
            or self._publisher.oldest_pending_age_s(self._clocks.monotonic_s()) > self._unpublished_max_s
        ):
            return frozenset()
        return self._care.brokers_in_care()

    def seen(self, living: Collection[int], now_ms: int) -> None:
        """Record the brokers of a complete answer of the cluster, and publish the registrations that are due."""
        self.cluster_seen.set()
        for registration in self._care.registrations_due(living, now_ms):
            try:
                publish_registration(self._publisher, registration, now_ms)
            except PublicationBacklogFullError:
                continue  # it stays due until it is seen
            log.warning("node_registered", **registration._asdict())
