"""Kafka's transactional message copier, as in Kafka's own system tests: it reads a partition, writes it to another
topic, and commits offsets with the records, so that each is there once, whatever strikes.

The tool copies what is there when it starts, and ends. So it is started again and again, under one transactional id and
one group, which is what its system test does to it on purpose. That it gives up under a fault is no finding; what it
has left behind by then must be right all the same.
"""

import subprocess
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from jvm.java import QUICK_JVM_OPTIONS
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import CLIENT_CONFIG
from local_cluster.node_processes import logging_options
from local_cluster.polling import wait_until
from local_cluster.workload.ledger import Outcome, ProducerPage, ProducerReport
from tests.soak.verifiable_clients import Numbers, VerifiableClientError, end_offset

_NAME = "copied"
_PARTITION = 0
_PAUSE_S = 3.0
_RUN_TIMEOUT_S = 180.0
_LAST_RUNS = 5
_TRANSACTION_TIMEOUT_MS = 30_000


class TransactionalCopier:
    """Copies one partition until `finish`, in a thread of its own."""

    def __init__(
        self, cluster: LocalCluster, bootstrap_servers: str, source: str, target: str, directory: Path
    ) -> None:
        """`directory` takes what it says."""
        self._cluster = cluster
        self._target = target
        self._log_path = directory / "transactional-copier.log"
        self._arguments = [
            *("--broker-list", bootstrap_servers, "--input-topic", source, "--input-partition", str(_PARTITION)),
            *("--output-topic", target, "--consumer-group", target, "--transactional-id", target),
            *("--transaction-size", "200", "--transaction-timeout", str(_TRANSACTION_TIMEOUT_MS)),
            *("--enable-random-aborts", "--use-group-metadata"),
        ]
        self.runs: list[int] = []
        """How each run has ended."""
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run_always, name="transactional copier", daemon=True)

    def start(self) -> None:
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def rest(self) -> None:
        """Copy no more but what is copied now, until `finish`."""
        self._stop.set()
        self._thread.join(_RUN_TIMEOUT_S)

    def finish(self, values: Iterable[int]) -> ProducerReport:
        """Copy what is left, and hold it against what the source's partition holds, in order; nobody writes any more.

        Raises VerifiableClientError.
        """
        self.rest()
        for _ in range(_LAST_RUNS):
            if self._run() == 0:
                return compare_copy(values, read_committed(self._cluster.bootstrap_servers, self._target, _PARTITION))
        raise VerifiableClientError(f"the copier ended with {self.runs[-1]}; it says {self._log_tail()}")

    def close(self) -> None:
        self._stop.set()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _run_always(self) -> None:
        while not self._stop.wait(_PAUSE_S):
            self._run()

    def _run(self) -> int:
        command = [
            str(self._cluster.runtime.java.executable),
            "-Xmx128m",
            *QUICK_JVM_OPTIONS,
            *logging_options(self._log_path.with_suffix(".kafka.log")),
            *self._cluster.runtime.kafka.class_options,
            "org.apache.kafka.tools.TransactionalMessageCopier",
            *self._arguments,
        ]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self.runs.append(self._process.wait(_RUN_TIMEOUT_S))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.runs.append(self._process.wait())
        return self.runs[-1]

    def _log_tail(self) -> str:
        return " / ".join(self._log_path.read_text(errors="replace").splitlines()[-5:])


def compare_copy(values: Iterable[int], copied: Iterable[tuple[int, bytes]]) -> ProducerReport:
    """Of numbered values, each of which must have been copied once and in order; copies come with their offsets."""
    page = ProducerPage(_NAME, Numbers())
    for value in values:
        while page.next_sequence <= value:
            page.sent()
        page.settle(range(value, value + 1), Outcome.ACKNOWLEDGED)
    for offset, copy in copied:
        sequence = int(copy) if copy.isdigit() else page.next_sequence
        page.read(_PARTITION, offset, sequence, copy, 0)
    return page.report()


def read_committed(bootstrap_servers: str, topic: str, partition: int) -> Iterator[tuple[int, bytes]]:
    """Offsets and values of a partition from its begin to its end. Raises VerifiableClientError."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    settings = {"bootstrap.servers": bootstrap_servers, **CLIENT_CONFIG, "group.id": f"{topic}-judged"}
    # Before the markers of the last transactions are written, a committed reader is told another end.
    end = wait_until(lambda: end_offset(settings, topic, partition), f"the end of {topic} is told", _RUN_TIMEOUT_S)
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    try:
        while (message := consumer.poll(_RUN_TIMEOUT_S)) is not None:
            error, offset = message.error(), message.offset()
            if error is None:
                yield offset, message.value() or b""
            elif error.code() == KafkaError._PARTITION_EOF and offset >= end:
                return
        raise VerifiableClientError(f"{topic} is not read to its end within {_RUN_TIMEOUT_S:g} s")
    finally:
        consumer.close()
