"""The HTTP endpoint, asked over HTTP."""

import base64
import http.client
import json
import re
import socket
import threading
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from socketserver import TCPServer

import pytest
from prometheus_client import CollectorRegistry, Counter

from agent.http import http_asking
from agent.http.http_access import HttpAccess, http_access
from agent.http.http_asking import ask_agent_page
from agent.http.http_endpoint import Health, HttpEndpoint, json_page
from agent.http.http_server import HttpLimits
from agent.settings.agent_settings import AgentSettings
from agent.settings.process_settings import HttpSettings
from local_cluster.polling import wait_until
from local_cluster.security.authority import Authority
from replication.wire.peer_connection import Address
from tests.descriptors import few_left


class Rig:
    def __init__(self, limits: HttpLimits | None = None, access: HttpAccess | None = None) -> None:
        self.reasons: list[str] = []
        self.degraded: list[str] = []
        self.described: dict[str, object] = {"broker_id": 1, "partitions": []}
        self.registry = registry = CollectorRegistry()
        Counter("remote_wal_planted", "For this test", registry=registry).inc(3)
        self.endpoint = HttpEndpoint(
            registry,
            {"/describe": json_page(lambda: self.described)},
            Health(lambda: self.reasons, lambda: self.degraded),
            access,
            limits,
        )
        self.endpoint.start(Address("127.0.0.1", 0))
        assert self.endpoint.address is not None
        self.port = self.endpoint.address.port

    def connect(self, data: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        connection.sendall(data)
        return connection

    def closed(self, reason: str) -> float:
        return self.registry.get_sample_value("remote_wal_http_closed_total", {"reason": reason}) or 0.0

    def is_answered(self) -> bool:
        with suppress(OSError, http.client.HTTPException):
            return self.ask("/readyz")[0] == 200
        return False

    def ask(self, path: str, method: str = "GET", authorization: str = "") -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, headers={"Authorization": authorization} if authorization else {})
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
    assert rig.ask("/livez") == (200, "text/plain", b"ok\n")
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


def test_health_is_a_metric_too(rig: Rig) -> None:
    def told() -> tuple[float | None, ...]:
        return tuple(rig.registry.get_sample_value(f"remote_wal_{name}") for name in ("ready", "degraded"))

    rig.reasons, rig.degraded = ["leadership not known yet"], ["a", "b"]
    assert told() == (0, 2)
    rig.reasons, rig.degraded = [], []
    assert told() == (1, 0)


def test_an_agent_that_is_ready_tells_what_others_lack(rig: Rig) -> None:
    rig.degraded = ["the agent of broker 2 is dead"]
    assert rig.ask("/readyz") == (200, "text/plain", b"ready\ndegraded: the agent of broker 2 is dead\n")
    rig.degraded = []


def test_other_paths_are_not_found(rig: Rig) -> None:
    for path in ("/", "/config", "/metrics/", "/../etc/passwd", "/%2e%2e/"):
        assert rig.ask(path)[0] == 404


def test_nothing_but_get_is_taken(rig: Rig) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert rig.ask("/describe", method)[0] == 405


def test_without_file_descriptors_it_waits_between_its_tries_and_answers_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []
    take = TCPServer.get_request

    def counted(server: TCPServer) -> object:
        tries.append(1)
        return take(server)

    monkeypatch.setattr(TCPServer, "get_request", counted)
    with few_left(1), socket.create_connection(("127.0.0.1", rig.port)):
        threading.Event().wait(0.5)  # a span to count in, not a wait for anything
        assert 0 < len(tries) < 20
    assert rig.ask("/livez")[0] == 200


def expect_to_be_closed(connection: socket.socket) -> None:
    with suppress(ConnectionResetError):
        assert connection.recv(1) == b""


