"""Runs Kafka's own tools unchanged, to judge what our cluster does, and parses their text."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jvm.java import QUICK_JVM_OPTIONS, Java
from local_cluster.kafka_distribution import KafkaDistribution

TOOL_TIMEOUT_S = 600.0


class KafkaToolError(Exception):
    """A tool of Kafka failed, took too long, or printed something unknown; the message has the end of its output."""


@dataclass(frozen=True, slots=True)
class ProducerPerformance:
    """A result of Kafka's producer performance tool; latencies in milliseconds, from send to acknowledgement."""

    records: int
    records_per_s: float
    mib_per_s: float
    average_ms: float
    max_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p99_9_ms: float


@dataclass(frozen=True, slots=True)
class EndToEndLatency:
    """A result of Kafka's end-to-end latency tool: milliseconds from sending to consuming, one record at a time."""

    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """A record batch in the output of Kafka's dump-log tool."""

    base_offset: int
    last_offset: int
    count: int
    is_valid: bool


@dataclass(slots=True)
class KafkaTools:
    """Runs Kafka's tools against one cluster. Thread-safe."""

    java: Java
    kafka: KafkaDistribution
    bootstrap_servers: str
    prefix: Sequence[str] = ()
    """Begins each command line, for example to run it in another network namespace."""
    _dump_tool: str = "org.apache.kafka.tools.DumpLogSegments"

    def produce(
        self,
        topic: str,
        *,
        records: int,
        record_bytes: int = 1000,
        records_per_s: int = -1,
        config: Mapping[str, str] | None = None,
        warmup_records: int = 0,
        payload_file: Path | None = None,
    ) -> ProducerPerformance:
        """Produce records at `records_per_s` (-1: as fast as possible): the lines of a file, or random bytes.

        Raises KafkaToolError.
        """
        arguments = self._arguments(topic, num_records=records, throughput=records_per_s)
        arguments += ["--record-size", str(record_bytes)] if payload_file is None else []
        arguments += ["--payload-file", str(payload_file)] if payload_file is not None else []
        if warmup_records:
            arguments += ["--warmup-records", str(warmup_records)]
        if config:
            arguments += ["--command-property", *(f"{key}={value}" for key, value in config.items())]
        return parse_producer_performance(self.run("org.apache.kafka.tools.ProducerPerformance", arguments))

    def consume(self, topic: str, *, records: int, config: Mapping[str, str] | None = None) -> int:
        """Consume `records` records from the start; return how many were read. Raises KafkaToolError."""
        arguments = self._arguments(topic, num_records=records, timeout=30_000)
        for key, value in (config or {}).items():
            arguments += ["--command-property", f"{key}={value}"]
        return parse_consumed_records(self.run("org.apache.kafka.tools.ConsumerPerformance", arguments))

    def end_to_end_latency(
        self, topic: str, *, records: int, acks: str = "all", record_bytes: int = 1000
    ) -> EndToEndLatency:
        """Measure the latency of records that are sent and consumed one after the other. Raises KafkaToolError."""
        arguments = [self.bootstrap_servers, topic, str(records), acks, str(record_bytes)]
        return parse_end_to_end_latency(self.run("org.apache.kafka.tools.EndToEndLatency", arguments))

    def dump_log(self, *segments: Path, deep: bool = False) -> list[DumpedBatch]:
        """Return the batches of log segment files, in the order given.

        `deep` makes Kafka read every record too. Raises KafkaToolError, also if Kafka finds a fault in a file.
        """
        arguments = ["--files", ",".join(map(str, segments))] + (["--deep-iteration"] if deep else [])
        try:
            return parse_dumped_log(self.run(self._dump_tool, arguments))
        except KafkaToolError as error:
            if "ClassNotFoundException" not in str(error) or self._dump_tool == _OLDER_DUMP_TOOL:
                raise
        self._dump_tool = _OLDER_DUMP_TOOL  # asked for at once from now on, as a JVM starts each time
        return parse_dumped_log(self.run(self._dump_tool, arguments))

    def command(self, tool: str, arguments: Sequence[str]) -> list[str]:
        """Return the command line that runs a tool without logging."""
        java = [*self.prefix, str(self.java.executable), "-Xmx512m", *QUICK_JVM_OPTIONS, *_QUIET]
        return [*java, *self.kafka.class_options, tool, *arguments]

    def run(self, tool: str, arguments: Sequence[str], timeout_s: float = TOOL_TIMEOUT_S) -> str:
        """Run a tool, and return what it printed on standard output. Raises KafkaToolError."""
        name, command = tool.rpartition(".")[2], self.command(tool, arguments)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True
        ) as process:
            try:
                output, complaints = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                raise KafkaToolError(f"{name} did not end within {timeout_s:g} s") from error
            finally:
                process.kill()
        if process.returncode:
            raise KafkaToolError(f"{name} failed: {_end_of(complaints or output)}")
        return output

    def _arguments(self, topic: str, **options: int) -> list[str]:
        words = {"bootstrap-server": self.bootstrap_servers, "topic": topic, **options}
        return [word for key, value in words.items() for word in (f"--{key.replace('_', '-')}", str(value))]


