"""A storage manager that breaks at a step of the write or read path, or of a deletion, when a switch is set.

Loaded by class name and class path, as an operator's own backend would be. A switch is a file `<broker id>-<name>`
in the directory that the setting `switches` names; its text is the value. The agent whose broker id it bears acts on
it:

- die-before-put, die-mid-put, die-after-put: SIGKILL of the agent at that point of its next upload
- die-before-get, die-after-get: the same at its next read, so before its broker has the reply
- die-before-delete, die-after-delete: the same at its next deletion of an object with records
- die-before-deletion-started: the same when it is about to publish DELETE_SEGMENT_STARTED the next time
- die-after-deletion-finished: the same once a DELETE_SEGMENT_FINISHED is in the metadata topic
- stop-before-put, stop-before-get: SIGSTOP of the agent at its next upload, the object in hand, or read; whoever waits
  for that resumes it
- leave-a-hole: its next upload fails as soon as one behind it is stored, and so does every one from then on
- die-after-put-ms: SIGKILL so many milliseconds after an upload is stored, while it is published and links go out
- defect-in-pacing: the agent's group commit raises what nobody thought of, while the switch is set
- put-latency-ms, get-latency-ms: waits that long before each request, while the switch is set
- put-defect, get-defect: raises what no storage manager may, while the switch is set
- puts-refused: the store lacks that permission, while the switch is set
- garbled-links: the leader's side sends linked responses that nobody can decode, while the switch is set

The first kind is taken away by the one thread that acts on it, so the agent survives its next start.

No request to the store stands at the two ends of a deletion, so those two switches sit in the agent's publisher; and
the one for links in its encoder.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import Field

from kafka_log.crc32c import Buffer
from metadata_topic.records.publishable import Publishable
from metadata_topic.records.states import DELETED, DELETING
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher
from plugin.clients.backend_settings import ObjectBackendSettings
from plugin.clients.object_store import ListPage, ObjectHead, ObjectStore
from plugin.errors import RemoteStorageAccessError
from plugin.local_directory import LocalDirectorySettings, LocalWalStorageManager
from plugin.segment_metadata import RemoteWalCombinedLogSegmentMetadata
from replication.leader import response_links
from replication.wire.link import LinkedResponse, encode_linked_response
from rlm.write_path.commit.cadence import Cadence

_POLL_S = 0.005
_HOLE_WAIT_S = 10.0
_RECORDS = ".rwal"
"""How keys of objects with records end; not of a probe, nor of a snapshot."""


class BreakableSettings(LocalDirectorySettings):
    switches: Path = Field(description="Where the switch files are.")


class BreakableWalStorageManager(LocalWalStorageManager):
    settings_model = BreakableSettings

    def open_store(self, settings: ObjectBackendSettings) -> ObjectStore:
        assert isinstance(settings, BreakableSettings)
        settings.switches.mkdir(parents=True, exist_ok=True)
        prefix = f"{settings.switches}/{self._context.broker_id}-"
        directory = settings.directory.resolve()
        store = BreakableStore(super().open_store(settings), prefix, directory, self._sleep)
        _break_publisher(store)
        _break_pacing(store)
        _break_links(store)
        return store


class BreakableStore:
    """An ObjectStore that looks at its switches at each request."""

    def __init__(
        self, store: ObjectStore, prefix: str, directory: Path, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._directory = directory
        self._sleep = sleep
        self._hole_key: str | None = None
        self._is_stored_behind_the_hole = asyncio.Event()
        self._refuses = False

    async def put_if_absent(self, key: str, chunks: Sequence[bytes | memoryview]) -> None:
        await self._wait("put-latency-ms")
        if self.is_set("puts-refused"):
            raise RemoteStorageAccessError("put", key, "puts-refused is set")
        self._raise_if("put-defect", chunks)
        if key.endswith(_RECORDS):
            await self._leave_a_hole(key)
            if self.takes("stop-before-put"):
                _stop()
        self.die_if("die-before-put")
        if self.takes("die-mid-put"):
            self._write_half(key, chunks)
            _die()
        await self._store.put_if_absent(key, chunks)
        if self._hole_key is not None and key > self._hole_key:
            self._is_stored_behind_the_hole.set()
        self.die_if("die-after-put")
        delay_ms = self._take("die-after-put-ms")
        if delay_ms:
            threading.Timer(float(delay_ms) / 1000, _die).start()

    async def _leave_a_hole(self, key: str) -> None:
        if self.takes("leave-a-hole"):
            self._hole_key = key  # keys of one incarnation are in the order of their sequence
            with suppress(TimeoutError):
                async with asyncio.timeout(_HOLE_WAIT_S):
                    await self._is_stored_behind_the_hole.wait()
            self._refuses = True
        if self._refuses:
            raise RemoteStorageAccessError("put", key, "there is to be a hole")

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        await self._wait("get-latency-ms")
        self._raise_if("get-defect", self._store)
        self.die_if("die-before-get")
        if self.takes("stop-before-get"):
            _stop()
        data = await self._store.get_range(key, start, end)
        self.die_if("die-after-get")
        return data

    async def head(self, key: str) -> ObjectHead:
        return await self._store.head(key)

    async def delete(self, key: str) -> None:
        holds_records = key.endswith(_RECORDS)
        if holds_records:
            self.die_if("die-before-delete")
        await self._store.delete(key)
        if holds_records:
            self.die_if("die-after-delete")

    async def list_page(self, prefix: str, page: str | None) -> ListPage:
        return await self._store.list_page(prefix, page)

    def close(self) -> None:
        self._store.close()

    def _write_half(self, key: str, chunks: Sequence[bytes | memoryview]) -> None:
        """What a killed upload leaves behind: a temporary file beside the key."""
        path = self._directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        body = b"".join(chunks)
        path.with_name(f".{path.name}-half").write_bytes(body[: len(body) // 2])

    def is_set(self, switch: str) -> bool:
        return Path(self._prefix + switch).exists()

    def _raise_if(self, switch: str, at_hand: object) -> None:
        if self.is_set(switch):
            shown = [bytes(each[:2000]) for each in at_hand] if isinstance(at_hand, Sequence) else at_hand
            raise KeyError("what nobody thought of", shown)

    async def _wait(self, switch: str) -> None:
        try:
            latency_ms = float(Path(self._prefix + switch).read_text())  # noqa: ASYNC240 - a small file
        except FileNotFoundError:
            return
        await self._sleep(latency_ms / 1000)

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

    def takes(self, switch: str) -> bool:
        """Whether it is set: to one caller alone."""
        return self._take(switch) is not None

    def die_if(self, switch: str) -> None:
        if self.takes(switch):
            _die()


def _break_links(store: BreakableStore) -> None:
    def garbled(response: LinkedResponse) -> list[Buffer]:
        encoded = encode_linked_response(response)
        return [b"\xff" * 4, *encoded] if store.is_set("garbled-links") else encoded

    response_links.encode_linked_response = garbled  # type: ignore[attr-defined]


def _break_publisher(store: BreakableStore) -> None:
    """Look at the switches of deletions whenever this process publishes."""
    publish = RemoteWalMetadataPublisher.publish

    def publish_or_die(publisher: RemoteWalMetadataPublisher, record: Publishable) -> None:
        state = record.state if isinstance(record, RemoteWalCombinedLogSegmentMetadata) else None
        if state is DELETING:
            store.die_if("die-before-deletion-started")
        publish(publisher, record)
        if state is DELETED and store.takes("die-after-deletion-finished"):
            threading.Thread(target=_die_once_published, args=(publisher, publisher.counters["queued"])).start()

    RemoteWalMetadataPublisher.publish = publish_or_die  # type: ignore[method-assign,assignment]


def _break_pacing(store: BreakableStore) -> None:
    start_s = Cadence.start_s

    def start_s_or_fail(cadence: Cadence, *state: Any) -> float:
        if store.is_set("defect-in-pacing"):
            raise ZeroDivisionError("planted in the pacing")
        return start_s(cadence, *state)

    Cadence.start_s = start_s_or_fail  # type: ignore[method-assign,assignment]


def _die_once_published(publisher: RemoteWalMetadataPublisher, records: int) -> None:
    """So many records are acknowledged. In a thread: brokers replicate through the event loop's proxies meanwhile."""
    pause = threading.Event()
    while publisher.counters.get("acknowledged", 0) < records:
        pause.wait(_POLL_S)
    _die()


def _stop() -> None:
    # All threads stand still by this, but the one that it is sent to is the first: it takes no further step.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
