"""Model brokers speak Kafka: kafka-python's codec reads what they write, and the other way round."""

import random
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest as KafkaFetchRequest

from replication.wire.fetch_frame import scan_fetch_request, scan_fetch_response
from tests.replication.fetch_frames import TOPIC_ID, VERSIONS, decode
from tests.simulation.replicas.kafka_frames import Answered, Asked, EpochEnd, FetchRequest, FetchResponse

TOPIC = "simulated"


def request(rng: random.Random, version: int) -> FetchRequest:
    asked = [Asked(*(rng.randrange(2**20) for _ in range(6))) for _ in range(rng.randrange(4))]
    forgotten = [rng.randrange(100) for _ in range(rng.randrange(3))]
    return FetchRequest(version, rng.randrange(2**30), rng.randrange(9), 500, 1, 9000, 7, 3, asked, forgotten)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(10))
def test_requests_are_kafkas(version: int, seed: int) -> None:
    written = request(random.Random(seed), version)
    frame = written.encode(TOPIC, TOPIC_ID)
    read: Any = KafkaFetchRequest.decode(frame, version=version, header=True)
    assert (read.max_wait_ms, read.min_bytes, read.max_bytes) == (500, 1, 9000)
    assert (read.session_id, read.session_epoch) == (7, 3)
    assert (read.replica_id if version < 15 else read.replica_state.replica_id) == written.replica_id
    found = [
        (one.partition, one.current_leader_epoch, one.fetch_offset, one.last_fetched_epoch)
        for topic in read.topics
        for one in topic.partitions
    ]
    assert found == [one[:4] for one in written.asked]
    assert [number for topic in read.forgotten_topics_data for number in topic.partitions] == written.forgotten
    assert FetchRequest.decode(frame) == written
    assert scan_fetch_request(frame, version).replica_id == written.replica_id


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(10))
def test_responses_are_kafkas(version: int, seed: int) -> None:
    rng = random.Random(seed)
    answered = [
        Answered(number, rng.choice((0, 6)), rng.randrange(99), 3, rng.randbytes(rng.choice((0, 5, 300))),
                 EpochEnd(4, 17) if rng.random() < 0.3 else None)
        for number in range(rng.randrange(4))
    ]  # fmt: skip
    written = FetchResponse(rng.randrange(2**30), 0, 9, answered)
    frame = written.encode(version, TOPIC, TOPIC_ID)
    read = decode(frame, version)
    found = [one for topic in read.responses for one in topic.partitions]
    assert [(one.partition_index, one.error_code, bytes(one.records or b"")) for one in found] == [
        (one.partition, one.error, one.records) for one in answered
    ]
    diverging = [(one.diverging_epoch.epoch, one.diverging_epoch.end_offset) for one in found if one.diverging_epoch]
    assert diverging == [one.diverging for one in answered if one.diverging is not None]
    assert FetchResponse.decode(frame, version) == written
    assert len(scan_fetch_response(frame, version).fields) == len(answered)
