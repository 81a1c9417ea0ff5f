"""Whose objects this agent takes care of at this moment, and the registrations that say so. The rules are
`rlm.lifecycle.node_care`'s.
"""

import asyncio
from collections.abc import Callable, Collection

import structlog

from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.metadata_publisher import MetadataPublisher
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher
from rlm.lifecycle.node_care import NodeCare, NodeRegistration
from rlm.write_path.clocks import Clocks

log = structlog.get_logger(__name__)


class StoreRegistrations:
    """`rlm.lifecycle.node_care.Registrations` on a metadata store."""

    def __init__(self, store: RemoteWalMetadataStore, agents: Callable[[], Collection[int]]) -> None:
        """`agents` tells the brokers whose agents have ever registered in the settings topic."""
        self._store = store
        self._agents = agents

    def registration_of(self, broker_id: int, /) -> NodeRegistration | None:
        """The last one for this broker's objects."""
        known = self._store.registration_of(broker_id)
        if known is None:
            return None
        return NodeRegistration(known.broker_id, known.incarnation, known.caretaker_broker_id)

    def broker_ids(self) -> Collection[int]:
        """Every broker whose agent has ever run."""
        return self._agents()


def publish_registration(
    publisher: MetadataPublisher[RemoteWalNodeRegistration], registration: NodeRegistration, now_ms: int
) -> None:
    """Raises PublicationBacklogFullError."""
    publisher.publish(RemoteWalNodeRegistration(*registration, now_ms))


class Caretaking:
    """Told of the cluster in the event loop; `brokers` may be asked on any thread."""

    def __init__(
        self,
        care: NodeCare,
        publisher: RemoteWalMetadataPublisher,
        clocks: Clocks,
        unpublished_max_s: float,
        may_delete: Callable[[], bool] = lambda: True,
    ) -> None:
        """While metadata waits to be published for longer than `unpublished_max_s`, nobody's objects are in care; nor
        while something else speaks against deleting (not `may_delete`).
        """
        self._may_delete = may_delete
        self._care = care
        self._publisher = publisher
        self._clocks = clocks
        self._unpublished_max_s = unpublished_max_s
        self.cluster_seen = asyncio.Event()

    def brokers(self) -> frozenset[int]:
        """Whose objects may be deleted from here now."""
        if (
            not self.cluster_seen.is_set()
            or self._care.is_fenced()
            or not self._may_delete()
            or self._publisher.oldest_pending_age_s(self._clocks.monotonic_s()) > self._unpublished_max_s
        ):
            return frozenset()
        return self._care.brokers_in_care()

    def seen(self, living: Collection[int], now_ms: int) -> None:
        """These brokers are in the cluster, in an answer that is complete: register what is due."""
        self.cluster_seen.set()
        for registration in self._care.registrations_due(living, now_ms):
            try:
                publish_registration(self._publisher, registration, now_ms)
            except PublicationBacklogFullError:
                continue  # it is due until it is seen
            log.warning("node_registered", **registration._asdict())
