"""A bucket for each zone: a zone goes with its broker, its agent and its bucket, and takes nothing that others need.

az1: broker 1, bucket az1-wal       az2: broker 2, bucket az2-wal       az3: broker 3, bucket az3-wal
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.exit_code import ExitCode
from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.object_store.store_spec import S3Store
from local_cluster.polling import wait_until
from metadata_topic.records.records import PublishedSegment
from metadata_topic.records.states import FINISHED
from plugin.format.bucket_copies import NamedCopies, bucket_id
from plugin.segment_metadata import CombinedSegmentId
from recovery.metadata.metadata_notes import read_metadata
from tests.cluster.agent_views import RECORD_BYTES, AgentCounters
from tests.cluster.conftest import IMPATIENT
from tests.cluster.recovery_commands import run_command
from tests.cluster.replica_moves import move_leader
from tests.cluster.script import PATIENCE_S, PLAIN, ZSTD, Script
from tests.cluster.test_catch_up import expect_identical, produce_and_upload
from tests.faulty_store import Fault, FaultyFront, FaultyServer

BUCKETS = {zone: f"{zone}-wal" for zone in ("az1", "az2", "az3")}
NAMES = {bucket_id(name): name for name in BUCKETS.values()}
BAD = {"lost_object", "unreachable_bucket", "unreadable_object", "wrong_bytes", "copies_differ"}
"""Of what `verify` may find."""
AGENTS = {
    "remote.wal.buckets": ",".join(f"{zone}={name}" for zone, name in BUCKETS.items()),
    "remote.wal.orphans.interval.ms": "2000",
    "remote.wal.uncommitted.ttl.ms": "20000",
    "remote.wal.node.takeover.ms": "3000",
    "remote.wal.hydration.timeout.ms": "10000",  # a look-alike store in Python, on a machine with other work
}


@pytest.fixture
def store() -> Iterator[FaultyServer]:
    with FaultyServer(FaultyFront(0.003, 0.003), list(BUCKETS.values())) as server:
        yield server


@pytest.fixture
def agents(request: pytest.FixtureRequest) -> dict[str, str]:
    """The agents' settings; with `copies` in the test's parameters, so many of each object."""
    return AGENTS | getattr(request, "param", {})


@pytest.fixture
def cluster(
    store: FaultyServer, monkeypatch: pytest.MonkeyPatch, make_cluster: object, agents: dict[str, str]
) -> LocalCluster:
    spec = S3Store(store.endpoint_url, BUCKETS["az1"])
    for name, value in spec.environment().items():
        monkeypatch.setenv(name, value)
    assert callable(make_cluster)
    made = make_cluster(ClusterSettings(AgentsMode(spec, agents), IMPATIENT))
    assert isinstance(made, LocalCluster)
    return made


def finished_segments(cluster: LocalCluster) -> list[PublishedSegment]:
    """What the metadata topic tells of as finished."""
    # The store is a thread of this process, and its listings grow with the objects: on a slow machine they take most.
    noted, _ = read_metadata(KafkaClientConfig(cluster.bootstrap_servers), 4 * PATIENCE_S)
    return list(noted.store.published_segments(FINISHED))


def finished(cluster: LocalCluster) -> dict[CombinedSegmentId, str]:
    """The buckets of the finished objects."""
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


def taken(cluster: LocalCluster, writer: int) -> list[list[str]]:
    """The buckets that took each finished object of a broker, in the order of the objects."""
    segments = sorted(finished_segments(cluster), key=lambda known: known.combined_segment_id)
    return [
        [NAMES[one] for one in NamedCopies.decode(known.custom_metadata).taken]
        for known in segments
        if known.combined_segment_id.broker_id == writer
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("agents", [{"remote.wal.bucket.copies": "2"}], indirect=True)
@pytest.mark.thorough
def test_with_copies_a_bucket_that_is_lost_takes_no_object_with_it(
    cluster: LocalCluster, store: FaultyServer, topic: str, tmp_path: Path
) -> None:
    # broker 2 leads, 3 is down -> what is uploaded is in two buckets -> 2's bucket is lost -> 3 comes back, and reads
    # what it missed by links to the copies; what is new is in one bucket, and linked; all of it can be restored
    # -> the bucket is back: what is new has copies again
    own, other = BUCKETS["az2"], BUCKETS["az3"]
    with Script(cluster, topic) as script:
        script.create_topic(assignment=[[2, 1, 3]])
        cluster.broker(3).kill()
        produce_and_upload(script, 10_000, acks="1")
        before = taken(cluster, 2)
        assert before
        assert all(buckets == [own, other] for buckets in before)

        store.faults.add(Fault("error", path_part=own))
        counters = AgentCounters(cluster)
        cluster.start_broker(3)
        cluster.admin.wait_for_full_isr(topic, timeout_s=PATIENCE_S)
        assert counters.growth(RECORD_BYTES, path="linked") >= 9_000_000
        assert counters.growth("remote_wal_peer_bytes_total", role="leader") <= 1_000_000
        counters = AgentCounters(cluster)
        produce_and_upload(script, 2_000, acks="all")
        assert counters.growth(RECORD_BYTES, path="linked") > 0
        assert counters.growth("remote_wal_store_missed_copies_total", bucket=own) > 0
        assert taken(cluster, 2)[-1] == [other]

        told = run_command(
            cluster, "verify", 1, "--topic", topic, "--drill", str(tmp_path / "drill"), exit_code=ExitCode.FINDINGS
        )
        assert {finding["kind"] for finding in told["findings"]} == {"unreachable_bucket"}, told["findings"]
        [restored] = told["drill"]
        assert (restored["end_offset"], restored["fault"]) == (12_000, "")

        store.faults.clear()

        def has_tried_it() -> bool:
            cluster.tools.produce(topic, records=10, record_bytes=1000, config={"acks": "1"})
            return "bucket_in_step" in script.agent_log(2)

        wait_until(has_tried_it, "the bucket takes copies again", PATIENCE_S)
        produce_and_upload(script, 1_000, acks="all")
        assert taken(cluster, 2)[-1] == [own, other]
        expect_identical(script, 13_000)
