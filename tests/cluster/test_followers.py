"""What followers get: all that producers may send, of the right topic, by links or packed, and within quotas."""

import os
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from local_cluster.cluster import LocalCluster
from local_cluster.layout import ClusterLayout
from local_cluster.polling import wait_until
from local_cluster.workload.ledger import LedgerReport, ProducerPlan, ProducerReport, TransactionPlan
from local_cluster.workload.replica_comparison import compare_replicas
from tests.cluster.agent_views import (
    CPU_SECONDS,
    FAULTS,
    RECORD_BYTES,
    RESIDENT_BYTES,
    AgentCounters,
    describe,
    read_metrics,
)
from tests.cluster.replica_moves import begin_reassignment, wait_for_isr
from tests.cluster.script import PATIENCE_S, PLAIN, Script

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def transactional(report: LedgerReport) -> list[ProducerReport]:
    return [producer for producer in report.producers if producer.name.endswith("-transactions")]


@pytest.mark.gate
@pytest.mark.kafka_core
def test_every_codec_and_transactions_with_aborts(script: Script) -> None:
    script.create_topic(partitions=3)
    script.produce(
        *(ProducerPlan(codec, codec=codec, records_per_s=100) for codec in CODECS),
        *(
            ProducerPlan(f"{codec}-transactions", codec=codec, records_per_s=100, transaction=TransactionPlan(10, 3))
            for codec in CODECS
        ),
        ProducerPlan("large", payload_bytes=600_000, records_per_s=2),
        ProducerPlan("without-waiting", acks="1", records_per_s=100),
    )
    script.expect_records_to_flow(2000)
    wait_until(
        lambda: all(found.aborted > 0 for found in transactional(script.workload.report())), "aborts", PATIENCE_S
    )
    report = script.expect_promises()
    for producer in transactional(report):
        # Exactly what was committed is read.
        assert producer.consumed == producer.acknowledged, str(report)


@pytest.mark.gate
def test_objects_of_a_deleted_topic_are_never_served_to_its_successor(script: Script) -> None:
    # same name, same offsets, same sizes of records, uploads of the first one still under way; only the bytes differ
    plan = ProducerPlan("numbered", records_per_s=400)
    script.create_topic(assignment=[[1, 2, 3]])
    script.produce(plan, seed=1)
    script.expect_records_to_flow(600)
    script.expect_promises()
    script.switch_all("put-latency-ms", "300")
    script.recreate_topic(assignment=[[1, 2, 3]])
    script.clear_switches()
    script.produce(plan, seed=2)
    script.expect_records_to_flow(600)
    script.expect_promises()


LEADER, OTHER, FOLLOWER = 1, 2, 3

PEER_BYTES = "remote_wal_peer_bytes_total"
FOUND_BYTES = "remote_wal_catch_up_found_bytes_total"
RECORD_SIZE = 1000


@pytest.mark.gate
def test_a_follower_that_missed_much_reads_it_from_objects_of_an_earlier_leader(agent_script: Script) -> None:
    # 3's agent stands still -> 10 MB are produced (acks=all: 3 leaves the ISR, 2 has all) and uploaded -> the leader
    # dies, 2 is elected, which uploaded nothing -> 3's agent goes on
    script, cluster = agent_script, agent_script.cluster
    script.create_topic(assignment=[[LEADER, OTHER, FOLLOWER]])
    script.cut_off_follower(FOLLOWER)
    produce_and_upload(script, 10_000, acks="all")
    wait_for_isr(cluster.admin, script.topic, [LEADER, OTHER], timeout_s=PATIENCE_S)
    cluster.broker(LEADER).kill()
    cluster.admin.wait_for_leader(script.topic, expected=OTHER)
    wait_until(
        lambda: any(
            led["topic"] == script.topic and led["log_end_offset"] for led in describe(cluster, OTHER)["partitions"]
        ),
        "the agent of the new leader has taken the partition on",
        PATIENCE_S,
    )

    counters = AgentCounters(cluster)
    script.reconnect_follower(FOLLOWER)
    wait_for_isr(cluster.admin, script.topic, [OTHER, FOLLOWER], timeout_s=PATIENCE_S)
    # Beside another cluster on a full machine some reads come too late, and go inline.
    expect_caught_up_by_objects(counters, 10_000, share=0.5)
    cluster.start_broker(LEADER)
    cluster.admin.wait_for_full_isr(script.topic, timeout_s=PATIENCE_S)
    expect_identical(script, 10_000)


def produce_and_upload(script: Script, records: int, acks: str) -> None:
    """On return, objects hold all of it, and their metadata is published."""
    script.cluster.tools.produce(script.topic, records=records, record_bytes=RECORD_SIZE, config={"acks": acks})

    def stored() -> bool:
        known = [led for led in script.partitions_of_agents() if led["uploaded_offset"] == led["log_end_offset"]]
        is_published = not any(describe(script.cluster, broker_id)["metadata_pending"] for broker_id in (LEADER, OTHER))
        return is_published and sum(int(str(led["uploaded_offset"])) for led in known) >= records

    wait_until(stored, "what was produced is stored", PATIENCE_S)


