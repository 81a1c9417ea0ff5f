#!/opt/remote-wal/bin/python
"""Drains the broker of its pod before the StatefulSet is scaled in, and gives it its share when it is new.

The kubelet asks for /before-stop before it ends the broker, and waits for the answer. Nobody tells a pod why it ends,
so the API server is asked how many replicas the StatefulSet wants: a pod whose ordinal is not below that number will
not come back. At a restart, an eviction or an upgrade it is below. If the answer is missing or not as expected, nothing
is drained: replicas that were not moved are still whole on their disk, and `remote-wal reassign drain` can move them
when the broker is gone, too.
"""

import contextlib
import json
import math
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry

from agent.http.http_asking import ask_directly
from agent.http.http_server import HttpLimits, HttpMetrics, HttpServer
from replication.wire.peer_connection import Address

PROGRAM: Final = str(Path(sys.executable).with_name("remote-wal"))
RIGHTS: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
BROKER: Final = ("127.0.0.1", 9092)
PORT: Final = 19098

_ASK_S: Final = 10.0
_CANCEL_S: Final = 30.0
"""How long a command may take back what is under way."""
_RETRY_S: Final = 15.0
_DONE, _SOME_LEFT = 0, 1
"""Exit codes of `remote-wal reassign`; others say that the cluster could not be asked, or not yet."""


class NotKnownError(Exception):
    """The API server does not say whether this pod comes back."""


class Pod:
    """This pod's name, ordinal and settings, from its environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.namespace = environment["NAMESPACE"]
        self.stateful_set, _, ordinal = environment["POD"].rpartition("-")
        self.ordinal = int(ordinal)
        self.broker_id = int(environment["FIRST_ID"]) + self.ordinal

    def command(self, *words: str) -> list[str]:
        """Return the command line of a `remote-wal reassign`."""
        client = self.environment.get("COMMAND_CONFIG")
        host, port = BROKER
        more = ["--command-config", client] if client else []
        return [PROGRAM, "reassign", *words, "--bootstrap-server", f"{host}:{port}", *more]


def comes_back(stateful_set: Mapping[str, Any], ordinal: int) -> bool:
    """Return whether there will be a pod of this ordinal, by the API server's description of its set. Raises
    NotKnownError."""
    metadata, spec = stateful_set.get("metadata"), stateful_set.get("spec")
    if stateful_set.get("kind") != "StatefulSet" or not isinstance(metadata, dict) or not isinstance(spec, dict):
        raise NotKnownError("the answer is not a StatefulSet")
    if "deletionTimestamp" in metadata:
        raise NotKnownError("the StatefulSet is deleted")
    replicas, first = spec.get("replicas"), (spec.get("ordinals") or {}).get("start", 0)
    if type(replicas) is not int or type(first) is not int:
        raise NotKnownError("the StatefulSet does not say how many replicas it wants")
    if replicas == 0:
        raise NotKnownError("the StatefulSet is scaled to nothing, so no broker of the zone could take over")
    return ordinal < first + replicas


def stateful_set_of(pod: Pod, rights: Path = RIGHTS) -> Mapping[str, Any]:
    """Ask the API server for the pod's StatefulSet. Raises NotKnownError."""
    host, port = (pod.environment.get(f"KUBERNETES_SERVICE_{one}", "") for one in ("HOST", "PORT"))
    where = f"/apis/apps/v1/namespaces/{pod.namespace}/statefulsets/{pod.stateful_set}"
    try:
        headers = {"Authorization": f"Bearer {(rights / 'token').read_text().strip()}", "Accept": "application/json"}
        url = f"https://{f'[{host}]' if ':' in host else host}:{port}{where}"
        trust = ssl.create_default_context(cafile=str(rights / "ca.crt"))
        told = json.loads(ask_directly(url, _ASK_S, headers, context=trust))
    except (OSError, ValueError) as error:
        raise NotKnownError(f"the API server does not tell of {where}: {error}") from error
    if not isinstance(told, dict):
        raise NotKnownError("the answer is not a StatefulSet")
    return told


