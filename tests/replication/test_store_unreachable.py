"""No name, no TLS, no descriptor, nobody there: each by its own reason, from the request through the breaker to inline,
and links again once the store is back.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from plugin.errors import RemoteStorageError
from plugin.object_wal_storage_manager import ObjectWalStorageManager
from plugin.remote_wal_storage_manager import StorageContext
from plugin.s3 import S3WalStorageManager
from plugin.segment_metadata import CombinedSegmentId
from plugin.wrappers.guarded_storage import GuardedStorageManager
from tests.descriptors import none_left
from tests.kafka_log.batches import batches
from tests.replication.two_agents import two_agents


@pytest.fixture
def manager_at(tmp_path: Path) -> Iterator[Callable[[str], ObjectWalStorageManager]]:
    credentials = tmp_path / "credentials"
    credentials.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    with ExitStack() as made:

        def manager(endpoint: str) -> ObjectWalStorageManager:
            manager = S3WalStorageManager()
            settings = {
                "bucket": "bucket",
                "region": "us-east-1",
                "endpoint.url": endpoint,
                "allow.http": "true",
                "addressing.style": "path",
                "credentials.file": str(credentials),
                "attempt.timeout.ms": "2000",
                "total.timeout.ms": "2000",
            }
            manager.configure(settings, StorageContext("cluster", 2, is_written=False))
            made.enter_context(closing(manager))
            return manager

        yield manager


@contextmanager
def listener_without_tls() -> Iterator[str]:
    """Who connects finds no TLS: the connection is closed at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"220 no TLS here\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextmanager
def nobody() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


@contextmanager
def no_such_name() -> Iterator[str]:
    yield "https://store.invalid"


@pytest.mark.parametrize(
    ("store", "label"),
    [
        (no_such_name, "dns"),
        (listener_without_tls, "tls"),
        (nobody, "connection"),
        (none_left, "file_descriptors"),
    ],
)
async def test_each_way_to_have_no_store_has_its_reason_and_ends_in_inline(
    store: Callable[[], AbstractContextManager[str | None]],
    label: str,
    manager_at: Callable[[str], ObjectWalStorageManager],
) -> None:
    reads = GuardedStorageManager()
    async with two_agents(hydration_timeout_s=60.0, read_from=reads) as agents:
        reads.arrived(agents.storage)
        follower, offset = await agents.connect(), 0
        raw = batches(1, offset)
        agents.append({0: raw})
        assert await follower.fetch({0: offset}) == follower.expected({0: raw})
        used = manager_at("http://127.0.0.1:1")
        with pytest.raises(RemoteStorageError):  # what a client opens on its first use is open now
            await used.fetch_log_segment(CombinedSegmentId(1, 1, 1), 0, 1)
        with store() as endpoint:
            away = used if endpoint is None else manager_at(endpoint)
            reads.arrived(away)
            while not agents.hydration.tiers.given_up:
                offset += 1
                raw = batches(1, offset)
                agents.append({0: raw})
                assert await follower.fetch({0: offset}) == follower.expected({0: raw})
                assert offset < 10
            assert agents.follower_faults(f"hydration_{label}") >= 3
            assert agents.follower_faults(f"inline_requested_{label}") >= 1
            assert set(away.request_counts.failures) <= {label, "connection"}
            await agents.until(lambda: agents.leader_faults("links_paused") == 1)

        reads.arrived(agents.storage)
        agents.now_s += 100
        agents.append({0: batches(1, offset + 1)})
        await agents.until(lambda: agents.leader_faults("links_resumed") == 1)
