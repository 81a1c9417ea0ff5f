"""Tracks the other agents whose protocol version differs from ours, by their last hello.

Nothing is linked between two versions. So during a rolling upgrade bytes may go inline for long without any failure;
this makes it visible.
"""

import structlog
from prometheus_client import CollectorRegistry, Gauge

from replication.wire.peer_protocol import Hello

log = structlog.get_logger(__name__)


class PeerVersions:
    """Updated in the event loop, once for each connection; any thread may read."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._others: dict[int, int] = {}
        gauge = Gauge(
            "remote_wal_peers_of_another_version",
            "Other agents of another protocol version: all between them and this one goes inline",
            registry=registry,
        )
        gauge.set_function(lambda: len(self._others))

    @property
    def others(self) -> dict[int, int]:
        """The versions that differ from this agent's own, by broker id, ascending."""
        return dict(sorted(self._others.copy().items()))

    def heard(self, own: Hello, peer: Hello) -> None:
        """Record the hello of another known broker's agent."""
        if peer.version == own.version:
            if self._others.pop(peer.broker_id, None) is not None:
                log.info("peer_of_this_version", broker=peer.broker_id, version=peer.version)
        elif self._others.get(peer.broker_id) != peer.version:
            self._others[peer.broker_id] = peer.version
            log.warning("peer_of_another_version", broker=peer.broker_id, version=peer.version, own=own.version)

    def left(self, broker_id: int) -> None:
        """Forget a broker that has left."""
        self._others.pop(broker_id, None)
