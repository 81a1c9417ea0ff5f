"""What stores do to us, and what comes of it."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from plugin.azure_blob import AzureBlobWalStorageManager
from plugin.errors import (
    RemoteSegmentCorruptError,
    RemoteStorageAccessError,
    RemoteStorageConfigError,
    RemoteStorageThrottledError,
    RemoteStorageTimeoutError,
    RemoteStorageUnreachableError,
)
from plugin.gcs import GcsWalStorageManager
from plugin.s3 import S3WalStorageManager
from plugin.s3_express import S3ExpressWalStorageManager
from plugin.store_loop import ask, ask_each
from tests.faulty_store import Fault, FaultyServer
from tests.plugin.storage_backends import Backend, VirtualTime, segment

PATIENT = {"attempt_timeout_ms": "9000"}
"""So long that a busy machine takes no request for one without an answer."""
QUICK = {"attempt_timeout_ms": "400", "total_timeout_ms": "10000"}


def test_a_throttled_put_is_sent_again_with_growing_waits(remote: Backend, server: FaultyServer) -> None:
    time = VirtualTime()
    manager = remote.unwritten(time)
    server.faults.add(remote.its(Fault("error", ("PUT",), times=3)))
    ask(manager.copy_log_segment_data(*segment(0, [b"abc"])))
    assert manager.request_counts.put == 4
    assert manager.request_counts.failures == {"throttled": 3}
    assert len(time.slept) == 3


def test_a_store_that_throttles_for_ever_ends_with_the_total_deadline(remote: Backend, server: FaultyServer) -> None:
    time = VirtualTime()
    manager = remote.unwritten(time)
    server.faults.add(remote.its(Fault("error", ("PUT",))))
    begun = time.now
    with pytest.raises(RemoteStorageThrottledError):
        ask(manager.copy_log_segment_data(*segment(0, [b"abc"])))
    assert time.now - begun <= 10 - 2, "the last attempt could still have taken its 2 s"
    assert manager.request_counts.put > 4


@pytest.mark.parametrize(
    "fault",
    [
        Fault("error", ("PUT",), times=1, status=500, code="InternalError", after_effect=True),
        Fault("lose_response", ("PUT",), times=1),
    ],
    ids=["500-after-effect", "lost-response"],
)
def test_a_put_that_took_effect_without_saying_so_succeeds(remote: Backend, server: FaultyServer, fault: Fault) -> None:
    manager = remote.unwritten(VirtualTime(), **PATIENT)
    server.faults.add(remote.its(fault))
    update = ask(manager.copy_log_segment_data(*segment(0, [b"abc"])))
    assert ask(manager.fetch_log_segment(update.combined_segment_id, 112, 115)) == b"abc"
    assert (manager.request_counts.put, manager.request_counts.head) == (2, 1)


def test_a_put_that_failed_before_it_took_effect_succeeds(remote: Backend, server: FaultyServer) -> None:
    manager = remote.unwritten(VirtualTime(), **PATIENT)
    server.faults.add(remote.its(Fault("error", ("PUT",), times=1, status=500, code="InternalError")))
    ask(manager.copy_log_segment_data(*segment(0, [b"abc"])))
    assert (manager.request_counts.put, manager.request_counts.head) == (2, 0)
    assert manager.request_counts.failures == {"server_error": 1}


def test_a_put_that_hangs_is_given_up_and_sent_again(remote: Backend, server: FaultyServer) -> None:
    manager = remote.unwritten(VirtualTime(), **QUICK)
    server.faults.add(remote.its(Fault("hang", ("PUT",), times=1)))
    update = ask(manager.copy_log_segment_data(*segment(0, [b"abc"])))
    assert manager.request_counts.failures["timeout"] >= 1, "a busy machine may miss the short time once more"
    assert ask(manager.fetch_log_segment(update.combined_segment_id, 112, 115)) == b"abc"


def test_a_store_that_hangs_for_ever_is_a_time_out(remote: Backend, server: FaultyServer) -> None:
    manager = remote.unwritten(None, **{**QUICK, "total_timeout_ms": "500"})
    server.faults.add(remote.its(Fault("hang")))
    with pytest.raises(RemoteStorageTimeoutError):
        ask(manager.fetch_log_segment(segment(0, [])[0].combined_segment_id, 0, 10))


def test_closing_ends_the_wait_between_attempts(remote: Backend, server: FaultyServer) -> None:
    manager = remote.unwritten(total_timeout_ms="600000")
    server.faults.add(remote.its(Fault("error", ("GET",))))
    ended = threading.Event()

    def fetch() -> None:
        with pytest.raises(Exception, match=r"closed|get"):
            ask(manager.fetch_log_segment(segment(0, [])[0].combined_segment_id, 0, 10))
        ended.set()

    thread = threading.Thread(target=fetch)
    thread.start()
    manager.close()
    thread.join(timeout=30)
    assert ended.is_set()


def test_a_cut_body_is_fetched_once_more(remote: Backend, server: FaultyServer) -> None:
    manager = remote.manager(VirtualTime())
    update = ask(manager.copy_log_segment_data(*segment(0, [b"abcdef"])))
    server.faults.add(remote.its(Fault("cut_body", ("GET",), times=1)))
    assert ask(manager.fetch_log_segment(update.combined_segment_id, 112, 118)) == b"abcdef"
    server.faults.add(remote.its(Fault("cut_body", ("GET",))))
    gets = manager.request_counts.get
    with pytest.raises(RemoteSegmentCorruptError):
        ask(manager.fetch_log_segment(update.combined_segment_id, 112, 118))
    assert manager.request_counts.get == gets + 2


def test_bytes_altered_on_their_way_to_the_store_are_sent_again(cloud: Backend, server: FaultyServer) -> None:
    manager = cloud.unwritten(VirtualTime())
    server.faults.add(cloud.its(Fault("alter_body", ("PUT",), times=1)))
    update = ask(manager.copy_log_segment_data(*segment(0, [b"abcdef"])))
    assert manager.request_counts.failures == {"bad_digest": 1}
    assert ask(manager.fetch_log_segment(update.combined_segment_id, 112, 118)) == b"abcdef"


def test_an_altered_footer_is_corrupt(remote: Backend, server: FaultyServer) -> None:
    manager = remote.manager(VirtualTime())
    ask(manager.copy_log_segment_data(*segment(0, [b"abcdef"])))
    (stored,) = ask_each(manager.list_log_segments())
    server.faults.add(remote.its(Fault("alter_body", ("GET",))))
    with pytest.raises(RemoteSegmentCorruptError):
        ask(manager.fetch_segment_metadata(stored))


def test_a_store_that_ignores_conditions_is_refused_at_start(remote: Backend, server: FaultyServer) -> None:
    server.faults.add(remote.its(Fault("ignore_conditions", ("PUT",))))
    with pytest.raises(RemoteStorageConfigError, match="conditional PUT"):
        remote.manager()
    assert list(ask(remote.store().list_page(f"{remote.cluster_id}/", None)).objects) == []


PERMISSIONS = {
    S3WalStorageManager: {"put": "s3:PutObject", "get": "s3:GetObject", "list": "s3:ListBucket"},
    S3ExpressWalStorageManager: dict.fromkeys(("put", "get", "list"), "s3express:CreateSession"),
    GcsWalStorageManager: {
        f"{name}": f"storage.objects.{does}" for name, does in (("put", "create"), ("get", "get"), ("list", "list"))
    },
    AzureBlobWalStorageManager: {"put": "blobs/write", "get": "blobs/read", "list": "blobs/read"},
}


@pytest.mark.parametrize("operation", ["put", "get", "list"])
def test_a_missing_permission_is_named_and_not_asked_for_again(
    remote: Backend, server: FaultyServer, operation: str
) -> None:
    manager = remote.manager()
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: ask(manager.copy_log_segment_data(*segment(0, [b"abc"]))),
        "get": lambda: ask(manager.fetch_log_segment(segment(0, [])[0].combined_segment_id, 0, 1)),
        "list": lambda: list(ask_each(manager.list_log_segments())),
    }
    server.faults.add(remote.its(Fault("error", status=403, code="AccessDenied")))
    before = getattr(manager.request_counts, operation)
    with pytest.raises(RemoteStorageAccessError) as caught:
        calls[operation]()
    assert getattr(manager.request_counts, operation) == before + 1
    (permissions,) = [told for kind, told in PERMISSIONS.items() if isinstance(manager, kind)]
    assert permissions[operation] in caught.value.hint
    assert "planted-secret" not in repr(caught.getrepr(chain=True))


def test_a_clock_that_is_off_is_said_to_be(remote: Backend, server: FaultyServer) -> None:
    manager = remote.manager()
    server.faults.add(remote.its(Fault("error", status=403, code="RequestTimeTooSkewed")))
    with pytest.raises(RemoteStorageAccessError, match="clock") as caught:
        list(ask_each(manager.list_log_segments()))
    assert caught.value.label == "clock_skew"


def test_nobody_at_the_endpoint_is_unreachable(remote: Backend) -> None:
    with pytest.raises(RemoteStorageUnreachableError) as caught:
        remote.manager(VirtualTime(), endpoint_url="http://127.0.0.1:1")
    assert caught.value.label == "connection"


def test_a_bucket_that_is_not_there_is_named(remote: Backend) -> None:
    key = "bucket" if "bucket" in remote.settings else "container"
    with pytest.raises(RemoteStorageConfigError, match=f"no such {key}"):
        remote.manager(None, None, **{key: remote.settings[key].replace("remote", "no-such")})


def test_plain_http_needs_a_flag(remote: Backend) -> None:
    with pytest.raises(RemoteStorageConfigError, match="plain http"):
        remote.manager(allow_http="false")


@pytest.mark.parametrize("url", ["ftp://host", "https://", "host:9000", "https://user:planted-secret@host"])
def test_an_endpoint_that_is_no_url_is_refused(remote: Backend, url: str) -> None:
    with pytest.raises(RemoteStorageConfigError) as caught:
        remote.manager(endpoint_url=url)
    assert caught.value.key == "endpoint.url"
    assert "planted-secret" not in str(caught.value)


def test_missing_credentials_are_said_to_be(cloud: Backend, credentials_file: Path) -> None:
    credentials_file.write_text(credentials_file.read_text().replace("default", "other"))
    with pytest.raises(RemoteStorageConfigError) as caught:
        cloud.manager()
    assert caught.value.key == "credentials.file"


def test_each_class_refuses_the_other_kind_of_bucket(cloud: Backend) -> None:
    express = cloud.settings["bucket"].endswith("--x-s3")
    other = "plain-bucket" if express else "dir--local-az1--x-s3"
    with pytest.raises(RemoteStorageConfigError, match="use the class") as caught:
        cloud.manager(bucket=other)
    assert caught.value.key == "bucket"


def test_a_listing_of_several_pages_is_whole(cloud: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    store = cloud.store()
    expected = {f"{cloud.cluster_id}/{n}" for n in range(5)}
    for key in expected:
        ask(store.put_if_absent(key, [b"x"]))
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "2")  # of the server, in this process
    found, page, pages = [], None, 0
    while True:
        listed = ask(store.list_page(f"{cloud.cluster_id}/", page))
        found += [item.key for item in listed.objects]
        pages, page = pages + 1, listed.next_page
        if page is None:
            break
    assert (len(found), set(found), pages) == (5, expected, 3)


def test_an_expired_session_is_replaced_and_the_request_sent_once_more(express: Backend, server: FaultyServer) -> None:
    manager = express.manager(VirtualTime())
    server.front.sessions.expire()
    ask(manager.copy_log_segment_data(*segment(0, [b"abc"])))
    assert manager.request_counts.failures["session_expired"] == 1


def test_a_store_that_expires_every_session_gets_one_more_request(express: Backend, server: FaultyServer) -> None:
    manager = express.unwritten(VirtualTime())
    server.faults.add(express.its(Fault("error", ("PUT",), status=400, code="ExpiredToken")))
    with pytest.raises(RemoteStorageAccessError):
        ask(manager.copy_log_segment_data(*segment(0, [b"abc"])))
    assert manager.request_counts.put == 2


def test_a_session_is_replaced_before_it_ends(express: Backend, server: FaultyServer) -> None:
    time = VirtualTime()
    manager = express.unwritten(time)
    sessions = server.front.sessions

    def sessions_for(sequence: int) -> int:
        before = sessions.created
        ask(manager.copy_log_segment_data(*segment(sequence, [b"abc"])))
        return sessions.created - before

    assert sessions_for(0) == 1
    time.now += 200
    assert sessions_for(1) == 0
    time.now += 45
    assert sessions_for(2) == 1, "245 s are less than the 300 of the session, but near its end"
    assert manager.request_counts.failures == {}


def test_a_session_that_is_not_renewed_in_time_is_used_to_its_end(express: Backend, server: FaultyServer) -> None:
    time = VirtualTime()
    manager = express.unwritten(time)
    sessions = server.front.sessions

    def sessions_for(sequence: int) -> int:
        before = sessions.created
        ask(manager.copy_log_segment_data(*segment(sequence, [b"abc"])))
        return sessions.created - before

    assert sessions_for(0) == 1
    server.faults.add(Fault("empty_session", ("GET",), times=1))
    time.now += 245
    assert sessions_for(1) == 0
    assert manager.request_counts.failures == {}
    time.now += 31  # until then the event loop signs without asking
    assert sessions_for(2) == 1, "the renewal is tried again"


def test_a_session_without_credentials_is_an_access_error(express: Backend, server: FaultyServer) -> None:
    server.faults.add(Fault("empty_session", ("GET",)))
    with pytest.raises(RemoteStorageAccessError, match="without credentials"):
        express.manager()