class Scaling:
    """Runs `reassign` for the pod's broker, one at a time: a drain ends a join."""

    def __init__(self, pod: Pod, rights: Path = RIGHTS) -> None:
        self._pod = pod
        self._rights = rights
        self._ends = threading.Event()
        self._draining = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()

    def before_stop(self) -> tuple[int, str]:
        """Drain the broker if its pod will not come back. Returns the HTTP status and text for the kubelet."""
        pod = self._pod
        try:
            if comes_back(stateful_set_of(pod, self._rights), pod.ordinal):
                return 200, "this pod comes back, so its broker keeps its replicas"
        except NotKnownError as error:
            return 503, f"nothing is drained: {error}"
        if "DRAIN_SECONDS" not in pod.environment:
            return 200, "drainOnScaleIn is off"
        self.end_commands()
        with self._draining:
            say(f"{pod.stateful_set} is scaled in: draining broker {pod.broker_id}")
            code = self._run(*pod.command("drain", str(pod.broker_id)), seconds=float(pod.environment["DRAIN_SECONDS"]))
        if code == _DONE:
            return 200, f"broker {pod.broker_id} is drained"
        return 500, f"broker {pod.broker_id} is not drained, or not wholly: remote-wal reassign ended with {code}"

    def join(self) -> None:
        """Give the broker its share of replicas once it responds, if it has none."""
        broker = str(self._pod.broker_id)
        while not self._ends.is_set():
            if _answers():
                code = self._run(*self._pod.command("join", broker, "--if-empty"))
                if code in (_DONE, _SOME_LEFT):
                    say(f"reassign join {broker} ended with {code}")
                    return
            self._ends.wait(_RETRY_S)

    def end_commands(self) -> None:
        """Stop running commands, which take back what is under way, and start no other join."""
        self._ends.set()
        for command in [*self._running]:
            command.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(_CANCEL_S)

    def _run(self, *command: str, seconds: float | None = None) -> int:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as running:
            self._running.add(running)
            try:
                return running.wait(seconds)
            except subprocess.TimeoutExpired:
                running.send_signal(signal.SIGINT)
                return running.wait()
            finally:
                self._running.discard(running)


def _answers() -> bool:
    with contextlib.suppress(OSError), socket.create_connection(BROKER, timeout=1):
        return True
    return False


def say(text: str) -> None:
    """Write a line to the container's log."""
    with contextlib.suppress(OSError):  # a drain does not end by its log
        sys.stderr.write(f"scaling: {text}.\n")
        sys.stderr.flush()


def server_of(scaling: Scaling, port: int = PORT) -> HttpServer:
    """Return the server that the kubelet asks, whose threads and connections others cannot use up."""

    def answer(environ: Mapping[str, str], start_response: Callable[..., object]) -> list[bytes]:
        is_known = (environ["REQUEST_METHOD"], environ["PATH_INFO"]) == ("GET", "/before-stop")
        code, text = scaling.before_stop() if is_known else (404, "there is only /before-stop")
        if is_known:
            say(text)
        start_response(f"{code} {HTTPStatus(code).phrase}", [("Content-Type", "text/plain")])
        return [text.encode()]

    limits = HttpLimits(answer_s=math.inf)  # a drain has a limit of its own
    return HttpServer(Address("", port), answer, limits, HttpMetrics(CollectorRegistry()))


def main() -> None:
    """Serve the kubelet's requests until SIGTERM."""
    pod = Pod(os.environ)
    scaling = Scaling(pod)
    server = server_of(scaling)
    # Commands are ended by SIGINT, and would inherit that it is ignored.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The first process of a container has to ask for signals.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    if "JOIN" in os.environ:
        threading.Thread(target=scaling.join, name="join", daemon=True).start()
    server.serve_forever()
    scaling.end_commands()


if __name__ == "__main__":
    main()
