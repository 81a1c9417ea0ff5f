"""Scaling a zone's StatefulSet: who is drained before the end, who gets a share, and that a restart does neither."""

import contextlib
import errno
import io
import shlex
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from local_cluster.polling import wait_until
from tests.command_lines import is_command
from tests.package import strimzi
from tests.package.bare_environment import ROOT
from tests.package.scaling import PROGRAM, ApiServer, api_environment, api_server, stateful_set
from tests.package.stand_in import FOR_EVER, program

CONFIGURE = ROOT / "deploy" / "helm" / "files" / "configure.sh"
PATIENCE_S = 60


class Beside:
    """The program in pod kafka-az1-2, whose `remote-wal` is a script that writes what it is asked for."""

    def __init__(self, directory: Path, api: ApiServer, **environment: str) -> None:
        self.module = program(PROGRAM)
        self.asked = directory / "asked"
        self.module.__dict__["PROGRAM"] = str(directory / "remote-wal")
        self.module.__dict__["_RETRY_S"] = 0.01
        given = {"NAMESPACE": "streams", "POD": "kafka-az1-2", "FIRST_ID": "10", "DRAIN_SECONDS": "60"}
        self.environment = {**given, **api_environment(api), **environment}
        self.scaling = self.module.Scaling(self.module.Pod(self.environment), api.rights)
        self.answers_by("exit 0")

    def answers_by(self, script: str) -> None:
        """Have `remote-wal` write its arguments, and then do this."""
        file = Path(self.module.__dict__["PROGRAM"])
        file.write_text(f'#!/bin/bash\necho "$@" >>{shlex.quote(str(self.asked))}\n{script}\n')
        file.chmod(0o755)

    @property
    def commands(self) -> list[str]:
        return self.asked.read_text().splitlines() if self.asked.exists() else []

    def ask(self, path: str = "/before-stop") -> tuple[int, str]:
        server = self.module.server_of(self.scaling, 0)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            return self.ask_at(server, path)
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    @staticmethod
    def ask_at(server: Any, path: str = "/before-stop") -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}{path}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture(autouse=True)
def heeded_interrupts() -> Iterator[None]:
    """SIGINT is not ignored, as it is in what a shell runs in its background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with api_server(tmp_path / "api") as api:
        yield api


@pytest.fixture
def beside(tmp_path: Path, api: ApiServer) -> Beside:
    return Beside(tmp_path, api)


def test_a_pod_that_does_not_come_back_drains_its_broker(beside: Beside, api: ApiServer) -> None:
    api.tell("kafka-az1", replicas=2)
    assert beside.ask() == (200, "broker 12 is drained")
    assert beside.commands == ["reassign drain 12 --bootstrap-server 127.0.0.1:9092"]
    assert is_command("", beside.commands[0].split())


@pytest.mark.parametrize("replicas", [3, 4])
def test_a_pod_that_restarts_drains_nothing(beside: Beside, api: ApiServer, replicas: int) -> None:
    api.tell("kafka-az1", replicas)
    code, text = beside.ask()
    assert (code, beside.commands) == (200, [])
    assert "comes back" in text


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "403"),
        ("{", "does not tell of"),
        ("[]", "not a StatefulSet"),
        ({"kind": "Status"}, "not a StatefulSet"),
        (stateful_set(1, deletionTimestamp="2026-01-01T00:00:00Z"), "is deleted"),
        (stateful_set(0), "scaled to nothing"),
        (stateful_set(None), "how many replicas"),
        (stateful_set(True), "how many replicas"),
        (stateful_set("1"), "how many replicas"),
    ],
)
def test_who_is_not_told_that_the_pod_is_gone_for_good_drains_nothing(
    beside: Beside, api: ApiServer, answer: Any, reason: str
) -> None:
    """The kubelet tells of it in an event, as the answer is an error, and ends the broker all the same."""
    api.tell("kafka-az1", 1)
    [where] = api.answers
    api.answers[where] = answer
    code, text = beside.ask()
    assert (code, beside.commands) == (503, [])
    assert reason in text
    assert api.asked == [where]


def test_an_api_server_that_is_not_there_or_not_the_pods_own_drains_nothing(
    tmp_path: Path, beside: Beside, api: ApiServer
) -> None:
    api.tell("kafka-az1", 1)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        asks = Beside(tmp_path, api, KUBERNETES_SERVICE_PORT=str(nobody.getsockname()[1]))
        assert asks.ask()[0] == 503
    with api_server(tmp_path / "other") as other:
        other.tell("kafka-az1", 1)
        (api.rights / "token").rename(api.rights / "kept")
        assert beside.ask()[0] == 503, "without a token"
        (api.rights / "kept").rename(api.rights / "token")
        assert Beside(tmp_path, api, KUBERNETES_SERVICE_PORT=str(other.port)).ask()[0] == 503
        assert not other.asked, "who is not trusted is not given the token"
    assert not beside.commands


def test_ordinals_may_begin_elsewhere(beside: Beside) -> None:
    told = stateful_set(2)
    told["spec"]["ordinals"] = {"start": 5}
    assert [beside.module.comes_back(told, ordinal) for ordinal in (6, 7)] == [True, False]


def test_a_drain_that_fails_is_told(beside: Beside, api: ApiServer) -> None:
    api.tell("kafka-az1", 2)
    beside.answers_by("exit 1")
    code, text = beside.ask()
    assert code == 500
    assert "ended with 1" in text


def test_a_drain_that_takes_too_long_takes_back_what_is_under_way(tmp_path: Path, api: ApiServer) -> None:
    """Then the broker has time left to hand over what it leads."""
    api.tell("kafka-az1", 2)
    late = Beside(tmp_path, api, DRAIN_SECONDS="0.5")
    late.answers_by(f"trap 'exit 7' INT; {FOR_EVER}")
    code, text = late.ask()
    assert code == 500
    assert "ended with 7" in text


def test_without_the_switch_nothing_is_drained(tmp_path: Path, api: ApiServer) -> None:
    api.tell("kafka-az1", 2)
    beside = Beside(tmp_path, api)
    del beside.environment["DRAIN_SECONDS"]
    assert beside.ask() == (200, "drainOnScaleIn is off")
    assert not beside.commands


def test_there_is_one_question(beside: Beside, api: ApiServer) -> None:
    api.tell("kafka-az1", 2)
    assert beside.ask("/")[0] == 404
    assert not api.asked


def test_connections_of_strangers_take_a_bounded_number_of_threads_and_keep_the_kubelet_not_out(
    beside: Beside, api: ApiServer
) -> None:
    api.tell("kafka-az1", 3)
    server = beside.module.server_of(beside.scaling, 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    before, most = threading.active_count(), 0
    try:
        with contextlib.ExitStack() as held:
            for _ in range(300):
                held.enter_context(socket.create_connection(("127.0.0.1", server.server_address[1])))
                most = max(most, threading.active_count())
            assert beside.ask_at(server)[0] == 200
        assert most - before < 200
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_log_that_cannot_be_written_ends_nothing(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(sys, "stderr", Full())
    beside.module.say("draining")
    program(strimzi.PROGRAM).say("starting")


# Joining.


@pytest.fixture
def broker(beside: Beside) -> Iterator[ModuleType]:
    """Something listens where the pod's broker does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        beside.module.__dict__["BROKER"] = listening.getsockname()
        yield beside.module


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize("code", [0, 1])
def test_a_new_broker_gets_its_share_once(beside: Beside, code: int) -> None:
    beside.answers_by(f"exit {code}")
    beside.scaling.join()
    [command] = beside.commands
    assert command.startswith("reassign join 12 --if-empty --bootstrap-server 127.0.0.1:")
    assert is_command("", command.split())


