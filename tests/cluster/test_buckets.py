"""A bucket for each zone: a zone goes with its broker, its agent and its bucket, and takes nothing that others need.

az1: broker 1, bucket az1-wal       az2: broker 2, bucket az2-wal       az3: broker 3, bucket az3-wal
"""

from collections import Counter
from collections.abc import Iterator

import pytest

from cli.exit_code import ExitCode
from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.object_store.store_spec import S3Store
from local_cluster.polling import wait_until
from metadata_topic.records.records import PublishedSegment
from metadata_topic.records.states import FINISHED
from metadata_topic.topic.topic_session import read_metadata
from plugin.format.bucket_id import bucket_id
from plugin.segment_metadata import CombinedSegmentId
from tests.cluster.conftest import IMPATIENT
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.recovery_commands import run_command
from tests.cluster.replica_moves import move_leader
from tests.cluster.script import PATIENCE_S, PLAIN, ZSTD, Script
from tests.faulty_store import Fault, FaultyFront, FaultyServer

BUCKETS = {zone: f"{zone}-wal" for zone in ("az1", "az2", "az3")}
NAMES = {bucket_id(name): name for name in BUCKETS.values()}
BAD = {"lost_object", "unreachable_bucket", "unreadable_object", "wrong_bytes", "copies_differ"}
"""Of what `verify` may find."""
AGENTS = {
    "remote.wal.buckets": ",".join(f"{zone}={name}" for zone, name in BUCKETS.items()),
    "remote.wal.uncommitted.ttl.ms": "20000",
    **quick(orphans_interval_s=2, takeover_ms=3000),
    "remote.wal.hydration.timeout.ms": "10000",  # a look-alike store in Python, on a machine with other work
}


@pytest.fixture
def store() -> Iterator[FaultyServer]:
    with FaultyServer(FaultyFront(0.003, 0.003), list(BUCKETS.values())) as server:
        yield server


@pytest.fixture
def cluster(store: FaultyServer, monkeypatch: pytest.MonkeyPatch, make_cluster: object) -> LocalCluster:
    spec = S3Store(store.endpoint_url, BUCKETS["az1"])
    for name, value in spec.environment().items():
        monkeypatch.setenv(name, value)
    assert callable(make_cluster)
    made = make_cluster(ClusterSettings(QuickAgents(spec, AGENTS), IMPATIENT))
    assert isinstance(made, LocalCluster)
    return made


def finished_segments(cluster: LocalCluster) -> list[PublishedSegment]:
    """What the metadata topic tells of as finished."""
    # The store is a thread of this process, and its listings grow with the objects: on a slow machine they take most.
    store, _ = read_metadata(KafkaClientConfig(cluster.bootstrap_servers))
    return list(store.published_segments(FINISHED))


def finished(cluster: LocalCluster) -> dict[CombinedSegmentId, str]:
    return {known.combined_segment_id: NAMES[known.custom_metadata] for known in finished_segments(cluster)}


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_a_zone_goes_with_its_broker_and_its_bucket_and_comes_back(
    cluster: LocalCluster, store: FaultyServer, topic: str
) -> None:
    # each broker leads a partition -> zone az3 is gone, bucket and all -> the others go on with links, nothing of it
    # is healed away, a recovery says what it cannot reach -> az3 is back: links to it, all replicas are equal
    with Script(cluster, topic) as script:
        script.create_topic(assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        script.produce(PLAIN, ZSTD)
        script.expect_records_to_flow()
        script.expect_links_to_be_used()
        wait_until(lambda: set(finished(cluster).values()) == set(NAMES.values()), "all buckets are used", PATIENCE_S)
        for segment_id, name in finished(cluster).items():
            assert name == BUCKETS[f"az{segment_id.broker_id}"]

        store.faults.add(Fault("error", path_part=BUCKETS["az3"]))
        cluster.agent(3).kill()
        cluster.broker(3).kill()
        wait_until(
            lambda: all(state.leader in (1, 2) for state in cluster.admin.partitions(topic)),
            "the others lead",
            PATIENCE_S,
        )
        before = {one for one, name in finished(cluster).items() if name == BUCKETS["az3"]}
        assert before
        script.expect_links_to_be_used()
        script.expect_records_to_flow()
        wait_until(
            lambda: any("orphans_not_searched_in_all_buckets" in script.agent_log(one) for one in (1, 2)),
            "an agent has looked for orphans without the bucket",
            PATIENCE_S,
        )
        script.expect_links_to_be_used()
        assert before <= set(finished(cluster))
        told = run_command(cluster, "recover", 1, "--dry-run", exit_code=ExitCode.FINDINGS)
        assert told["unanswered_buckets"] == [BUCKETS["az3"]]
        assert (told["lost_objects"], told["unreachable_objects"] >= len(before)) == ([], True)

        store.faults.clear()
        cluster.start_broker(3, wait=False)
        cluster.start_agent(3, wait=False)
        cluster.wait_until_ready()
        cluster.admin.wait_for_full_isr(topic, timeout_s=PATIENCE_S)
        move_leader(cluster.admin, topic, 2, 3)
        written = Counter(finished(cluster).values())
        wait_until(
            lambda: Counter(finished(cluster).values())[BUCKETS["az3"]] > written[BUCKETS["az3"]],
            "the bucket of az3 is written to again",
            PATIENCE_S,
        )
        script.expect_links_to_be_used()
        script.expect_promises()
        assert before <= set(finished(cluster))
        # What went inline may be on the brokers alone; what is stored is there, in all buckets, and right.
        verified = run_command(
            cluster, "verify", 1, "--topic", topic, exit_code=(0, ExitCode.FINDINGS, ExitCode.DECLARED)
        )
        assert verified["objects_read"] >= len(before)
        assert not BAD & {finding["kind"] for finding in verified["findings"]}, verified["findings"]
