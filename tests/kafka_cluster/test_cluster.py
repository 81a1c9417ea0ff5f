"""A cluster that does not answer is told as such, by either client."""

import gc
import os
import socket
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError
from kafka.protocol.metadata import MetadataResponse

from kafka_cluster.client_config import KafkaClientConfig, from_java_properties
from kafka_cluster.cluster import EARLIEST, LATEST, KafkaCluster, _topic
from kafka_cluster.errors import ClientPropertyError, KafkaClusterError
from kafka_cluster.responses import (
    NO_TOPIC_ID,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    DescribedBroker,
    DescribedTopic,
)
from kafka_log.topic_partition import TopicId
from local_cluster.security.authority import Authority

# kafka-python leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def _sockets_of_this_test() -> Iterator[None]:
    yield
    gc.collect()  # or another test would be told of them


ANY_LOGIN: dict[str, str] = {}
NOT_KNOWN_TO_KAFKA_PYTHON = {"enable.ssl.certificate.verification": "true"}


@pytest.fixture
def refusing() -> Iterator[str]:
    """An address that nobody listens at, held so that nobody will."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize("properties", [ANY_LOGIN, NOT_KNOWN_TO_KAFKA_PYTHON])
def test_a_cluster_that_does_not_answer_is_named(refusing: str, properties: dict[str, str]) -> None:
    descriptions = KafkaCluster(KafkaClientConfig(refusing, properties), "test", 0.3)
    with pytest.raises(KafkaClusterError, match=refusing):
        descriptions.topics(["orders"])
    threads = set(threading.enumerate())
    with pytest.raises(KafkaClusterError, match=refusing):
        descriptions.brokers()
    assert set(threading.enumerate()) <= threads, "nothing is left behind"


def test_every_question_names_the_cluster_that_does_not_answer(refusing: str) -> None:
    cluster = KafkaCluster(KafkaClientConfig(refusing, {"log_level": 0}), "test", 0.3)
    questions: list[Callable[[], object]] = [
        cluster.listing,
        lambda: cluster.listing("orders"),
        lambda: cluster.topic_configurations(["orders"]).get_all(),
        lambda: cluster.broker_configurations([1]).get_all(),
        lambda: cluster.offsets([("orders", 0)], EARLIEST).get_all(),
        lambda: cluster.create_topic("orders", [[1]], {}),
    ]
    for ask in questions:
        with pytest.raises(KafkaClusterError, match=refusing):
            ask()


def test_nothing_is_asked_about_no_topics(refusing: str) -> None:
    descriptions = KafkaCluster(KafkaClientConfig(refusing), "test", 0.3)
    assert descriptions.topics([]) == descriptions.topics_by_id([]) == []
    assert descriptions.topic_configurations([]).get_all() == {}
    assert descriptions.offsets([], LATEST).get_all() == {}
    assert descriptions.ends_of_epochs("t", []) == {}


def test_ids_can_be_asked_for_by_kafka_python_alone(refusing: str) -> None:
    descriptions = KafkaCluster(KafkaClientConfig(refusing), "test", 0.3)
    assert descriptions.can_ask_by_id
    with pytest.raises(KafkaClusterError, match=f"by id {refusing}"):
        descriptions.topics_by_id([TopicId(bytes(range(16)))])
    other = KafkaCluster(KafkaClientConfig(refusing, NOT_KNOWN_TO_KAFKA_PYTHON), "test", 0.3)
    assert not other.can_ask_by_id
    assert other.ends_of_epochs("t", [(0, 1)]) == {}
    with pytest.raises(ClientPropertyError):
        other.topics_by_id([TopicId(bytes(range(16)))])


def test_an_answer_by_id_says_which_topic_it_is_about_without_a_name() -> None:
    topic_id = uuid.UUID(bytes=bytes(range(16)))
    answer = MetadataResponse.MetadataResponseTopic(error_code=29, name=None, topic_id=topic_id, partitions=[])
    sent = MetadataResponse(brokers=[], topics=[answer]).encode(version=12)
    [told] = MetadataResponse.decode(sent, version=12).to_dict()["topics"]
    assert _topic(told) == DescribedTopic("", TOPIC_AUTHORIZATION_FAILED, TopicId(bytes(range(16))))


def test_an_answer_by_name_of_what_is_not_described_has_no_id() -> None:
    answer = MetadataResponse.MetadataResponseTopic(error_code=3, name="orders", topic_id=None, partitions=[])
    sent = MetadataResponse(brokers=[], topics=[answer]).encode(version=12)
    [told] = MetadataResponse.decode(sent, version=12).to_dict()["topics"]
    assert _topic(told) == DescribedTopic("orders", UNKNOWN_TOPIC_OR_PARTITION, NO_TOPIC_ID)


@contextmanager
def tls_listener(authority: Authority) -> Iterator[tuple[str, set[str]]]:
    """A listener that hangs up after the handshake, and the common names of the certificates it was shown."""
    files, shown = authority.tls_for("localhost"), set[str]()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(files.ca_file))
    context.load_cert_chain(files.certificate_file, files.key_file)
    context.verify_mode = ssl.CERT_REQUIRED

    def accept() -> None:
        with suppress(OSError):  # it was closed
            while True:
                connection, _ = listener.accept()
                connection.settimeout(5)
                with suppress(OSError), context.wrap_socket(connection, server_side=True) as tls:
                    certificate: Any = tls.getpeercert()
                    told = dict(part for (part,) in certificate["subject"])
                    shown.add(str(told["commonName"]))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        yield f"localhost:{listener.getsockname()[1]}", shown
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()


def test_after_a_cluster_did_not_answer_a_renewed_certificate_is_shown(tmp_path: Path) -> None:
    authority, store = Authority(tmp_path), tmp_path / "keystore.pem"

    def issue(name: str) -> None:
        files = authority.tls_for(name)
        store.write_bytes(files.key_file.read_bytes() + files.certificate_file.read_bytes())

    issue("first")
    properties = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.file),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
    }
    with tls_listener(authority) as (address, shown):
        cluster = KafkaCluster(from_java_properties(address, properties), "test", 1.0)
        with pytest.raises(KafkaClusterError):
            cluster.listing()
        assert shown == {"first"}
        issue("renewed")
        shown.clear()
        with pytest.raises(KafkaClusterError):
            cluster.listing()
        assert "renewed" in shown  # what the former client had begun may come in late


def test_clients_that_got_no_answer_leave_no_threads_behind(refusing: str) -> None:
    """An outage is many looks; a collection of the agent may be hours away."""
    cluster = KafkaCluster(KafkaClientConfig(refusing), "test", 0.3)
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/task"))
        for _ in range(3):
            with suppress(KafkaClusterError):
                cluster.listing()
        assert len(os.listdir("/proc/self/task")) <= before
    finally:
        gc.enable()


def test_another_broker_is_asked_if_one_has_just_died(monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python asks any broker that the cluster tells of, and for some seconds it tells of the dead one, too."""
    died = [KafkaConnectionError("ECONNREFUSED")] * 2

    class Admin:
        def describe_cluster(self) -> dict[str, Any]:
            if died:
                raise died.pop()
            return {"brokers": [{"broker_id": 1, "rack": None, "host": "kafka-1", "port": 9092}]}

    @contextmanager
    def connected(*_: Any) -> Iterator[Admin]:
        yield Admin()

    monkeypatch.setattr("kafka_cluster.cluster._connected", connected)
    cluster = KafkaCluster(KafkaClientConfig("kafka-1:9092"), "test", 60.0)
    assert cluster.brokers() == [DescribedBroker(1, None, "kafka-1", 9092)]
