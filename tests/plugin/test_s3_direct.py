"""What our own client on the event loop does as boto3 does it, and when it leaves a request to boto3."""

import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from botocore.auth import AUTH_TYPE_MAPS, BaseSigner
from botocore.credentials import ReadOnlyCredentials

from plugin.clients.backend_settings import parse_settings
from plugin.clients.object_store import VersionedStore
from plugin.clients.s3_direct import S3Direct
from plugin.errors import RemoteStorageConfigError, RemoteStorageError
from plugin.remote_wal_storage_manager import StorageContext
from plugin.s3 import S3ObjectStore, S3Settings, S3WalStorageManager, read_in_time
from plugin.segment_metadata import CombinedSegmentId
from plugin.store_loop import ask, ask_each
from tests.plugin.odd_store import Answer, OddStore

STORED = b'HTTP/1.1 200 OK\r\nETag: "a"\r\nContent-Length: 0\r\nConnection: close\r\n%s\r\n'
FOUND = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nConnection: close\r\n\r\n01234"
SETTINGS = {"bucket": "bucket", "region": "us-east-1", "allow.http": "true", "addressing.style": "path"}


class Asked(OddStore):
    def __init__(self) -> None:
        super().__init__()
        self.heads: list[str] = []
        self.respond: Answer = lambda head: STORED % b"" if head.startswith(b"PUT") else FOUND
        self.answer = self._answer

    def _answer(self, head: bytes) -> bytes:
        if head:  # else a connection that was opened ahead, and is closed
            self.heads.append(head.decode("latin-1").partition("\r\n\r\n")[0])
        return self.respond(head)


@pytest.fixture
def store() -> Iterator[Asked]:
    store = Asked()
    yield store
    store.close()


def opened(endpoint: str, credentials_file: Path, **more: str) -> S3ObjectStore:
    settings = {**SETTINGS, "endpoint.url": endpoint, "credentials.file": str(credentials_file), **more}
    store = S3WalStorageManager().open_store(parse_settings(S3Settings, settings))
    assert isinstance(store, S3ObjectStore)
    return store


def admitted(store: Asked, credentials_file: Path) -> S3ObjectStore:
    """A store whose next requests go on the loop, as a thread has asked something."""
    one = opened(store.endpoint, credentials_file)
    ask(one.put_if_absent("first", [b"a"]))
    assert one.direct_for(1)
    store.heads.clear()
    return one


async def no_time(_seconds: float) -> None:
    return


def sender(head: str) -> str:
    return "boto3" if "user-agent" in headers(head) else "direct"


def headers(head: str) -> Mapping[str, str]:
    lines = (line.partition(": ") for line in head.split("\r\n")[1:])
    return {name.lower(): value for name, _, value in lines}


