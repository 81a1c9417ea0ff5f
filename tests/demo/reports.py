"""A report with figures that are easy to check by hand."""

from demo.measurement import LINKED
from demo.plan import WAYS
from demo.report import (
    DollarsPerGb,
    FaultSeen,
    ProducerRun,
    Records,
    Replicas,
    Report,
    Traffic,
    ZoneBytes,
)
from local_cluster.kafka_tools import ProducerPerformance
from local_cluster.object_store.store_spec import OwnStore

TRAFFIC = Traffic(
    traffic_seconds=10.0,
    produced_bytes=1_000_000_000,
    zone_bytes=ZoneBytes(with_links=10_000_000, stock=2_000_000_000, metadata=1000),
    linked_bytes=1_900_000_000,
    inline_bytes=100_000_000,
    packed_bytes={"before": 90_000_000, "after": 18_000_000},
    objects=1000,
    requests={"put": 1001, "get": 2000},
    request_bytes={"put": 1_000_000_000, "get": 1_900_000_000},
    cost_per_gb=DollarsPerGb(0.0058, 0.0056, 0.0002, 0.04),
    stages_ms={"uploaded": {"p50": 5.5, "p99": 9.0, "count": 1000.0}},
)
MOVED = {LINKED: 39_600_000, "held_up": 300_000, "look": 100_000}
RECORDS = Records(
    sent=1000,
    acknowledged=950,
    consumed=950,
    aborted=50,
    lost=0,
    lost_acks_1=0,
    reordered=0,
    duplicates=0,
    altered=0,
    aborted_but_read=0,
    foreign=0,
)
FAULTS = (
    FaultSeen(
        "leader_killed",
        "broker 1",
        30.0,
        20.0,
        {
            "new_leader": 2,
            "new_leader_after_s": 9.1,
            "produce_resumed_after_s": 9.4,
            "all_in_sync_after_s": 20.0,
            "linked_bytes": 1,
            "inline_bytes": 2,
        },
    ),
    FaultSeen(
        "store_outage",
        "requests fail",
        55.0,
        8.0,
        {
            "longest_acknowledgement_s": 1.2,
            "linked_bytes": 0,
            "inline_bytes": 3_000_000,
            "links_again_after_s": 0.4,
            "uploads_caught_up_after_s": 0.8,
            "upload_failures": {"input_output": 3},
            "faults": {},
        },
    ),
    FaultSeen(
        "agent_killed",
        "agent of broker 2",
        70.0,
        3.0,
        {"ready_again_after_s": 2.0, "longest_acknowledgement_s": 2.2, "linked_bytes": 1, "inline_bytes": 2},
    ),
)


def report(records: Records = RECORDS, replicas: Replicas | None = None) -> Report:
    """All promises hold unless told otherwise."""
    performance = ProducerPerformance(1000, 2000.0, 1.9, 5.0, 50.0, 4.0, 9.0, 20.0, 40.0)
    return Report(
        store=OwnStore.LOCAL,
        kafka_version="4.3.0",
        total_s=180.0,
        load_s=120.0,
        records=records,
        replicas=replicas or Replicas(10, 1_000_000_000),
        whole=TRAFFIC,
        phases={"paced": TRAFFIC, "saturated": TRAFFIC},
        producers=tuple(ProducerRun("paced", way.name, performance, MOVED) for way in WAYS),
        faults=FAULTS,
        fault_counters={"peer_unreachable": 2},
    )
