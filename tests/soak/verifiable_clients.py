"""Kafka's verifiable producer and consumer, as in Kafka's own system tests: they run as they are, and what they print
is held against each other.

The producer writes 0, 1, 2, ... and prints each record's partition and offset once it is acknowledged; the consumer
prints each record that it reads. Both go into a page of the ledger, so that lost, doubled, reordered and altered
records show as they do there. The producer is idempotent and tries again until its delivery time-out, as applications'
producers do: without that, the tool would double nothing and lose its order by Kafka's own rules.
"""

import json
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jvm.java import QUICK_JVM_OPTIONS
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import CLIENT_CONFIG
from local_cluster.node_processes import logging_options
from local_cluster.polling import WaitTimeoutError, wait_until
from local_cluster.workload.ledger import Outcome, ProducerPage, ProducerReport

DELIVERY_TIMEOUT_S = 120.0
_END_TIMEOUT_S = DELIVERY_TIMEOUT_S + 30.0
_NAME = "verifiable"
_PRODUCER_CONFIG = {
    "enable.idempotence": "true",
    "retries": "2147483647",
    "delivery.timeout.ms": str(int(DELIVERY_TIMEOUT_S * 1000)),
    "request.timeout.ms": "15000",
    "compression.type": "lz4",
}
_CONSUMER_CONFIG = {"metadata.max.age.ms": "5000"}


class VerifiableClientError(Exception):
    """A client failed or said what is not understood, so that its account says nothing."""


class VerifiableAccount:
    """What the two clients have printed, line by line. Safe for the threads that read their output."""

    def __init__(self) -> None:
        self.page = ProducerPage(_NAME, Numbers())
        self.positions: dict[int, int] = {}
        """Behind the last offset that was read, by partition."""
        self.values: dict[int, list[int]] = {}
        """What was read, by partition and in order."""
        self.send_errors: dict[str, int] = {}
        """By the exception's name; whether such a record is there is not known."""
        self._lock = threading.Lock()

    def producer_said(self, line: str) -> None:
        event = _event(line)
        with self._lock:
            match event.get("name"):
                case "producer_send_success":
                    sequence = int(event["value"])
                    self._reach(sequence)
                    self.page.delivered(sequence, int(event["offset"]))
                    self.page.settle(range(sequence, sequence + 1), Outcome.ACKNOWLEDGED)
                case "producer_send_error":
                    self._reach(int(event["value"]))
                    kind = str(event["exception"]).rpartition(".")[2]
                    self.send_errors[kind] = self.send_errors.get(kind, 0) + 1

    def consumer_said(self, line: str) -> None:
        event = _event(line)
        if event.get("name") != "record_data":
            return
        value, partition, offset = str(event["value"]), int(event["partition"]), int(event["offset"])
        with self._lock:
            # It may be read before the producer hears of it. What is no number was never sent.
            is_number = value.isascii() and value.isdigit()
            sequence = int(value) if is_number else self.page.next_sequence
            if is_number:
                self._reach(sequence)
            self.page.read(partition, offset, sequence, value.encode(), 0)
            if offset >= self.positions.get(partition, 0):
                self.positions[partition] = offset + 1
                self.values.setdefault(partition, []).append(sequence)

    def report(self) -> ProducerReport:
        with self._lock:
            return self.page.report()

    def _reach(self, sequence: int) -> None:
        while self.page.next_sequence <= sequence:
            self.page.sent()


