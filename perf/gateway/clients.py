"""Clients of `python -m perf gateway` as programs of their own, as they run in a zone's network namespace:
`python -m perf.gateway.clients WHAT BOOTSTRAP TOPIC RECORDS RECORDS_PER_S [RACK]`.

The last line on standard output is JSON: all latencies in milliseconds.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from local_cluster.cluster_admin import CLIENT_CONFIG
from plugin.wall_clock import wall_ms

_RECORD_BYTES = 1000
_TIMEOUT_S = 60.0
_WARM_UP = 25
"""Records of each run that do not count: they make connections, and find the replica of the consumer's rack."""


def produce(bootstrap: str, topic: str, records: int, records_per_s: int, _rack: str) -> list[float]:
    """Return the times from a record's sending to its acknowledgement, with one record in flight."""
    from confluent_kafka import Producer

    config = {
        **CLIENT_CONFIG,
        "bootstrap.servers": bootstrap,
        "acks": "1",
        "linger.ms": 0,
        "socket.nagle.disable": True,
    }
    producer = Producer(config)
    took_ms: list[float] = []
    value = bytes(_RECORD_BYTES)
    for _ in _paced(records + _WARM_UP, records_per_s):
        answered: list[object] = []
        begun_s = time.perf_counter()
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _message: answered.append(error))  # noqa: B023
        while not answered:
            producer.poll(_TIMEOUT_S)
        took_ms.append((time.perf_counter() - begun_s) * 1e3)
        if answered[0] is not None:
            raise SystemExit(f"a record was not acknowledged: {answered[0]}")
    return took_ms[_WARM_UP:]


def see(bootstrap: str, topic: str, records: int, _records_per_s: int, rack: str) -> list[float]:
    """Return the times from the leader's append, by the record's timestamp, until this consumer has it."""
    from confluent_kafka import OFFSET_END, Consumer, TopicPartition

    config = {**CLIENT_CONFIG, "bootstrap.servers": bootstrap, "group.id": f"{topic}-{rack}", "client.rack": rack}
    config |= {"enable.auto.commit": False, "socket.nagle.disable": True}
    consumer = Consumer(config)
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    took_ms: list[float] = []
    while len(took_ms) < records + _WARM_UP:
        message = consumer.poll(_TIMEOUT_S)
        if message is None:
            raise SystemExit(f"{len(took_ms)} of {records} records came")
        if message.error() is None:
            took_ms.append(float(wall_ms() - message.timestamp()[1]))
    consumer.close()
    return took_ms[_WARM_UP:]


def _paced(count: int, per_s: int) -> Iterator[None]:
    due_s = time.perf_counter()
    for _ in range(count):
        threading.Event().wait(max(due_s - time.perf_counter(), 0.0))
        yield
        due_s = max(due_s + 1 / per_s, time.perf_counter())


def main(what: str, bootstrap: str, topic: str, records: str, records_per_s: str, rack: str = "") -> None:
    """Run as a program."""
    programs: dict[str, Any] = {"produce": produce, "see": see}
    took_ms = programs[what](bootstrap, topic, int(records), int(records_per_s), rack)
    sys.stdout.write(json.dumps(took_ms) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
