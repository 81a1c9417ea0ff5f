from collections.abc import Sequence
from pathlib import Path

import pytest

from jvm.java import Java
from local_cluster.kafka_distribution import KafkaDistribution
from local_cluster.kafka_tools import (
    DumpedBatch,
    KafkaToolError,
    KafkaTools,
    parse_consumed_records,
    parse_dumped_log,
    parse_end_to_end_latency,
    parse_producer_performance,
)

PRODUCER = (
    "3201 records sent, 640.2 records/sec (0.61 MB/sec), 9.9 ms avg latency, 99.0 ms max latency.\n"
    "20000 records sent, 4806.54 records/sec (4.58 MB/sec), 1892.87 ms avg latency, 3144.00 ms max latency, "
    "1802 ms 50th, 3035 ms 95th, 3107 ms 99th, 3139 ms 99.9th.\n"
)
CONSUMER = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
    "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
    "2025-11-20 23:11:22:123, 2025-11-20 23:11:22:707, 19.0735, 32.6601, 20000, 34246.5753, 335, 249, 76.6003, "
    "80321.2851\n"
)
LATENCY = "0\t206.6\nAvg latency: 8.9189 ms\n\nPercentiles: 50th = 5, 99th = 45, 99.9th = 206\n"
DUMP = (
    "Dumping /log/t-0/00000000000000000000.log\n"
    "Log starting offset: 0\n"
    "baseOffset: 0 lastOffset: 9 count: 10 baseSequence: 0 lastSequence: 9 producerId: 5 producerEpoch: 0 "
    "partitionLeaderEpoch: 3 isTransactional: true isControl: false deleteHorizonMs: OptionalLong.empty position: 0 "
    "CreateTime: 1763680282000 size: 1234 magic: 2 compresscodec: zstd crc: 987654321 isvalid: true\n"
    "| offset: 0 CreateTime: 1763680282000 keySize: 3 valueSize: 100 sequence: 0 headerKeys: []\n"
)


def test_the_producers_closing_line_is_read_not_its_interim_ones() -> None:
    result = parse_producer_performance(PRODUCER)
    assert (result.records, result.mib_per_s, result.p50_ms, result.p99_9_ms) == (20000, 4.58, 1802, 3139)


def test_the_consumers_row_is_read_by_its_header() -> None:
    assert parse_consumed_records(CONSUMER) == 20000


def test_end_to_end_latency_is_read() -> None:
    result = parse_end_to_end_latency(LATENCY)
    assert (result.p50_ms, result.p99_ms) == (5, 45)


def test_dumped_batches_are_read_without_their_records() -> None:
    [batch] = parse_dumped_log(DUMP)
    assert batch == DumpedBatch(base_offset=0, last_offset=9, count=10, is_valid=True)


def test_a_fault_that_dump_log_reports_is_an_error() -> None:
    with pytest.raises(KafkaToolError, match="invalid bytes"):
        parse_dumped_log(DUMP + "Found 12 invalid bytes at the end of 00000000000000000000.log\n")


@pytest.mark.parametrize("parse", [parse_producer_performance, parse_consumed_records, parse_end_to_end_latency])
def test_output_that_is_not_understood_is_shown(parse: type) -> None:
    with pytest.raises(KafkaToolError, match=r"not understood.*something new"):
        parse("something new\n")


@pytest.mark.parametrize("known", ["org.apache.kafka.tools.DumpLogSegments", "kafka.tools.DumpLogSegments"])
def test_a_log_is_dumped_by_the_name_that_kafka_has_for_it(known: str, tmp_path: Path) -> None:
    asked = []

    class Tools(KafkaTools):
        def run(self, tool: str, arguments: Sequence[str], timeout_s: float = 1.0) -> str:
            asked.append(tool)
            if tool != known:
                raise KafkaToolError(f"Caused by: java.lang.ClassNotFoundException: {tool}")
            return DUMP

    tools = Tools(Java(tmp_path, 17), KafkaDistribution(tmp_path), "")
    assert tools.dump_log(tmp_path) == parse_dumped_log(DUMP)
    asked.clear()
    assert tools.dump_log(tmp_path) == parse_dumped_log(DUMP)
    assert asked == [known], "what it is not called is not tried each time"


def test_a_fault_that_the_dump_finds_is_no_older_kafka(tmp_path: Path) -> None:
    class Tools(KafkaTools):
        def run(self, tool: str, arguments: Sequence[str], timeout_s: float = 1.0) -> str:
            raise KafkaToolError(f"{tool} does not like it")

    with pytest.raises(KafkaToolError, match=r"org\.apache\.kafka\.tools\.DumpLogSegments does not like it"):
        Tools(Java(tmp_path, 17), KafkaDistribution(tmp_path), "").dump_log(tmp_path)