class VerifiableClients:
    """One producer and one consumer on a topic that nobody else writes to."""

    def __init__(
        self, cluster: LocalCluster, bootstrap_servers: str, topic: str, directory: Path, *, records_per_s: int = 200
    ) -> None:
        """`bootstrap_servers` are theirs; `directory` takes their configuration and what they complain of."""
        self.topic = topic
        self.account = VerifiableAccount()
        self._cluster = cluster
        self._bootstrap_servers = bootstrap_servers
        self._directory = directory
        self._records_per_s = records_per_s
        self._producer: _Client | None = None
        self._consumer: _Client | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start both. Raises VerifiableClientError when they cannot be executed."""
        rate = ["--throughput", str(self._records_per_s), "--acks", "-1"]
        self._producer = self._launch("Producer", rate, _PRODUCER_CONFIG, self.account.producer_said)
        reading = ["--group-id", self.topic, "--reset-policy", "earliest", "--verbose"]
        self._consumer = self._launch("Consumer", reading, _CONSUMER_CONFIG, self.account.consumer_said)

    def report(self) -> ProducerReport:
        """The counts as of now. Raises VerifiableClientError when a client has ended by itself."""
        for client in (self._producer, self._consumer):
            if client is not None:
                client.require_alive()
        return self.account.report()

    def finish(self) -> ProducerReport:
        """End the producer, let the consumer read to the log's end, and give the final counts.

        Raises VerifiableClientError.
        """
        if self._producer is None or self._consumer is None:
            raise VerifiableClientError("nothing was started")
        self._producer.end(_END_TIMEOUT_S)
        ends = wait_until(self._end_offsets, f"the ends of {self.topic} are told", _END_TIMEOUT_S)
        positions = self.account.positions

        def is_read() -> bool:
            if self._consumer is not None:
                self._consumer.require_alive()
            return all(positions.get(partition, 0) >= end for partition, end in ends.items())

        try:
            wait_until(is_read, f"{self.topic} is read to its end", _END_TIMEOUT_S, interval_s=0.2)
        except WaitTimeoutError as error:
            raise VerifiableClientError(f"{error}; ends {ends}, read up to {positions}") from error
        self._consumer.end(_END_TIMEOUT_S)
        return self.account.report()

    def close(self) -> None:
        for client in (self._producer, self._consumer):
            if client is not None:
                client.kill()

    def _launch(
        self, kind: str, arguments: Sequence[str], config: Mapping[str, str], hear: Callable[[str], None]
    ) -> "_Client":
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"verifiable-{kind.lower()}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
        command = [
            str(self._cluster.runtime.java.executable),
            "-Xmx128m",
            *QUICK_JVM_OPTIONS,
            *logging_options(path.with_suffix(".log")),
            *self._cluster.runtime.kafka.class_options,
            f"org.apache.kafka.tools.Verifiable{kind}",
            "--bootstrap-server",
            self._bootstrap_servers,
            "--topic",
            self.topic,
            "--command-config",
            str(path),
            *arguments,
        ]
        return _Client(f"Verifiable{kind}", command, path.with_suffix(".err"), hear)

    def _end_offsets(self) -> dict[int, int] | None:
        """High watermarks; None when a broker does not answer now."""
        states = self._cluster.admin.partitions(self.topic)
        settings = {"bootstrap.servers": self._cluster.bootstrap_servers, **CLIENT_CONFIG}
        ends = {
            state.partition: end_offset({**settings, "group.id": f"{self.topic}-end"}, self.topic, state.partition)
            for state in states
        }
        known = {partition: end for partition, end in ends.items() if end is not None}
        return known if known and len(known) == len(ends) else None


def end_offset(settings: Mapping[str, Any], topic: str, partition: int) -> int | None:
    """A partition's high watermark; None when its broker does not answer now. `settings` are librdkafka's."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    reader = Consumer(dict(settings))
    try:
        end: int = reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=5)[1]
    except KafkaException:
        return None
    finally:
        reader.close()
    return end


class _Client:
    """One of the tools, and the thread that reads what it prints."""

    def __init__(self, name: str, command: Sequence[str], log_path: Path, hear: Callable[[str], None]) -> None:
        self._name = name
        self._log_path = log_path
        self._failure: BaseException | None = None
        self._is_ending = False
        with log_path.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
                )
            except OSError as error:
                raise VerifiableClientError(f"cannot start {name}: {error}") from error
        self._reader = threading.Thread(target=self._read, args=(hear,), name=name, daemon=True)
        self._reader.start()

    def require_alive(self) -> None:
        if self._failure is not None:
            raise VerifiableClientError(f"{self._name}: {self._failure}") from self._failure
        if not self._is_ending and self._process.poll() is not None:
            raise VerifiableClientError(f"{self._name} has ended with {self._process.returncode}: {self._log_tail()}")

    def end(self, timeout_s: float) -> None:
        """SIGTERM; on return, all that it printed is heard. Raises VerifiableClientError."""
        self.require_alive()
        self._is_ending = True
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise VerifiableClientError(f"{self._name} did not end within {timeout_s:g} s") from error
        self._reader.join(timeout_s)
        self.require_alive()

    def kill(self) -> None:
        """Nothing happens when it has ended."""
        self._is_ending = True
        self._process.kill()
        self._process.wait()
        self._reader.join(5.0)

    def _read(self, hear: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            try:
                for line in lines:
                    hear(line.decode(errors="replace"))
            except Exception as error:  # handed to whoever asks next
                self._failure = error
                for _ in lines:
                    pass  # so that the tool does not stand still for a full pipe

    def _log_tail(self) -> str:
        return " / ".join(self._log_path.read_text(errors="replace").splitlines()[-5:]) or "it said nothing"


class Numbers:
    def value(self, number: int, sequence: int) -> bytes:
        return str(sequence).encode()


def _event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise VerifiableClientError(f"not understood: {line.strip()[:200]}") from error
    if not isinstance(event, dict):
        raise VerifiableClientError(f"not understood: {line.strip()[:200]}")
    return event