def expect_caught_up_by_objects(counters: AgentCounters, records: int, share: float = 0.9) -> None:
    """At least this share of the record bytes was linked, as it was found again in objects."""
    missed_bytes = records * RECORD_SIZE
    faults = counters.grown_labels("remote_wal_faults_total", "reason")
    assert counters.growth(RECORD_BYTES, path="linked") >= share * missed_bytes, faults
    assert counters.growth(FOUND_BYTES) >= share * missed_bytes, faults
    assert counters.growth(PEER_BYTES, role="leader") <= (1 - share) * missed_bytes * 1.1, faults


def expect_identical(script: Script, records: int) -> None:
    """All replicas have the same bytes, as many as were produced."""
    comparison = compare_replicas(script.cluster, script.topic, PATIENCE_S)
    assert comparison.identical, str(comparison)
    assert comparison.compared_bytes >= records * RECORD_SIZE


NEW = 3
RATE = "leader.replication.throttled.rate"
BYTES_PER_S = 1_000_000
RECORDS, PAYLOAD_BYTES = 160, 50_000
AT_ONCE_BYTES = 4_194_304
"""replica.fetch.max.bytes of these clusters: so much the first answer may hold, as nothing counts against it yet."""


def test_a_leaders_quota_counts_the_records_that_travel_as_links_and_is_kept(agent_script: Script) -> None:
    # 1 leads 8 MB with 2, may send 1 MB/s to who is not in sync -> 3 is added -> it gets no more than that a second, by
    # links, though next to nothing crosses between the agents -> ISR 1,2,3
    cluster, topic = agent_script.cluster, agent_script.topic
    cluster.admin.create_topic(topic, assignment=[[LEADER, 2]], config={"leader.replication.throttled.replicas": "*"})
    agent_script.link_topic()
    size = write(cluster, topic)
    set_quota(cluster, str(BYTES_PER_S))
    try:
        counters = AgentCounters(cluster)
        seconds = add_replica(cluster, topic, size)
    finally:
        set_quota(cluster, None)
    assert seconds > (size - AT_ONCE_BYTES) / BYTES_PER_S / 2, "the quota was kept"
    assert counters.growth(RECORD_BYTES, path="linked") > size / 2
    assert counters.growth("remote_wal_peer_bytes_total", role="leader", direction="sent") < size / 2
    assert compare_replicas(cluster, topic, PATIENCE_S).identical


def write(cluster: LocalCluster, topic: str) -> int:
    """Records that no codec makes smaller; their bytes."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for _ in range(RECORDS):
        producer.produce(topic, os.urandom(PAYLOAD_BYTES))
    assert producer.flush(PATIENCE_S) == 0
    return RECORDS * PAYLOAD_BYTES


def set_quota(cluster: LocalCluster, bytes_per_s: str | None) -> None:
    change = AlterConfigOpType.DELETE if bytes_per_s is None else AlterConfigOpType.SET
    entry = ConfigEntry(RATE, bytes_per_s, incremental_operation=change)
    resource = ConfigResource(ResourceType.BROKER, str(LEADER), incremental_configs=[entry])
    for altered in cluster.admin.client.incremental_alter_configs([resource]).values():
        altered.result(PATIENCE_S)


def add_replica(cluster: LocalCluster, topic: str, size: int) -> float:
    """How long it took from the new replica's first byte to its last one."""
    begin_reassignment(cluster.admin, topic, {0: [LEADER, 2, NEW]})

    def held() -> int:
        directory = cluster.layout.partition_directory(NEW, topic, 0)
        return 0 if directory is None else sum(log.stat().st_size for log in directory.glob("*.log"))

    wait_until(lambda: held() > 0, "the new replica has something", PATIENCE_S, interval_s=0.02)
    began_s = time.monotonic()
    wait_until(lambda: held() >= size, "the new replica has all", PATIENCE_S)
    took_s = time.monotonic() - began_s
    wait_for_isr(cluster.admin, topic, [LEADER, 2, NEW])
    return took_s


VICTIM, ANOTHER = 1, 2
MIB = 1024 * 1024
GROWTH_BYTES = 24 * MIB
"""What the victim's memory may grow by with all these connections; each of the sizes claimed is far beyond it."""

NEGATIVE = struct.pack(">i", -1)
ZERO = struct.pack(">i", 0)
HUGE = struct.pack(">i", 2**31 - 1) + b"\0" * 1000
ABOVE_THE_LIMIT = struct.pack(">i", 101 * MIB) + b"\0" * 1000
UNFINISHED = struct.pack(">i", 99 * MIB) + b"\0" * 1000

