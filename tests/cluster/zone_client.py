"""A client of one zone as a program: `python -m tests.cluster.zone_client LIBRARY WHAT BOOTSTRAP TOPIC ...`.

It says in one line of JSON on standard output what it has done.
"""

import contextlib
import json
import random
import sys
import time
from collections.abc import Mapping
from typing import Any

TIMEOUT_S = 90.0
VALUE_BYTES = 1000
VALUES = random.Random(7)
"""Of bytes that no codec makes smaller."""


def confluent_create(bootstrap: str, topic: str) -> dict[str, Any]:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    replicas = [[2, 1, 3], [3, 2, 4], [1, 2, 3]]
    admin.create_topics([NewTopic(topic, len(replicas), replica_assignment=replicas)])[topic].result(TIMEOUT_S)
    groups = admin.list_consumer_groups(request_timeout=TIMEOUT_S).result().valid
    return {"brokers": sorted(admin.list_topics(timeout=TIMEOUT_S).brokers), "groups": len(groups)}


def confluent_produce(bootstrap: str, topic: str, count: str, transactional_id: str = "") -> dict[str, Any]:
    from confluent_kafka import Producer

    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "lz4"}
    if transactional_id:
        settings["transactional.id"] = transactional_id
    producer, done = Producer(settings), [0, 0]

    def delivered(error: object, _message: object) -> None:
        done[error is not None] += 1

    if transactional_id:
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
    for number in range(int(count)):
        producer.produce(topic, VALUES.randbytes(VALUE_BYTES), str(number).encode(), on_delivery=delivered)
        producer.poll(0)
    if transactional_id:
        producer.commit_transaction(TIMEOUT_S)
    return {"waiting": producer.flush(TIMEOUT_S), "delivered": done[0], "failed": done[1]}


def confluent_consume(bootstrap: str, topic: str, count: str, protocol: str, rack: str = "") -> dict[str, Any]:
    from confluent_kafka import Consumer

    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": f"{topic}-{protocol}{rack}",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "client.rack": rack,
    }
    consumer, read, until_s = Consumer(settings), 0, time.monotonic() + TIMEOUT_S
    consumer.subscribe([topic])
    while read < int(count) and time.monotonic() < until_s:
        messages = consumer.consume(500, 1.0)
        read += sum(message.error() is None for message in messages)
    consumer.commit(asynchronous=False)
    consumer.close()
    return {"read": read}


def confluent_go_on(bootstrap: str, topic: str, clients: str = "1") -> dict[str, Any]:
    """Produce with that many producers in turn until standard input ends."""
    import threading

    from confluent_kafka import Producer

    producers = [Producer({"bootstrap.servers": bootstrap, "acks": "all"}) for _ in range(int(clients))]
    done, ended = [0, 0], threading.Event()

    def delivered(error: object, _message: object) -> None:
        done[error is not None] += 1
        if done[0] % 100 == 0:
            sys.stdout.write(f"{done[0]}\n")
            sys.stdout.flush()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    sent = 0
    while not ended.wait(0.005):
        producer = producers[sent % len(producers)]
        producer.produce(topic, VALUES.randbytes(VALUE_BYTES), on_delivery=delivered)
        sent += 1
        producer.poll(0)
    waiting = sum(producer.flush(TIMEOUT_S) for producer in producers)
    return {"sent": sent, "waiting": waiting, "delivered": done[0], "failed": done[1]}


def python_create(bootstrap: str, topic: str) -> dict[str, Any]:
    from kafka.admin import KafkaAdminClient

    with contextlib.closing(KafkaAdminClient(bootstrap_servers=bootstrap.split(","))) as admin:
        admin.create_topics({topic: {"num_partitions": 3, "replication_factor": 3}})
        admin.list_groups()
        return {"brokers": sorted(one["broker_id"] for one in admin.describe_cluster()["brokers"])}


def python_produce(bootstrap: str, topic: str, count: str) -> dict[str, Any]:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), acks="all")
    sent = [producer.send(topic, VALUES.randbytes(VALUE_BYTES)) for _ in range(int(count))]
    producer.flush(TIMEOUT_S)
    delivered = sum(one.succeeded() for one in sent)
    producer.close()
    return {"delivered": delivered}


def python_consume(bootstrap: str, topic: str, count: str, rack: str = "") -> dict[str, Any]:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap.split(","),
        group_id=f"{topic}-python",
        auto_offset_reset="earliest",
        client_rack=rack,
    )
    read, until_s = 0, time.monotonic() + TIMEOUT_S
    while read < int(count) and time.monotonic() < until_s:
        read += sum(map(len, consumer.poll(1000).values()))
    consumer.commit()
    consumer.close()
    return {"read": read}


WHAT: Mapping[str, Any] = {name: what for name, what in globals().items() if name.startswith(("confluent_", "python_"))}

if __name__ == "__main__":
    library, what, *arguments = sys.argv[1:]
    sys.stdout.write(json.dumps(WHAT[f"{library}_{what}"](*arguments)) + "\n")