def test_both_clients_ask_for_the_same(store: Asked, credentials_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = admitted(store, credentials_file)
    ask(one.put_if_absent("a b/c~d", [b"ab", memoryview(b"c")]))
    assert ask(one.get_range("a b/c~d", 3, 8)) == b"01234"
    one.close()
    by_boto3 = opened(store.endpoint, credentials_file)
    monkeypatch.setattr(S3Direct, "admits", lambda *_: False)
    ask(by_boto3.put_if_absent("a b/c~d", [b"ab", memoryview(b"c")]))
    assert ask(by_boto3.get_range("a b/c~d", 3, 8)) == b"01234"
    by_boto3.close()
    assert [sender(head) for head in store.heads] == ["direct", "direct", "boto3", "boto3"]
    put, get, put_by_boto3, get_by_boto3 = store.heads
    for ours, theirs in ((put, put_by_boto3), (get, get_by_boto3)):
        assert ours.split("\r\n")[0] == theirs.split("\r\n")[0]
        common = {"host", "x-amz-content-sha256"}
        common |= {"content-length", "content-type", "if-none-match", "x-amz-checksum-crc32c", "x-amz-meta-crc32c"}
        common |= {"range", "accept-encoding"}
        told = [{name: value for name, value in headers(head).items() if name in common} for head in (ours, theirs)]
        assert told[0] == told[1]
        # The signature is another one in the next second.
        signatures = [headers(head)["authorization"].partition(", Signature=") for head in (ours, theirs)]
        scopes = [signature[0].split("/")[2:] for signature in signatures]
        assert scopes[0] == scopes[1]
        signed = headers(ours)["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
        assert set(headers(ours)) - set(signed) <= {"authorization", "accept-encoding", "content-length"}


class CrtSigner(BaseSigner):
    """What botocore signs by where awscrt is installed, as far as our route looks at it."""

    REQUIRES_REGION = True

    def __init__(self, credentials: ReadOnlyCredentials, service_name: str, region_name: str) -> None:
        self.credentials = credentials

    def add_auth(self, request: object) -> None:
        raise AssertionError("requests of the hot path are signed by us")


def test_awscrt_in_the_environment_leaves_the_direct_client_on(
    store: Asked, credentials_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = opened(store.endpoint, credentials_file)
    monkeypatch.setitem(AUTH_TYPE_MAPS, "s3v4", CrtSigner)
    with pytest.raises(RemoteStorageError):
        ask(one.put_if_absent("key", [b"abc"]))  # boto3 would sign by awscrt, which is played here
    one.renew_direct()
    assert one.direct_for(3)
    ask(one.put_if_absent("key", [b"abc"]))
    assert [sender(head) for head in store.heads] == ["direct"]
    one.close()


def test_credentials_are_read_anew_when_their_file_changes(store: Asked, credentials_file: Path) -> None:
    one = opened(store.endpoint, credentials_file)

    def key_of_next_request() -> str:
        one.renew_direct()
        ask(one.get_range("key", 0, 5))
        return headers(store.heads[-1])["authorization"].partition("Credential=")[2].partition("/")[0]

    assert key_of_next_request() == "planted-key"
    replaced = credentials_file.with_suffix(".new")
    replaced.write_text(credentials_file.read_text().replace("planted-key", "rotated-key"))
    replaced.replace(credentials_file)
    assert key_of_next_request() == "rotated-key"
    credentials_file.unlink()
    assert key_of_next_request() == "rotated-key", "what cannot be read leaves the last keys in use"
    one.close()


def test_a_listing_whose_continuation_token_repeats_ends_with_an_error(store: Asked, credentials_file: Path) -> None:
    page = (
        b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>"
        b"</ListBucketResult>"
    )
    store.respond = lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page)
    manager = S3WalStorageManager()
    manager.configure(
        {**SETTINGS, "endpoint.url": store.endpoint, "credentials.file": str(credentials_file)},
        StorageContext("cluster", 1, is_written=False),
    )
    with pytest.raises(RemoteStorageError, match="continuation token twice"):
        list(ask_each(manager.list_log_segments(1)))
    manager.close()


def test_a_command_reads_small_ranges_by_the_direct_client_and_is_led_elsewhere_by_boto3(
    store: Asked, credentials_file: Path
) -> None:
    manager = S3WalStorageManager(sleep=no_time)
    told = {"endpoint.url": store.endpoint, "credentials.file": str(credentials_file)}
    manager.configure({**SETTINGS, **told}, StorageContext("cluster", 1, can_wait=True, is_written=False))

    def read() -> str:
        store.heads.clear()
        assert ask(manager.fetch_log_segment(CombinedSegmentId(1, 1, 1), 0, 5)) == b"01234"
        return ", ".join(sender(head) for head in store.heads)

    assert [read(), read(), read()] == ["boto3", "direct", "direct"]
    moved = b"HTTP/1.1 301 M\r\nx-amz-bucket-region: eu-west-1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    store.respond = lambda head: FOUND if b"/eu-west-1/" in head else moved
    assert read() == "direct, boto3, boto3"
    assert read() == "direct"
    manager.close()


@pytest.mark.parametrize(
    ("status", "keeps"), [(b"<Status>Enabled</Status>", True), (b"<Status>Suspended</Status>", False), (b"", False)]
)
def test_a_bucket_tells_whether_it_keeps_versions(
    store: Asked, credentials_file: Path, status: bytes, keeps: bool
) -> None:
    body = b"<VersioningConfiguration>%s</VersioningConfiguration>" % status
    store.respond = lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    one = opened(store.endpoint, credentials_file)
    assert isinstance(one, VersionedStore)
    assert ask(one.keeps_versions()) is keeps
    one.close()


def test_a_bucket_of_another_region_is_followed_once(store: Asked, credentials_file: Path) -> None:
    def answer(head: bytes) -> bytes:
        if b"/eu-west-1/" in head:
            return STORED % b""
        return b"HTTP/1.1 301 M\r\nx-amz-bucket-region: eu-west-1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    one = admitted(store, credentials_file)
    store.respond = answer
    with pytest.raises(RemoteStorageError) as caught:
        ask(one.put_if_absent("first", [b"a"]))
    assert (caught.value.label, one.direct_for(1)) == ("redirect", None)
    ask(one.put_if_absent("first", [b"a"]))
    store.heads.clear()
    ask(one.put_if_absent("second", [b"b"]))
    assert [sender(head) for head in store.heads] == ["direct"]
    one.close()


def test_behind_a_proxy_boto3_sends_everything(
    store: Asked, credentials_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", store.endpoint)
    one = opened("http://store.example:9", credentials_file)
    ask(one.put_if_absent("key", [b"a"]))
    assert ask(one.get_range("key", 0, 5)) == b"01234"
    assert [head.split(" ")[1] for head in store.heads] == ["http://store.example:9/bucket/key"] * 2
    assert not one.direct_for(1)
    one.close()


def test_no_endpoint_of_the_environment_is_plain_http_without_permission(
    credentials_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://store.example:9")
    settings = {key: value for key, value in SETTINGS.items() if key != "allow.http"}
    with pytest.raises(RemoteStorageConfigError, match="is plain http"):
        S3WalStorageManager().configure(
            {**settings, "credentials.file": str(credentials_file)}, StorageContext("cluster", 1, is_written=False)
        )


def test_a_store_that_has_another_checksum_than_was_sent_has_not_stored_it(
    store: Asked, credentials_file: Path
) -> None:
    one = admitted(store, credentials_file)
    store.respond = lambda _: STORED % b"x-amz-checksum-crc32c: AAAAAA==\r\n"
    with pytest.raises(RemoteStorageError) as caught:
        ask(one.put_if_absent("key", [b"a"]))
    assert caught.value.label == "bad_digest"
    one.close()


def test_an_object_that_is_as_large_as_the_loop_admits_goes_there_with_its_footer(
    store: Asked, credentials_file: Path
) -> None:
    one = opened(store.endpoint, credentials_file)
    assert not one.direct_for(1), "no thread has asked for credentials yet"
    ask(one.put_if_absent("first", [b"a"]))
    most = 1024 * 1024
    assert one.direct_for(most)
    assert not one.direct_for(most + 1)
    ask(one.put_if_absent("second", [bytes(most), b"footer"]))
    assert [head.split(" ")[1] for head in store.heads] == ["/bucket/first", "/bucket/second"]
    one.close()


def test_after_credentials_were_refused_a_thread_asks_for_them_anew(store: Asked, credentials_file: Path) -> None:
    one = admitted(store, credentials_file)
    store.respond = lambda _: b"HTTP/1.1 403 F\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with pytest.raises(RemoteStorageError):
        ask(one.get_range("key", 0, 5))
    assert not one.direct_for(1)
    one.close()


def test_without_credentials_nothing_is_sent(store: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    settings = {"bucket": "bucket", "region": "us-east-1", "endpoint.url": store.endpoint, "allow.http": "true"}
    one = S3WalStorageManager().open_store(parse_settings(S3Settings, settings))
    with pytest.raises(RemoteStorageError) as caught:
        ask(one.put_if_absent("key", [b"a"]))
    assert (caught.value.label, store.heads) == ("access", [])
    one.close()


def test_memory_is_had_for_what_a_read_may_give_not_for_a_bodys_rest() -> None:
    body, asked = io.BytesIO(os.urandom(1_000_000)), list[int]()

    def read(size: int) -> bytes:
        asked.append(size)
        return body.read(min(size, 16_384))  # as TLS, by its records

    assert read_in_time(read, 1_000_000, lambda: False, "get", "key") == body.getvalue()
    assert max(asked) <= 65_536
    assert sum(asked) < 5_000_000