def test_half_requests_take_a_bounded_number_of_threads_keep_no_probe_out_and_end_in_time() -> None:
    limits = HttpLimits(requests=4, threads=2, silence_s=600, answer_s=600)
    rig, before, most = Rig(limits), threading.active_count(), 0
    with ExitStack() as held:
        for _ in range(200):
            held.enter_context(rig.connect(b"GET /metr"))
            most = max(most, threading.active_count())
        # Where threads are slow to end, a probe may find no place at once; but it need not wait for silence to be over.
        wait_until(rig.is_answered, "a probe is answered", 120)
        assert most < before + 100, "some more than are served, as a thread ends after its place is free"
        wait_until(lambda: rig.closed("busy") >= 200 - limits.requests, "each is counted", 120)
        assert rig.closed("slow") == 0
    rig.endpoint.close()


def test_a_request_of_which_no_more_comes_ends_in_time() -> None:
    rig = Rig(HttpLimits(silence_s=0.1))
    with rig.connect(b"GET /metr") as half:
        expect_to_be_closed(half)
        wait_until(lambda: rig.closed("slow") == 1, "it is counted", 10)
    rig.endpoint.close()


def test_the_address_that_has_most_gives_way_and_half_of_the_places_are_left_to_others() -> None:
    rig = Rig(HttpLimits(requests=3, threads=4, silence_s=30))
    rig.described = {"long": "x" * 20_000_000}
    with ExitStack() as held:
        other = held.enter_context(socket.create_connection(("127.0.0.1", rig.port), source_address=("127.0.0.2", 0)))
        other.sendall(b"GET /livez HTTP/1.0\r\n")
        first, *_ = [held.enter_context(rig.connect(b"GET /metr")) for _ in range(3)]
        expect_to_be_closed(first)
        other.sendall(b"\r\n")
        assert other.recv(12) == b"HTTP/1.0 200"

        unread = [held.enter_context(rig.connect(b"GET /describe HTTP/1.0\r\n\r\n")) for _ in range(2)]
        for one in unread:
            assert one.recv(12) == b"HTTP/1.0 200"
        assert (rig.ask("/describe")[0], rig.ask("/livez")[0]) == (503, 200)
        third = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=10, source_address=("127.0.0.2", 0))
        third.request("GET", "/describe")
        assert third.getresponse().status == 200
        third.close()
    rig.endpoint.close()


def test_a_request_that_comes_byte_by_byte_ends_in_time() -> None:
    rig = Rig(HttpLimits(threads=1, silence_s=30, answer_s=0.5))
    with rig.connect(b"GET /metr") as slow:
        slow.settimeout(0.01)
        for _ in range(1000):  # of ten seconds
            try:
                slow.sendall(b"i")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("it was never cut off")
    wait_until(rig.is_answered, "a thread is free again", 10)
    rig.endpoint.close()


def test_an_answer_that_nobody_reads_holds_its_thread_for_a_bounded_time() -> None:
    rig = Rig(HttpLimits(threads=1, silence_s=30, answer_s=0.5))
    rig.described = {"long": "x" * 20_000_000}
    with rig.connect(b"GET /describe HTTP/1.0\r\n\r\n"):
        wait_until(lambda: rig.closed("slow") == 1, "the connection is cut off", 10)
        wait_until(rig.is_answered, "a thread is free again", 10)
    rig.endpoint.close()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    return file


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def test_with_a_token_nothing_but_health_is_told_without_it(token_file: Path) -> None:
    rig = Rig(access=HttpAccess(token_file=token_file))
    rig.reasons = ["leadership not known yet"]
    for path in ("/metrics", "/describe", "/nowhere"):
        for shown in ("", "Bearer", "Bearer s3cre", "Bearer s3cret-", "Basic s3cret", "Basic =", basic("s3cret", "")):
            assert rig.ask(path, authorization=shown)[0] == 401
    assert rig.ask("/livez")[0] == 200
    assert rig.ask("/readyz") == (503, "text/plain", b"not ready\n")
    for shown in ("Bearer s3cret", "bearer s3cret", basic("anybody", "s3cret")):
        assert rig.ask("/describe", authorization=shown)[0] == 200
        assert rig.ask("/readyz", authorization=shown)[2] == b"leadership not known yet\n"
    token_file.write_text("another")
    assert rig.ask("/describe", authorization="Bearer s3cret")[0] == 401
    assert rig.ask("/describe", authorization="Bearer another")[0] == 200
    for nothing in ("", " \n"):  # as while it is being written
        token_file.write_text(nothing)
        for shown in ("", "Bearer", "Bearer ", basic("", "")):
            assert rig.ask("/describe", authorization=shown)[0] == 401
    rig.endpoint.close()


