"""The object store refuses, hangs, cuts its answers or alters bytes. The agents may cost money then, never data or ISR.

Every fault strikes all requests of its method until it is taken away; then links are used again.
"""

from collections.abc import Iterator

import pytest

from cli.exit_code import ExitCode
from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.object_store.store_spec import S3Store
from local_cluster.polling import wait_until
from local_cluster.workload.ledger import ProducerPlan
from metadata_topic.records.declared_gaps import GapReason
from metadata_topic.records.offset_ranges import ranges_missing
from tests.cluster.agent_views import FAULTS, UPLOAD_FAILURES
from tests.cluster.conftest import IMPATIENT
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.recovery_commands import planned_recovery
from tests.cluster.script import PATIENCE_S, PLAIN, ZSTD, Script
from tests.cluster.stored_log import stored_log
from tests.faulty_store import DEFAULT_BUCKET, Fault, FaultyFront, FaultyServer

pytestmark = pytest.mark.whole_machine

THOROUGH = pytest.mark.thorough
STORE_LATENCY_S = 0.003
SMALL = {
    # An outage of seconds is to be what one of hours is.
    **quick(queue_bytes=256 * 1024),
    "remote.wal.log.manager.combiner.task.upload.bytes": str(128 * 1024),
    "remote.wal.log.manager.backlog.max.bytes.per.second": str(2 * 1024 * 1024),
}
SHORT_LIVED = {
    "segment.bytes": str(1024 * 1024), "retention.bytes": str(8 * 1024 * 1024), "file.delete.delay.ms": "500"
}  # fmt: skip
FAST = ProducerPlan("fast", payload_bytes=10_000, records_per_s=150)


@pytest.fixture(scope="module")
def store() -> Iterator[FaultyServer]:
    front = FaultyFront(put_latency=STORE_LATENCY_S, get_latency=STORE_LATENCY_S)
    with FaultyServer(front, [DEFAULT_BUCKET]) as server:
        yield server


@pytest.fixture(scope="module")
def s3_cluster(store: FaultyServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    agents = QuickAgents(S3Store(store.endpoint_url, DEFAULT_BUCKET), SMALL)
    directory = tmp_path_factory.mktemp("s3") / "cluster"
    brokers = {**IMPATIENT, "log.retention.check.interval.ms": "500"}
    with LocalCluster.create(directory, settings=ClusterSettings(agents, brokers)) as cluster:
        cluster.start()
        yield cluster


@pytest.fixture
def s3_script(s3_cluster: LocalCluster, store: FaultyServer, topic: str) -> Iterator[Script]:
    with Script(s3_cluster, topic) as script:
        yield script
    store.faults.clear()


def play(script: Script, store: FaultyServer | None, fault: Fault, metric: str, reason: str) -> None:
    # links -> the fault sets in: counted, bytes go inline, all replicas stay in sync -> it ends -> links again
    script.create_topic(partitions=3)
    script.produce(PLAIN, ZSTD)
    script.expect_records_to_flow()
    script.expect_links_to_be_used()
    with script.without_a_shrinking_isr():
        if store is not None:
            store.faults.add(fault)
        script.expect_growth(metric, reason=reason)
        script.expect_inline_bytes()
        script.expect_records_to_flow()
        if store is not None:
            store.faults.clear()
    script.expect_links_to_be_used()
    script.expect_promises()


@pytest.mark.parametrize(
    ("fault", "metric", "reason"),
    [
        pytest.param(Fault("error", ("PUT",)), UPLOAD_FAILURES, "throttled", id="put-503", marks=THOROUGH),
        pytest.param(Fault("hang", ("PUT",)), UPLOAD_FAILURES, "timeout", id="put-hangs"),
        pytest.param(Fault("error", ("GET",)), FAULTS, "inline_requested_timeout", id="get-503", marks=THOROUGH),
        pytest.param(Fault("hang", ("GET",)), FAULTS, "inline_requested_timeout", id="get-hangs"),
        pytest.param(Fault("cut_body", ("GET",)), FAULTS, "inline_requested_corrupt", id="get-is-cut", marks=THOROUGH),
        pytest.param(Fault("alter_body", ("GET",)), FAULTS, "inline_requested_corrupt", id="get-is-altered"),
    ],
)
def test_a_fault_of_the_store_costs_no_data_and_no_isr(
    s3_script: Script, store: FaultyServer, fault: Fault, metric: str, reason: str
) -> None:
    play(s3_script, store, fault, metric, reason)


@pytest.mark.thorough
def test_control_without_a_store(stock_cluster: LocalCluster, topic: str) -> None:
    with Script(stock_cluster, topic) as script:
        play(script, None, Fault("error"), FAULTS, "none")


@pytest.mark.gate
def test_a_lost_answer_to_an_upload_is_recognised_as_success(s3_script: Script, store: FaultyServer) -> None:
    # stored, but the answer is cut: the same key again, 412, HEAD says that the bytes are ours
    s3_script.create_topic(partitions=3)
    s3_script.produce(PLAIN, ZSTD)
    s3_script.expect_links_to_be_used()
    with s3_script.without_a_shrinking_isr():
        store.faults.add(Fault("lose_response", ("PUT",), times=6))
        s3_script.expect_growth("remote_wal_store_requests_total", operation="head")
        s3_script.expect_links_to_be_used()
    assert s3_script.counters.growth(UPLOAD_FAILURES) == 0
    s3_script.expect_promises()


def test_a_store_that_is_away_for_longer_than_the_log_is_kept(s3_script: Script, store: FaultyServer) -> None:
    # links -> away: inline, the queue is full, retention deletes what was never stored -> back: links of what is new
    # at once, what was passed over beside them -> the log is stored to its last offset, what is gone is a declared gap
    script, cluster = s3_script, s3_script.cluster
    cluster.admin.create_topic(script.topic, assignment=[[1, 2, 3]], config=SHORT_LIVED)
    script.link_topic()
    script.produce(FAST)
    script.expect_links_to_be_used()
    with stored_log(script) as log:
        with script.without_a_shrinking_isr():
            store.faults.add(Fault("error", ("PUT",)))
            # Before it is gone, with the log that had it.
            stored_to = wait_until(lambda: log.ranges(1), "something is told as stored", PATIENCE_S)[-1][1]
            script.expect_growth(UPLOAD_FAILURES, reason="throttled")
            wait_until(lambda: log.start_offset(1) > stored_to + 100, "more is gone than was stored", PATIENCE_S)
            script.expect_records_to_flow()
            store.faults.clear()
            script.expect_links_to_be_used()
        assert "log_passed_over" in script.agent_log(1)
        wait_until(lambda: "log_caught_up" in script.agent_log(1), "what was passed over is stored", PATIENCE_S)
        script.expect_promises()
        end = log.end_offset(1)
        wait_until(
            lambda: not ranges_missing(log.ranges(1), (log.start_offset(1), end)),
            "all of the log is stored",
            PATIENCE_S,
        )
        lost = [gap for gap in log.store.declared_gaps(log.partition) if gap.reason is GapReason.RETENTION]
        assert all(stored_to <= gap.from_offset < gap.to_offset <= log.start_offset(1) for gap in lost)
        assert lost
    [partition] = [one for one in script.partitions_of_agents() if one["partition"] == 0]
    assert (partition["backlog_offsets"], partition["uploaded_offset"]) == (0, end)
    # What lies before a gap is below the log's start; a recovery has it for as long as its objects are not deleted.
    planned = planned_recovery(cluster, 1, script.topic, exit_code=(0, ExitCode.DECLARED))
    assert planned["end_offset"] == end
