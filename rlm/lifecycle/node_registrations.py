"""The metadata store's knowledge of agents' registrations, as the life cycle asks for it."""

from collections.abc import Callable, Collection

from metadata_topic.records.metadata_publisher import MetadataPublisher
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.store.store import RemoteWalMetadataStore
from rlm.lifecycle.node_care import NodeRegistration


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
