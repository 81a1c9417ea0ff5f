"""Objects go after the WAL's own retention, though their topics are kept for a week; who is behind is waited for."""

from collections.abc import Iterator

import pytest

from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import LINKED
from local_cluster.polling import wait_until
from metadata_topic.records.records import PublishedSegment
from metadata_topic.records.states import DELETED, FINISHED
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.wall_clock import wall_ms
from tests.cluster.agent_views import read_metrics
from tests.cluster.conftest import cluster_of
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.replica_moves import wait_for_isr
from tests.cluster.script import PATIENCE_S, PLAIN, Script
from tests.cluster.stored_log import followed_metadata

LEADER, OTHER, FOLLOWER = 1, 2, 3
RETENTION_MS, LAGGING_MAX_MS = 5_000, 30_000
AGENTS = {
    "remote.wal.retention.ms": str(RETENTION_MS),
    **quick(lagging_max_ms=LAGGING_MAX_MS, expiration_interval_s=0.2),
    **quick(delete_grace_times=0.03, cluster_interval_s=0.5),
}


cluster = cluster_of(lambda _: ClusterSettings(QuickAgents(overrides=AGENTS)))


@pytest.fixture
def store(life: Script) -> Iterator[RemoteWalMetadataStore]:
    with followed_metadata(life.cluster) as store:
        yield store


def test_objects_go_long_before_their_topic_does_and_wait_for_a_replica_up_to_the_bound(
    life: Script, store: RemoteWalMetadataStore
) -> None:
    # objects go under load -> broker 3 dies: they stay, up to the bound -> they go all the same -> 3 comes back
    cluster = life.cluster
    cluster.admin.create_topic(life.topic, assignment=[[LEADER, OTHER, FOLLOWER], [OTHER, LEADER, FOLLOWER]])
    life.link_topic(LINKED)
    life.produce(PLAIN)
    life.expect_links_to_be_used()
    wait_until(lambda: store.count_by_state()[DELETED].segments > 10, "objects go under load", PATIENCE_S)

    cluster.broker(FOLLOWER).kill()
    wait_for_isr(cluster.admin, life.topic, [LEADER, OTHER], timeout_s=PATIENCE_S)
    wait_until(lambda: held_partitions(cluster) == 2, "both partitions are held", PATIENCE_S)
    # Not one whose deletion may have begun before the broker died, and is told of late.
    since_ms = wall_ms()
    held = wait_until(lambda: first_since(store, since_ms), "an object is written after that", PATIENCE_S)
    wait_until(lambda: wall_ms() - written_ms(held) > 3 * RETENTION_MS, "it is old", PATIENCE_S)
    assert store.state_of(held.combined_segment_id) is FINISHED
    wait_until(lambda: store.state_of(held.combined_segment_id) is DELETED, "it waits no longer than that", PATIENCE_S)
    assert wall_ms() - written_ms(held) >= LAGGING_MAX_MS

    cluster.start_broker(FOLLOWER)
    life.expect_promises()
    wait_until(lambda: held_partitions(cluster) == 0, "nobody is waited for", PATIENCE_S)
    wait_until(lambda: not list(store.published_segments(FINISHED)), "all has gone", PATIENCE_S)


def written_ms(segment: PublishedSegment) -> int:
    return segment.event_timestamp_ms


def first_since(store: RemoteWalMetadataStore, since_ms: int) -> PublishedSegment | None:
    """The first object that was written then or later, and is not to be deleted."""
    later = [one for one in store.published_segments(FINISHED) if written_ms(one) >= since_ms]
    return min(later, key=written_ms, default=None)


def held_partitions(cluster: LocalCluster) -> float:
    return min(read_metrics(cluster, broker_id)["remote_wal_held_partitions", ()] for broker_id in (LEADER, OTHER))
