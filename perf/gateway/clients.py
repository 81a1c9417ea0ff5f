"""Clients of `python -m perf gateway` as programs of their own, as they run in a zone's network namespace:
`python -m perf.gateway.clients WHAT BOOTSTRAP TOPIC RECORDS RECORDS_PER_S [RACK]`.

The last line on standard output is JSON: all latencies in milliseconds.
"""

import json
import sys
import threading
import time

from local_cluster.cluster_admin import CLIENT_CONFIG
from perf.loads import RECORD_BYTES
from plugin.wall_clock import wall_ms

_TIMEOUT_S = 60.0
_WARM_UP = 25
"""Records of each run that do not count: they make connections, and find the replica of the consumer's rack."""


def produce(bootstrap: str, topic: str, records: int, records_per_s: int) -> list[float]:
    """Send records one after the other; return the times from sending to acknowledgement, in ms."""
    from confluent_kafka import Producer

    own = {"bootstrap.servers": bootstrap, "acks": "1", "linger.ms": 0, "socket.nagle.disable": True}
    producer = Producer({**CLIENT_CONFIG, **own})
    value, took_ms, due_s = bytes(RECORD_BYTES), list[float](), time.perf_counter()
    for _ in range(records):
        threading.Event().wait(max(due_s - time.perf_counter(), 0.0))
        answered: list[object] = []
        begun_s = time.perf_counter()
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _message: answered.append(error))  # noqa: B023
        while not answered:
            producer.poll(_TIMEOUT_S)
        if answered[0] is not None:
            raise SystemExit(f"a record was not acknowledged: {answered[0]}")
        took_ms.append((time.perf_counter() - begun_s) * 1e3)
        due_s = max(due_s + 1 / records_per_s, time.perf_counter())
    return took_ms


def see(bootstrap: str, topic: str, records: int, rack: str) -> list[float]:
    """Consume records; return the times from the leader's append, by the records' timestamps, until this consumer
    has them."""
    from confluent_kafka import OFFSET_END, Consumer, TopicPartition

    own = {"bootstrap.servers": bootstrap, "group.id": f"{topic}-{rack}", "client.rack": rack}
    consumer = Consumer({**CLIENT_CONFIG, **own, "enable.auto.commit": False, "socket.nagle.disable": True})
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    took_ms: list[float] = []
    while len(took_ms) < records:
        message = consumer.poll(_TIMEOUT_S)
        if message is None:
            raise SystemExit(f"{len(took_ms)} of {records} records came")
        if message.error() is None:
            took_ms.append(float(wall_ms() - message.timestamp()[1]))
    consumer.close()
    return took_ms


def main(what: str, bootstrap: str, topic: str, records: str, records_per_s: str, rack: str = "") -> None:
    """Run a client as a program of its own."""
    total = int(records) + _WARM_UP
    if what == "produce":
        took_ms = produce(bootstrap, topic, total, int(records_per_s))
    else:
        took_ms = see(bootstrap, topic, total, rack)
    sys.stdout.write(json.dumps(took_ms[_WARM_UP:]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
