"""A client of a cluster of pods, as a process of its own: names of pods are known in its network namespace alone.

    python -m tests.cluster.pod_client BOOTSTRAP_SERVERS TOPIC

It makes the topic, has it linked, and lets numbered records flow. To each line of standard input it answers with one of
JSON: `report` and, at the end, `finish` tell what became of the records; `replicas` tells who has how many replicas.
"""

import json
import sys
from collections import Counter

from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.cluster_admin import LINKED_AND_KEPT, ClusterAdmin, set_topics
from local_cluster.workload.ledger import LedgerReport, LedgerWorkload, ProducerPlan
from recovery.reassignment.admin import ReassignmentAdmin
from tests.cluster.script import PATIENCE_S

PLANS = (ProducerPlan("plain", records_per_s=200), ProducerPlan("zstd", codec="zstd", records_per_s=200))


def told(report: LedgerReport) -> dict[str, object]:
    return {key: getattr(report, key) for key in ("sent", "acknowledged", "consumed", "faults")} | {"text": str(report)}


def replicas(servers: str) -> dict[str, object]:
    with ReassignmentAdmin(KafkaClientConfig(servers)) as admin:
        partitions = admin.cluster().partitions
    counts = Counter(broker for one in partitions for broker in one.replicas)
    short = sum(len(one.in_sync) < len(one.replicas) for one in partitions)
    return {"replicas": {str(broker): count for broker, count in counts.items()}, "under_replicated": short}


def main(servers: str, topic: str) -> None:
    admin = ClusterAdmin(servers)
    admin.create_topic(topic, 6)
    admin.wait_for_full_isr(topic, timeout_s=PATIENCE_S)
    set_topics(servers, [topic], LINKED_AND_KEPT)
    with LedgerWorkload(servers, topic, PLANS) as workload:
        for line in sys.stdin:
            question = line.strip()
            if question == "replicas":
                answer = replicas(servers)
            else:
                answer = told(workload.finish() if question == "finish" else workload.report())
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
