"""Which other agents speak another protocol version than this one, as each said in its last hello.

Nothing is linked between two versions, so that while a release is brought in bytes may go inline for long, and nothing
fails. This is how it is told.
"""

import structlog
from prometheus_client import CollectorRegistry, Gauge

from replication.wire.peer_protocol import Hello

log = structlog.get_logger(__name__)


class PeerVersions:
    """Told in the event loop, once for each connection; any thread may ask."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._others: dict[int, int] = {}
        gauge = Gauge(
            "remote_wal_peers_of_another_version",
            "Other agents whose link version is another one: all between them and this one goes inline",
            registry=registry,
        )
        gauge.set_function(lambda: len(self._others))

    @property
    def others(self) -> dict[int, int]:
        """The versions that are not this agent's own, by broker id, ascending."""
        return dict(sorted(self._others.copy().items()))

    def heard(self, own: Hello, peer: Hello) -> None:
        """Another known broker's agent said hello."""
        if peer.version == own.version:
            if self._others.pop(peer.broker_id, None) is not None:
                log.info("peer_of_this_version", broker=peer.broker_id, version=peer.version)
        elif self._others.get(peer.broker_id) != peer.version:
            self._others[peer.broker_id] = peer.version
            log.warning("peer_of_another_version", broker=peer.broker_id, version=peer.version, own=own.version)

    def left(self, broker_id: int) -> None:
        """That broker is gone."""
        self._others.pop(broker_id, None)
