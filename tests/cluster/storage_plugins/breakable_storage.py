"""A storage manager that breaks at a step of the write or read path when a switch is set.

Loaded by class name and class path, as an operator's own backend would be. A switch is a file `<broker id>-<name>`
in the directory that the setting `switches` names; its text is the value. The agent whose broker id it bears acts on
it:

- die-before-put, die-mid-put, die-after-put: SIGKILL of the agent at that point of its next upload
- die-before-get, die-after-get: the same at its next read, so before its broker has the reply
- die-before-delete, die-after-delete: the same at its next deletion of an object with records
- stop-before-get: SIGSTOP of the agent at its next read; whoever waits for that resumes it
- die-after-put-ms: SIGKILL so many milliseconds after an upload is stored, while it is published and links go out
- put-latency-ms, get-latency-ms: waits that long before each request, while the switch is set

The first kind is taken away by the one thread that acts on it, so the agent survives its next start.
"""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import Field

from plugin.backend_settings import ObjectBackendSettings
from plugin.local_directory import LocalDirectorySettings, LocalWalStorageManager
from plugin.object_store import ListPage, ObjectHead, ObjectStore


class BreakableSettings(LocalDirectorySettings):
    """Settings of BreakableWalStorageManager."""

    switches: Path = Field(description="Where the switch files are.")


class BreakableWalStorageManager(LocalWalStorageManager):
    """LocalWalStorageManager with switches."""

    settings_model = BreakableSettings

    def open_store(self, settings: ObjectBackendSettings) -> ObjectStore:
        assert isinstance(settings, BreakableSettings)
        settings.switches.mkdir(parents=True, exist_ok=True)
        prefix = f"{settings.switches}/{self._context.broker_id}-"
        directory = settings.directory.resolve()
        return BreakableStore(super().open_store(settings), prefix, directory, self._sleep)


class BreakableStore:
    """An ObjectStore that looks at its switches at each request."""

    def __init__(self, store: ObjectStore, prefix: str, directory: Path, sleep: Callable[[float], None]) -> None:
        self._store = store
        self._prefix = prefix
        self._directory = directory
        self._sleep = sleep

    def put_if_absent(self, key: str, chunks: Sequence[bytes | memoryview]) -> None:
        self._wait("put-latency-ms")
        self._die_if("die-before-put")
        if self._takes("die-mid-put"):
            self._write_half(key, chunks)
            _die()
        self._store.put_if_absent(key, chunks)
        self._die_if("die-after-put")
        delay_ms = self._take("die-after-put-ms")
        if delay_ms:
            threading.Timer(float(delay_ms) / 1000, _die).start()

    def get_range(self, key: str, start: int, end: int) -> bytes:
        self._wait("get-latency-ms")
        self._die_if("die-before-get")
        if self._takes("stop-before-get"):
            os.kill(os.getpid(), signal.SIGSTOP)
        data = self._store.get_range(key, start, end)
        self._die_if("die-after-get")
        return data

    def head(self, key: str) -> ObjectHead:
        return self._store.head(key)

    def delete(self, key: str) -> None:
        holds_records = key.endswith(".rwal")  # not a probe, nor a snapshot
        if holds_records:
            self._die_if("die-before-delete")
        self._store.delete(key)
        if holds_records:
            self._die_if("die-after-delete")

    def list_page(self, prefix: str, page: str | None) -> ListPage:
        return self._store.list_page(prefix, page)

    def close(self) -> None:
        self._store.close()

    def _write_half(self, key: str, chunks: Sequence[bytes | memoryview]) -> None:
        """What a killed upload leaves behind: a temporary file beside the key."""
        path = self._directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        body = b"".join(chunks)
        path.with_name(f".{path.name}-half").write_bytes(body[: len(body) // 2])

    def _wait(self, switch: str) -> None:
        try:
            latency_ms = float(Path(self._prefix + switch).read_text())
        except FileNotFoundError:
            return
        self._sleep(latency_ms / 1000)

    def _take(self, switch: str) -> str | None:
        """The switch's text, to one caller alone."""
        taken = Path(f"{self._prefix}{switch}.taken-{threading.get_ident()}")
        try:
            Path(self._prefix + switch).rename(taken)
        except FileNotFoundError:
            return None
        text = taken.read_text()
        taken.unlink()
        return text

    def _takes(self, switch: str) -> bool:
        return self._take(switch) is not None

    def _die_if(self, switch: str) -> None:
        if self._takes(switch):
            _die()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
