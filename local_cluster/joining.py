"""Adds a broker to a running local cluster, with an agent if the others have agents."""

from pathlib import Path

from jvm.ivy import Progress
from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import START_TIMEOUT_S, LocalCluster
from local_cluster.layout import LayoutError, save_layout

_PLAIN = "REPLICATION:PLAINTEXT"


def with_joined_broker(
    directory: Path,
    settings: ClusterSettings,
    progress: Progress | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> LocalCluster:
    """Return the cluster of that directory with one more broker, with the highest id; the others are not restarted.

    The new broker is no controller. Processes that are down are started as well; `settings` are those of the others.
    Raises LayoutError if nothing was changed, NoFreePortsError, and the errors of `LocalCluster.start`.
    """
    there = LocalCluster.open(directory)
    first = there.files.properties(there.broker_ids[0])
    if _PLAIN not in first["listener.security.protocol.map"] or settings.inter_broker is not None:
        raise LayoutError("no broker can join those that have logins or certificates: they are made for all at once")
    if settings.hosts is not None or "remote.wal.gateway.enable" in first:
        raise LayoutError("no broker can join those that have hosts, or ports for zones, of their own")
    if there.files.has_agents is not (settings.agents is not None):
        raise LayoutError(f"the brokers there run {'with' if there.files.has_agents else 'without'} agents")
    save_layout(there.layout.with_another_broker())
    joined = LocalCluster.open(directory, settings=settings, progress=progress)
    joined.start(timeout_s)
    return joined
