"""The chart's program that drains and fills brokers, and an API server that tells it of a StatefulSet."""

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from local_cluster.security.authority import Authority
from tests.package.bare_environment import ROOT

PROGRAM = ROOT / "deploy" / "helm" / "files" / "scaling.py"
TOKEN = "token-of-the-pod"


def stateful_set(replicas: Any, **metadata: str) -> dict[str, Any]:
    """What the API server answers, as far as it matters."""
    return {"kind": "StatefulSet", "metadata": {"name": "kafka-az1", **metadata}, "spec": {"replicas": replicas}}


@dataclass(slots=True)
class ApiServer:
    """Answers as the API server does; `answers` are by path."""

    port: int
    rights: Path
    """What is mounted in the pod: a token, and the authority that signed the server's certificate."""
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def tell(self, name: str, replicas: int, namespace: str = "streams") -> None:
        """From now on, this StatefulSet wants so many replicas."""
        self.answers[f"/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}"] = stateful_set(replicas)


@contextmanager
def api_server(directory: Path, host: str = "127.0.0.1") -> Iterator[ApiServer]:
    """Serve until the end, at a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            api.asked.append(self.path)
            answer = api.answers.get(self.path)
            is_known = self.headers["Authorization"] == f"Bearer {TOKEN}"
            code = 200 if is_known and answer is not None else 403
            self.send_response(code)
            self.end_headers()
            if code == 200:
                self.wfile.write((answer if isinstance(answer, str) else json.dumps(answer)).encode())

        def log_message(self, *_: object) -> None:
            pass

    directory.mkdir()
    files = Authority.kept(directory).tls_for("api", [host])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate_file, files.key_file)
    server = ThreadingHTTPServer((host, 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    rights = directory / "rights"
    rights.mkdir()
    (rights / "token").write_text(f"{TOKEN}\n")
    (rights / "ca.crt").write_bytes(Path(files.ca_file).read_bytes())
    api = ApiServer(server.server_address[1], rights)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def api_environment(api: ApiServer, host: str = "127.0.0.1") -> Mapping[str, str]:
    """The variables that the kubelet sets in each container."""
    return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(api.port)}
