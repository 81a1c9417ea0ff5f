"""Agents are asked whether they are ready; what cannot be asked from here is not taken for dead."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from metadata_topic.settings.topic_settings import AgentRegistration
from rollout.facts import AgentFacts, AgentState
from rollout.gathering import ask_agents

NOBODY = "127.0.0.1:1"
HERE = "localhost"


@contextmanager
def agent(status: HTTPStatus, body: bytes) -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else HTTPStatus.NOT_FOUND)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def asked(endpoint: str, host: str = HERE, timeout_s: float = 10.0) -> AgentFacts:
    registration = AgentRegistration(1, 1, endpoint, "10.0.0.1:19090", "1.0", 0)
    return ask_agents({1: registration}, {1: host}, None, timeout_s)[1]


def test_an_agent_that_is_ready_tells_what_is_degraded() -> None:
    with agent(HTTPStatus.OK, b"ready\ndegraded: the store is slow\n") as endpoint:
        assert asked(endpoint) == AgentFacts("1.0", AgentState.READY, "degraded: the store is slow")


def test_an_agent_that_is_not_tells_why() -> None:
    with agent(HTTPStatus.SERVICE_UNAVAILABLE, b"starting\nsettings not read\n") as endpoint:
        assert asked(endpoint) == AgentFacts("1.0", AgentState.NOT_READY, "starting; settings not read")


def test_an_agent_that_is_gone_is_silent() -> None:
    told = asked(NOBODY)
    assert told.state is AgentState.SILENT
    assert NOBODY in told.told


@pytest.mark.parametrize("endpoint", ["127.0.0.1:19095", "https://localhost:19095"])
def test_another_hosts_loopback_is_not_asked(endpoint: str) -> None:
    told = asked(endpoint, "kafka-1.example.com")
    assert told.state is AgentState.UNKNOWN
    assert "remote.wal.agent.http.listener" in told.told


def test_who_does_not_answer_in_time_is_not_taken_for_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
        assert asked(endpoint, timeout_s=0.2).state is AgentState.UNKNOWN  # nobody accepts, so nobody answers


def test_who_speaks_no_tls_where_tls_is_registered_is_not_taken_for_gone() -> None:
    with agent(HTTPStatus.OK, b"ready\n") as endpoint:
        assert asked(f"https://{endpoint}").state is AgentState.UNKNOWN