@pytest.mark.usefixtures("broker")
def test_a_broker_that_is_not_yet_in_the_cluster_is_asked_again(beside: Beside) -> None:
    beside.answers_by(f"[ $(wc -l <{beside.asked}) = 3 ] || exit 2")
    beside.scaling.join()
    assert len(beside.commands) == 3


def test_no_command_runs_before_the_broker_answers(beside: Beside) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        beside.module.__dict__["BROKER"] = nobody.getsockname()
        joining = threading.Thread(target=beside.scaling.join)
        joining.start()
        beside.scaling.end_commands()
        joining.join(PATIENCE_S)
        assert not joining.is_alive()
    assert not beside.commands


@pytest.mark.usefixtures("broker")
def test_a_drain_ends_a_join(beside: Beside, api: ApiServer) -> None:
    api.tell("kafka-az1", 2)
    beside.answers_by(f'[ "$2" = drain ] || {{ trap "exit 7" INT; {FOR_EVER}; }}')
    joining = threading.Thread(target=beside.scaling.join)
    joining.start()
    wait_until(lambda: beside.commands or None, "the join runs", PATIENCE_S)
    assert beside.ask() == (200, "broker 12 is drained")
    joining.join(PATIENCE_S)
    assert not joining.is_alive()
    assert [command.split()[1] for command in beside.commands] == ["join", "drain"]


def test_security_settings_of_clients_are_handed_on(tmp_path: Path, api: ApiServer) -> None:
    api.tell("kafka-az1", 2)
    beside = Beside(tmp_path, api, COMMAND_CONFIG="/etc/remote-wal-client/client.properties")
    beside.ask()
    [command] = beside.commands
    assert command.endswith("--command-config /etc/remote-wal-client/client.properties")
    assert is_command("", command.split())


# What a pod's file has of its own.


@pytest.mark.parametrize(
    ("pod", "written"),
    [
        ("kafka-az2-0", "10 19910 broker,controller CONTROLLER://:9093,CLIENT kafka-az2-0.kafka 10.0.0.7:19090"),
        ("kafka-az2-3", "13 19913 broker CLIENT kafka-az2-3.kafka 10.0.0.7:19090"),
    ],
)
def test_the_first_pod_of_a_zone_is_a_controller(pod: str, written: str, tmp_path: Path) -> None:
    """And each pod takes its own certificate, also when it is a new one; the settings stay those of its start."""
    template, file, own = tmp_path / "template", tmp_path / "file", tmp_path / "own"
    own.mkdir()
    template.write_text("@ID@ @WAL_PORT@ @ROLES@ @CONTROLLER@CLIENT @POD@.kafka @POD_IP@:19090\n")
    environment = {"POD": pod, "POD_IP": "10.0.0.7", "FIRST_ID": "10"}
    for turn in ("first", "second"):
        for ordinal in range(4):
            (tmp_path / str(ordinal)).mkdir(exist_ok=True)
            for name in ("tls.key", "tls.crt", "ca.crt"):
                (tmp_path / str(ordinal) / name).write_text(f"{turn} {name} of {ordinal}\n")
        subprocess.run(["sh", CONFIGURE, template, file, tmp_path, own], env=environment, check=True)
        assert file.read_text() == f"{written}\n"
        key, chain, authority = (f"{turn} {name} of {pod[-1]}\n" for name in ("tls.key", "tls.crt", "ca.crt"))
        assert {one.name: one.read_text() for one in own.iterdir()} == {
            "tls.key": key,
            "tls.crt": chain,
            "ca.crt": authority,
            "keystore.pem": key + chain,
        }
        template.write_text("newer\n")
