"""Records at a steady rate, and when they were acknowledged."""

import threading
import time
from typing import Any

from perf.pauses import Pause, longest_pause

_RECORD_BYTES = 1000


class SteadyLoad:
    """One producer on a thread, to partition 0."""

    def __init__(self, bootstrap_servers: str, topic: str, records_per_s: float, acks: str) -> None:
        self.acks = acks
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._interval_s = 1 / records_per_s
        self._acknowledged_s: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"load-{topic}-{acks}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Records that are not acknowledged are let go."""
        self._stop.set()
        self._thread.join()

    def longest_pause(self, begin_s: float, end_s: float) -> Pause:
        """The longest time without an acknowledgement."""
        return longest_pause(list(self._acknowledged_s), begin_s, end_s)

    def _run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "acks": self.acks,
                "linger.ms": 0,
                "allow.auto.create.topics": False,
                # Else librdkafka's own back-off after a retriable error would be measured.
                "retry.backoff.ms": 10,
                "retry.backoff.max.ms": 100,
            }
        )
        due_s = time.monotonic()
        while not self._stop.is_set():
            producer.produce(self._topic, bytes(_RECORD_BYTES), partition=0, on_delivery=self._delivered)
            due_s += self._interval_s
            while (left_s := due_s - time.monotonic()) > 0:
                producer.poll(left_s)
        producer.purge()
        producer.flush(5)

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is None:
            self._acknowledged_s.append(time.monotonic())
