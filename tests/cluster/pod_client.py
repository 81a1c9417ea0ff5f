"""A client of a cluster of pods, as a process of its own: names of pods are known in its network namespace alone.

    python -m tests.cluster.pod_client BOOTSTRAP_SERVERS TOPIC

It makes the topic, has it linked, and lets numbered records flow. To each line of standard input it answers with one of
JSON: `report` and, at the end, `finish` tell what became of the records; `replicas` tells who lives and has how many
replicas. `write BROKER` fills a topic whose only replica is there, and `read` tells how many of its records there are.
"""

import json
import sys
from collections import Counter

from confluent_kafka import Consumer, Producer, TopicPartition

from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.cluster_admin import LINKED_AND_KEPT, ClusterAdmin, set_topics
from local_cluster.workload.ledger import LedgerReport, LedgerWorkload, ProducerPlan
from recovery.reassignment.admin import ReassignmentAdmin
from tests.cluster.script import PATIENCE_S

ALONE, RECORDS = "alone", 1000
PLANS = (ProducerPlan("plain", records_per_s=200), ProducerPlan("zstd", codec="zstd", records_per_s=200))


def told(report: LedgerReport) -> dict[str, object]:
    return {key: getattr(report, key) for key in ("sent", "acknowledged", "consumed", "faults")} | {"text": str(report)}


def replicas(servers: str) -> dict[str, object]:
    with ReassignmentAdmin(KafkaClientConfig(servers)) as admin:
        cluster = admin.cluster()
    partitions = cluster.partitions
    counts = Counter(broker for one in partitions for broker in one.replicas)
    short = sum(len(one.in_sync) < len(one.replicas) for one in partitions)
    return {
        "replicas": {str(broker): count for broker, count in counts.items()},
        "under_replicated": short,
        "living": sorted(cluster.racks),
    }


def write(servers: str, broker_id: int) -> dict[str, object]:
    ClusterAdmin(servers).create_topic(ALONE, assignment=[[broker_id]])
    set_topics(servers, [ALONE], LINKED_AND_KEPT)
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for number in range(RECORDS):
        producer.produce(ALONE, str(number))
    return {"left": producer.flush(PATIENCE_S)}


def read(servers: str) -> dict[str, object]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "-", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(ALONE, 0, 0)])
    values = {(one.value() or b"").decode() for one in consumer.consume(RECORDS, PATIENCE_S) if one.error() is None}
    consumer.close()
    return {"records": len(values)}


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
            elif question.startswith("write "):
                answer = write(servers, int(question.partition(" ")[2]))
            elif question == "read":
                answer = read(servers)
            else:
                answer = told(workload.finish() if question == "finish" else workload.report())
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