def test_certificates_are_asked_for_before_a_byte_of_a_request_is_read(tmp_path: Path, token_file: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.tls_for("host", ["127.0.0.1"])
    settings = HttpSettings.model_construct(
        ssl_certificate_file=files.certificate_file,
        ssl_key_file=files.key_file,
        ssl_ca_file=files.ca_file,
        token_file=token_file,
    )
    rig = Rig(HttpLimits(), http_access(settings))
    endpoint = f"https://127.0.0.1:{rig.port}"
    assert json.loads(ask_agent_page(endpoint, "/describe", 10, settings)) == rig.described
    for without in (
        settings.model_copy(update={"ssl_certificate_file": None}),
        settings.model_copy(update={"ssl_ca_file": None}),
    ):
        with pytest.raises(OSError) as refused:  # noqa: PT011 - by either side, at either step
            ask_agent_page(endpoint, "/describe", 10, without)
        assert not isinstance(refused.value, urllib.error.HTTPError)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask_agent_page(endpoint, "/describe", 10, settings.model_copy(update={"token_file": None}))
    with pytest.raises(ConnectionError):
        ask_agent_page(endpoint.replace("https", "http"), "/livez", 10)
    rig.endpoint.close()
    rig = Rig(HttpLimits(silence_s=0.5), http_access(settings))
    with rig.connect(b"\x16\x03\x01") as half:  # a handshake that does not go on
        expect_to_be_closed(half)
    rig.endpoint.close()


def test_an_agent_that_is_away_is_told_by_its_own_error() -> None:
    with pytest.raises(ConnectionRefusedError, match=r"^\[Errno \d+\] Connection refused$"):
        ask_agent_page("127.0.0.1:1", "/livez", 10)


def test_an_agents_certificate_for_others_serves_its_pages_as_well(tmp_path: Path, token_file: Path) -> None:
    files = Authority(tmp_path).tls_for("host", ["127.0.0.1"])
    key = "remote.wal.agent"
    settings = AgentSettings.model_validate(
        {
            f"{key}.ssl.ca.file": str(files.ca_file),
            f"{key}.http.ssl.certificate.file": str(files.certificate_file),
            f"{key}.http.ssl.key.file": str(files.key_file),
            f"{key}.http.token.file": str(token_file),
        }
    ).http
    rig = Rig(HttpLimits(), http_access(settings))
    endpoint = f"https://127.0.0.1:{rig.port}"
    assert json.loads(ask_agent_page(endpoint, "/describe", 10, settings)) == rig.described
    with pytest.raises(OSError, match="certificate verify failed"):
        ask_agent_page(endpoint, "/livez", 10, HttpSettings())
    rig.endpoint.close()


def test_the_token_goes_to_nobody_in_plain_text(token_file: Path) -> None:
    told: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(10)

        def listen() -> None:
            connection, _ = elsewhere.accept()
            with connection:
                told.append(connection.recv(10_000))

        for host, accepted in (("127.1", False), ("127.0.0.1", False), ("127.1", True)):
            thread = threading.Thread(target=listen)
            thread.start()
            settings = HttpSettings.model_construct(token_file=token_file, plaintext_accepted=accepted)
            with pytest.raises(OSError):  # noqa: PT011 - it hangs up, in one way or the other
                ask_agent_page(f"{host}:{elsewhere.getsockname()[1]}", "/describe", 10, settings)
            thread.join()
    assert [b"s3cret" in each for each in told] == [False, True, True]


ANSWERS = {
    "redirect": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:%d/\r\nContent-Length: 0\r\n\r\n",
    "endless": b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2000,
    "nonsense": b"nonsense\r\n\r\n",
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_the_token_and_the_question_go_to_the_agent_alone_whatever_it_answers(
    kind: str, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where a redirect leads, nor to the environment's proxy; and an answer is bounded."""
    monkeypatch.setattr(http_asking, "PAGE_MAX_BYTES", 1000)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as agent, socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{other.getsockname()[1]}")
        settings = HttpSettings.model_construct(token_file=token_file)

        def listen() -> None:
            connection, _ = agent.accept()
            with connection:
                assert b"Bearer s3cret" in connection.recv(10_000)
                connection.sendall(ANSWERS[kind].replace(b"%d", b"%d" % other.getsockname()[1]))

        thread = threading.Thread(target=listen)
        thread.start()
        with pytest.raises(OSError, match={"redirect": "302", "endless": "too large", "nonsense": "nonsense"}[kind]):
            ask_agent_page(f"127.0.0.1:{agent.getsockname()[1]}", "/describe", 10, settings)
        thread.join()
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()


ENDLESS = {
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "head": (b"HTTP/1.1 200 OK\r\nX: ", b"a"),
    "body": (b"HTTP/1.1 200 OK\r\n\r\n", b"a"),
    "trailers": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_response_whose_end_never_comes_is_given_up_whatever_part_of_it_goes_on(kind: str) -> None:
    is_given_up, (begin, part) = threading.Event(), ENDLESS[kind]
    with socket.create_server(("127.0.0.1", 0)) as agent:

        def answer() -> None:
            connection, _ = agent.accept()
            with connection, suppress(OSError):
                connection.sendall(begin)
                while not is_given_up.wait(0.02):
                    connection.sendall(part)

        thread = threading.Thread(target=answer)
        thread.start()
        asked: list[BaseException] = []

        def ask() -> None:
            try:
                ask_agent_page(f"127.0.0.1:{agent.getsockname()[1]}", "/status", 0.2)
            except BaseException as error:
                asked.append(error)
            is_given_up.set()

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        ends = is_given_up.wait(20)
        is_given_up.set()
        thread.join()
        asking.join()
    assert (ends, [type(error) for error in asked]) == (True, [TimeoutError])


def test_a_response_that_is_cut_off_is_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as agent:

        def answer() -> None:
            with agent.accept()[0] as connection:
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nready")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match="IncompleteRead"):
            ask_agent_page(f"127.0.0.1:{agent.getsockname()[1]}", "/readyz", 10)
        thread.join()


@pytest.mark.parametrize("endpoint", ["[fe80::1:80", f"{'x' * 70}:80", "a..b:80", "host:port", "host:99999", "a b:80"])
def test_a_malformed_endpoint_is_the_failure_of_its_agent_alone(endpoint: str) -> None:
    assert not http_asking.is_on_own_host(endpoint)
    with pytest.raises(OSError, match=re.escape(endpoint)) as refused:
        ask_agent_page(endpoint, "/status", 10)
    assert endpoint in http_asking.why_silent(endpoint, refused.value)


def test_it_listens_at_an_address_of_ipv6() -> None:
    endpoint = HttpEndpoint(CollectorRegistry(), {})
    where = endpoint.start(Address("::1", 0))
    try:
        assert str(where) == f"[::1]:{where.port}"
        connection = http.client.HTTPConnection("::1", where.port, timeout=10)
        connection.request("GET", "/livez")
        assert connection.getresponse().read() == b"ok\n"
        connection.close()
    finally:
        endpoint.close()