Address = tuple[str, int]


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def fetch_request(topics: bytes) -> bytes:
    """Fetch v17 from a replica's fetcher, up to its topics. Source: Kafka's protocol, request header v2."""
    client_id = b"broker-2-fetcher-0"
    header = struct.pack(">hhih", 1, 17, 7, len(client_id)) + client_id + b"\0"
    return header + struct.pack(">iiibii", 500, 1, MIB, 0, 0, 0) + topics


ABSURD_COUNTS = framed(fetch_request(b"\xff\xff\xff\xff\x07" + b"\0" * 100))
ABSURD_VARINT = framed(fetch_request(b"\xff" * 100))


def peer_listener(layout: ClusterLayout) -> Address:
    host, _, port = layout.peer_address(VICTIM).rpartition(":")
    return host, int(port)


def replica_listener(layout: ClusterLayout) -> Address:
    """Where the victim poses as the other broker."""
    return layout.agent_replica_host(VICTIM), layout.replica_port(ANOTHER)


@contextmanager
def connected(address: Address, data: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        connection.sendall(data)
        yield connection


def expect_to_be_closed(address: Address, data: bytes) -> None:
    with connected(address, data) as connection:
        try:
            while connection.recv(65536):
                pass
        except ConnectionResetError:
            return


@pytest.mark.gate
def test_hostile_frames_close_their_connection_and_nothing_else(agent_script: Script) -> None:
    script = agent_script
    layout = script.cluster.layout
    script.create_topic(assignment=[[VICTIM, ANOTHER, 3]])
    script.produce(PLAIN)
    script.expect_links_to_be_used()
    counters = AgentCounters(script.cluster, [VICTIM])
    before = read_metrics(script.cluster, VICTIM)[RESIDENT_BYTES, ()]
    noise = random.Random(8)

    with script.without_a_shrinking_isr(), ExitStack() as held:
        # connections that say nothing, and frames that never end, stay open beside all the rest
        for _ in range(30):
            held.enter_context(connected(peer_listener(layout)))
        for _ in range(10):
            held.enter_context(connected(replica_listener(layout)))
            held.enter_context(connected(peer_listener(layout), UNFINISHED))
            held.enter_context(connected(replica_listener(layout), UNFINISHED))

        for address, side in ((peer_listener(layout), "peer"), (replica_listener(layout), "broker")):
            for frame, reason in (
                (NEGATIVE, "negative"),
                (ZERO, "zero"),
                (HUGE, "too_large"),
                (ABOVE_THE_LIMIT, "too_large"),
            ):
                seen = counters.growth(FAULTS, reason=f"{side}_frame_{reason}")
                expect_to_be_closed(address, frame)
                wait_until(
                    lambda: counters.growth(FAULTS, reason=f"{side}_frame_{reason}") > seen,  # noqa: B023
                    f"{side}_frame_{reason} is counted",
                    PATIENCE_S,
                )
        everywhere = AgentCounters(script.cluster)
        attacks = [
            ABSURD_COUNTS,
            ABSURD_VARINT,
            *(framed(noise.randbytes(noise.randrange(1, 3000))) for _ in range(20)),
        ]
        for frame in attacks:
            for address in (peer_listener(layout), replica_listener(layout)):
                expect_to_be_closed(address, frame)
        wait_until(
            lambda: sum(everywhere.grown_labels(FAULTS, "reason").values()) >= 2 * len(attacks),
            "each hostile frame is counted",
            PATIENCE_S,
        )
        wait_until(lambda: counters.growth(FAULTS, reason="peer_silent") >= 40, "silent peers are closed", PATIENCE_S)
        script.expect_records_to_flow()
        script.expect_links_to_be_used()
        grown = read_metrics(script.cluster, VICTIM)[RESIDENT_BYTES, ()] - before
    assert grown < GROWTH_BYTES, f"{grown / MIB:.1f} MiB"
    script.expect_promises()


MEASURED_S = 10.0
MOST_OF_A_CORE = 0.15
"""Only gross defects reach it: polling, a wake-up per partition."""


def test_idle_agents_of_many_partitions_are_idle(agent_script: Script) -> None:
    agent_script.create_topic(partitions=60)
    loads = {}
    counters = {
        broker_id: AgentCounters(agent_script.cluster, [broker_id]) for broker_id in agent_script.cluster.broker_ids
    }
    threading.Event().wait(MEASURED_S)  # a span to measure over, not a wait for anything
    for broker_id, counter in counters.items():
        loads[broker_id] = counter.growth(CPU_SECONDS) / MEASURED_S
    report = ", ".join(f"agent {broker_id} {load:.1%}" for broker_id, load in loads.items())
    sys.stdout.write(f"of a core: {report}\n")
    assert max(loads.values()) < MOST_OF_A_CORE, loads
