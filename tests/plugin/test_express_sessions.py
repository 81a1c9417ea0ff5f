"""A session of S3 Express for many threads, while the store gives sessions and while it does not."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import structlog

from plugin.errors import RemoteStorageTimeoutError
from plugin.s3_express import ExpressSession, ExpressSessions

SESSION = ExpressSession("key", "secret", "token", 300.0)


class Store:
    """Answers CreateSession; at `gate` if that is closed."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls = 0
        self.is_down = False
        self.gate = threading.Event()
        self.gate.set()
        self.is_asked = threading.Event()

    def create(self) -> ExpressSession:
        self.calls += 1
        self.is_asked.set()
        assert self.gate.wait(60)
        if self.is_down:
            raise RemoteStorageTimeoutError("create session", "bucket", f"call {self.calls}")
        return SESSION


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def sessions(store: Store) -> ExpressSessions:
    return ExpressSessions(store.create, lambda: store.now)


def test_a_failed_renewal_leaves_the_session_in_use_to_its_end(store: Store, sessions: ExpressSessions) -> None:
    session = sessions.get_credentials("bucket")
    store.is_down = True
    store.now = 245.0
    with structlog.testing.capture_logs() as told:
        assert sessions.get_credentials("bucket") is session
        assert sessions.get_credentials("bucket") is session
    assert [line["event"] for line in told] == ["session_not_renewed"]
    assert store.calls == 2, "the next try waits a little"
    store.now = 299.0
    assert sessions.get_credentials("bucket") is session
    store.now = 300.0
    with pytest.raises(RemoteStorageTimeoutError):
        sessions.get_credentials("bucket")


def test_whoever_waited_for_a_session_shares_its_failure(
    store: Store, sessions: ExpressSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.is_down = True
    store.gate.clear()
    entered = [threading.Event() for _ in range(9)]

    class Lock:
        """A lock that says who comes."""

        def __enter__(self) -> None:
            next((one for one in entered if not one.is_set()), entered[-1]).set()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    lock = threading.Lock()
    monkeypatch.setattr(sessions, "_lock", Lock())
    with ThreadPoolExecutor(9) as pool:
        asked = []
        for one in entered:  # one after the other
            asked.append(pool.submit(sessions.get_credentials, "bucket"))
            assert one.wait(60)
        assert store.is_asked.wait(60)
        store.gate.set()
        failures = {str(one.exception(60)) for one in asked}
    assert len(failures) == 1
    assert store.calls == 1
    with pytest.raises(RemoteStorageTimeoutError, match="call 2"):
        sessions.get_credentials("bucket")
    store.is_down = False
    assert sessions.get_credentials("bucket") is SESSION


def test_forgetting_a_session_waits_for_no_renewal(store: Store, sessions: ExpressSessions) -> None:
    sessions.get_credentials("bucket")
    store.now = 245.0
    store.gate.clear()
    store.is_asked.clear()
    with ThreadPoolExecutor(2) as pool:
        renewing = pool.submit(sessions.get_credentials, "bucket")
        assert store.is_asked.wait(60)
        pool.submit(sessions.forget).result(10)
        store.gate.set()
        renewing.result(60)
    sessions.get_credentials("bucket")
    assert store.calls == 2, "the new session is not the one that was forgotten"
