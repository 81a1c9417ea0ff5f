"""A cluster that does not answer is told as such, by either client."""

import gc
import socket
import threading
from collections.abc import Iterator

import pytest

from metadata_topic.client_config import KafkaClientConfig
from metadata_topic.cluster_descriptions import ClusterDescriptions, DescriptionError

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
    descriptions = ClusterDescriptions(KafkaClientConfig(refusing, properties), "test", 0.3)
    with pytest.raises(DescriptionError, match=refusing):
        descriptions.topics(["orders"])
    threads = threading.active_count()
    with pytest.raises(DescriptionError, match=refusing):
        descriptions.brokers()
    assert threading.active_count() == threads, "nothing is left behind"


def test_nothing_is_asked_about_no_topics(refusing: str) -> None:
    assert ClusterDescriptions(KafkaClientConfig(refusing), "test", 0.3).topics([]) == []
