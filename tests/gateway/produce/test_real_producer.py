"""What librdkafka itself sends, to a broker of few words: read, cut and spliced."""

import socket
import struct
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from queue import Queue
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka.protocol.metadata import ApiVersionsResponse, MetadataResponse

from gateway.produce.produce_frame import ProduceRequestView, scan_produce_request
from gateway.produce.route_request import cut_request, splice_request
from plugin.router_object_id import RouterObjectId
from tests.kafka_log.batches import batch

PATIENCE_S = 60
PRODUCE, METADATA, API_VERSIONS = 0, 3, 18
VERSIONS = [(PRODUCE, 0, 13), (1, 4, 18), (2, 1, 10), (METADATA, 0, 12), (10, 0, 6), (API_VERSIONS, 0, 3), (22, 0, 5)]


class FewWords:
    """Answers ApiVersions and Metadata, and keeps Produce requests."""

    def __init__(self) -> None:
        self.produced: Queue[bytes] = Queue()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream, suppress(OSError):
            while len(size := stream.read(4)) == 4:
                frame = stream.read(struct.unpack(">i", size)[0])
                api_key, version, correlation_id = struct.unpack(">hhi", frame[:8])
                if api_key == PRODUCE:
                    self.produced.put(frame)
                    continue
                answer = self._api_versions(version) if api_key == API_VERSIONS else self._metadata(version)
                answer.with_header(correlation_id=correlation_id)
                raw = bytes(answer.encode(header=True))
                connection.sendall(struct.pack(">i", len(raw)) + raw)

    def _api_versions(self, version: int) -> Any:
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, low, high in VERSIONS
        ]
        return ApiVersionsResponse(version=min(version, 3), error_code=0, api_keys=keys, throttle_time_ms=0)

    def _metadata(self, version: int) -> Any:
        topic_type = MetadataResponse.MetadataResponseTopic
        partition = topic_type.MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=1, leader_epoch=1, replica_nodes=[1], isr_nodes=[1],
            offline_replicas=[],
        )  # fmt: skip
        topic = topic_type(error_code=0, name="t", topic_id=uuid.UUID(int=5), is_internal=False, partitions=[partition])
        broker = MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port, rack=None)
        return MetadataResponse(
            version=version, brokers=[broker], cluster_id="c", controller_id=1, throttle_time_ms=0, topics=[topic]
        )

    def close(self) -> None:
        for one in (self._listening, *self._connections):
            with suppress(OSError):  # the producer may be gone
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def broker() -> Iterator[FewWords]:
    made = FewWords()
    yield made
    made.close()


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_what_librdkafka_sends_is_cut_and_spliced_to_the_same(broker: FewWords, codec: str) -> None:
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{broker.port}", "acks": 1, "compression.type": codec})
    producer.produce("t", bytes(range(256)) * 4)
    producer.flush(0)
    frame = broker.produced.get(timeout=PATIENCE_S)
    producer.purge()
    view = scan_produce_request(frame)
    assert isinstance(view, ProduceRequestView)
    assert (view.acks, [field.topic_name for field in view.fields]) == (1, ["t"])
    field = view.fields[0]
    assert frame[field.records_start + 16] == 2  # the magic of a record batch
    assert len(frame) - field.records_end == 3  # tags of partition, topic and request
    found = cut_request(frame, view)
    assert found is not None
    assert found.linked_bytes > len(batch())
    routed = found.routed(0, RouterObjectId(1, 1, 1, 1), 0, b"")
    assert b"".join(map(bytes, splice_request(routed, b"".join(found.records)))) == frame