_QUIET = ("-Dorg.apache.logging.log4j.level=ERROR", "-Dlog4j2.StatusLogger.level=OFF")


def parse_producer_performance(output: str) -> ProducerPerformance:
    """Parse the closing line of Kafka's producer performance tool. Raises KafkaToolError."""
    matches = re.findall(
        rf"(\d+) records sent, {_NUMBER} records/sec \({_NUMBER} MB/sec\), {_NUMBER} ms avg latency, "
        rf"{_NUMBER} ms max latency, {_NUMBER} ms 50th, {_NUMBER} ms 95th, {_NUMBER} ms 99th, "
        rf"{_NUMBER} ms 99.9th",
        output,
    )
    if not matches:
        raise KafkaToolError(f"the producer performance is not understood: {_end_of(output)}")
    records, *numbers = matches[-1]
    return ProducerPerformance(int(records), *map(float, numbers))


def parse_consumed_records(output: str) -> int:
    """Parse the number of records that Kafka's consumer performance tool reports. Raises KafkaToolError."""
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.count(",") >= 9]
    try:
        return int(rows[-1][rows[0].index("data.consumed.in.nMsg")])
    except (IndexError, ValueError) as error:
        raise KafkaToolError(f"the consumer performance is not understood: {_end_of(output)}") from error


def parse_end_to_end_latency(output: str) -> EndToEndLatency:
    """Parse the output of Kafka's end-to-end latency tool. Raises KafkaToolError."""
    percentiles = re.search(rf"Percentiles: 50th = {_NUMBER}, 99th = {_NUMBER}, 99.9th = ", output)
    if percentiles is None:
        raise KafkaToolError(f"the end to end latency is not understood: {_end_of(output)}")
    return EndToEndLatency(*map(float, percentiles.groups()))


def parse_dumped_log(output: str) -> list[DumpedBatch]:
    """Parse the batches in the output of Kafka's dump-log tool. Raises KafkaToolError if the tool reports a fault."""
    batches = []
    for line in output.splitlines():
        if any(fault in line for fault in _DUMP_FAULTS):
            raise KafkaToolError(f"DumpLogSegments found a fault: {line.strip()}")
        if not line.startswith("baseOffset: "):
            continue
        fields = dict(re.findall(r"(\w+): (\S+)", line))
        base, last, count = (int(fields[name]) for name in ("baseOffset", "lastOffset", "count"))
        batches.append(DumpedBatch(base, last, count, fields["isvalid"] == "true"))
    return batches


_NUMBER = r"([\d.]+(?:[Ee][+-]?\d+)?)"

_OLDER_DUMP_TOOL = "kafka.tools.DumpLogSegments"
_DUMP_FAULTS = ("invalid bytes at the end of", "Non-consecutive offsets in", "Could not read", "Mismatches in")


def _end_of(output: str) -> str:
    return " / ".join(line.strip() for line in output.strip().splitlines()[-5:]) or "it printed nothing"
