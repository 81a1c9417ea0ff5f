"""Azurite, Azure's own emulator of its storage: `npm install -g azurite` brings it."""

import base64
import hashlib
import hmac
import http.client
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from tests.plugin.dialect_front import AZURITE_ACCOUNT

PROGRAM: Final = "azurite-blob"
WHY_SKIPPED: Final = "Azurite is not installed (npm install -g azurite)"
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""That of every Azurite; its documentation tells it."""
_VERSION: Final = "2019-12-12"
_EXPIRY: Final = "2100-01-01T00:00:00Z"


def is_installed() -> bool:
    return shutil.which(PROGRAM) is not None


def sas_token() -> str:
    signed = [AZURITE_ACCOUNT, "rwdlacup", "b", "sco", "", _EXPIRY, "", "", _VERSION, ""]
    signature = hmac.new(base64.b64decode(KEY), "\n".join(signed).encode(), hashlib.sha256).digest()
    fields = {"sv": _VERSION, "ss": "b", "srt": "sco", "sp": "rwdlacup", "se": _EXPIRY}
    return urlencode({**fields, "sig": base64.b64encode(signature).decode()})


@contextmanager
def running(directory: Path, container: str) -> Iterator[int]:
    """Its port, once it answers and the container is there."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    command = [PROGRAM, "--blobPort", str(port), "--inMemoryPersistence", "--disableTelemetry", "--silent"]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _create(port, container)
            yield port
        finally:
            process.terminate()


def _create(port: int, container: str) -> None:
    never = threading.Event()
    for _ in range(200):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("PUT", f"/{AZURITE_ACCOUNT}/{container}?restype=container&{sas_token()}")
            answer = connection.getresponse()
            if answer.status != 201:
                raise RuntimeError(f"no container: {answer.read().decode()}")
            return
        except ConnectionRefusedError:
            never.wait(0.1)
        finally:
            connection.close()
    raise RuntimeError("Azurite does not answer")
