"""The HTTP endpoint, asked over HTTP."""

import http.client
import json
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from agent.http_endpoint import HttpEndpoint
from replication.peer_connection import Address


class Rig:
    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.described: dict[str, object] = {"broker_id": 1, "partitions": []}
        registry = CollectorRegistry()
        Counter("remote_wal_planted", "For this test", registry=registry).inc(3)
        self.endpoint = HttpEndpoint(registry, lambda: self.described, lambda: self.reasons)
        self.endpoint.start(Address("127.0.0.1", 0))
        assert self.endpoint._server is not None
        self.port = self.endpoint._server.server_address[1]

    def ask(self, path: str, method: str = "GET") -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type", ""), answer.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.endpoint.close()


def test_metrics_health_and_state(rig: Rig) -> None:
    status, content_type, body = rig.ask("/metrics")
    assert (status, content_type.split(";")[0]) == (200, "text/plain")
    assert b"remote_wal_planted_total 3.0" in body
    assert rig.ask("/healthz") == (200, "text/plain", b"ok\n")
    status, content_type, body = rig.ask("/describe")
    assert (status, content_type, json.loads(body)) == (200, "application/json", rig.described)


def test_not_ready_says_why_and_ready_says_so(rig: Rig) -> None:
    rig.reasons = ["leadership not known yet", "object storage does not answer"]
    assert rig.ask("/readyz") == (
        503,
        "text/plain",
        b"leadership not known yet\nobject storage does not answer\n",
    )
    rig.reasons = []
    assert rig.ask("/readyz") == (200, "text/plain", b"ready\n")


def test_other_paths_are_not_found(rig: Rig) -> None:
    for path in ("/", "/config", "/metrics/", "/../etc/passwd", "/%2e%2e/"):
        assert rig.ask(path)[0] == 404


def test_objects_are_shown_where_the_agent_offers_them(rig: Rig) -> None:
    assert rig.ask("/objects")[0] == 404
    endpoint = HttpEndpoint(CollectorRegistry(), dict, list, lambda: {"objects": [], "totals": []})
    status, content_type, body = endpoint._respond("GET", "/objects")
    assert (status, content_type, json.loads(body)) == (200, "application/json", {"objects": [], "totals": []})


def test_nothing_but_get_is_taken(rig: Rig) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert rig.ask("/describe", method)[0] == 405


def test_closing_twice_is_no_error_and_frees_the_port() -> None:
    rig = Rig()
    rig.endpoint.close()
    rig.endpoint.close()
    with pytest.raises(ConnectionRefusedError):
        rig.ask("/healthz")


def test_a_taken_port_is_told(rig: Rig) -> None:
    second = HttpEndpoint(CollectorRegistry(), dict, list)
    with pytest.raises(OSError, match="in use"):
        second.start(Address("127.0.0.1", rig.port))
