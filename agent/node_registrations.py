"""The metadata store's knowledge of agents' registrations, as the life cycle asks for it."""

from collections.abc import Callable, Collection
from typing import Any, cast

import metadata_topic.records
from metadata_topic.store import RemoteWalMetadataStore
from plugin.segment_metadata import CombinedSegmentId
from rlm.expiration_task import LifecyclePublisher
from rlm.node_care import NodeRegistration


class StoreRegistrations:
    """`rlm.node_care.Registrations` and `rlm.orphans.Fencing` on a metadata store.

    A store that knows of no registrations leaves every agent with its own broker's objects.
    """

    def __init__(self, store: RemoteWalMetadataStore, agents: Callable[[], Collection[int]]) -> None:
        """`agents` tells the brokers whose agents have ever registered in the settings topic."""
        self._store = cast(Any, store)
        self._agents = agents

    def registration_of(self, broker_id: int, /) -> NodeRegistration | None:
        """The last one for this broker's objects."""
        if not hasattr(self._store, "registration_of"):
            return None
        known = self._store.registration_of(broker_id)
        if known is None:
            return None
        return NodeRegistration(known.broker_id, known.incarnation, known.caretaker_broker_id)

    def broker_ids(self) -> Collection[int]:
        """Every broker whose agent has ever run."""
        return self._agents()

    def is_fenced(self, combined_segment_id: CombinedSegmentId, /) -> bool:
        """Whether the segment's metadata was refused."""
        return hasattr(self._store, "is_fenced") and bool(self._store.is_fenced(combined_segment_id))


def publish_registration(publisher: LifecyclePublisher, registration: NodeRegistration, now_ms: int) -> None:
    """Raises PublicationBacklogFullError."""
    record_type = getattr(metadata_topic.records, "RemoteWalNodeRegistration", None)
    if record_type is not None:
        publisher.publish(record_type(*registration, now_ms))
