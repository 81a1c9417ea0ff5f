"""The native S3 server: where it listens, and who trusts it."""

import sys
from pathlib import Path

import pytest
from cryptography import x509

from local_cluster.object_store.native import start_native_store

SERVER = """#!{python}
import socket, sys
host, port = sys.argv[sys.argv.index("--port") + 1].split(":")
listening = socket.create_server((host, int(port)))
while True:
    listening.accept()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of a server that only listens."""
    program = tmp_path / "program"
    program.write_text(SERVER.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr("local_cluster.object_store.native.native_server", lambda: program)
    return tmp_path / "store"


def test_it_listens_where_it_is_told_and_its_certificate_names_that(home: Path) -> None:
    server, told = start_native_store(home, "wal", host="127.0.0.7", prefix=(sys.executable,))
    try:
        assert told.endpoint_url.startswith("https://127.0.0.7:")
        assert server.spec.command[0] == sys.executable
        certificate = x509.load_pem_x509_certificate((home / "localhost.pem").read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert {str(one) for one in names.get_values_for_type(x509.IPAddress)} == {"127.0.0.1", "127.0.0.7"}
    finally:
        server.kill()
