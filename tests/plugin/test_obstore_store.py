"""What is obstore's alone: listings by streams, secrets in its errors, its settings."""

import datetime
import logging
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import structlog
from obstore.store import AzureStore, GCSStore

from local_cluster.security.authority import Authority
from plugin.azure_blob import AzureBlobSettings, AzureBlobWalStorageManager
from plugin.clients.backend_settings import check_no_proxy_sees, parse_settings
from plugin.clients.object_store import ListPage
from plugin.clients.obstore_store import ObstoreObjectStore
from plugin.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageAccessError,
    RemoteStorageConfigError,
    RemoteStorageRefusedError,
    RemoteStorageThrottledError,
    RemoteStorageTimeoutError,
    RemoteStorageUnreachableError,
)
from plugin.gcs import GcsWalStorageManager
from plugin.object_wal_storage_manager import ObjectWalStorageManager
from plugin.remote_wal_storage_manager import StorageContext
from plugin.s3 import S3WalStorageManager
from plugin.s3_express import S3ExpressWalStorageManager
from plugin.store_loop import ask, ask_each
from tests.faulty_store import DEFAULT_BUCKET, Fault, FaultyServer
from tests.plugin.dialect_front import LOOK_ALIKE_ACCOUNT
from tests.plugin.odd_store import OddStore
from tests.plugin.storage_backends import Backend, VirtualTime, segment

NO_RETRIES = {"max_retries": 0, "retry_timeout": datetime.timedelta(seconds=1), "backoff": {}}


@pytest.fixture(params=["gcs", "azure"])
def paged(request: pytest.FixtureRequest, server: FaultyServer, service_account: Path) -> ObstoreObjectStore:
    options = {"allow_http": True, "timeout": datetime.timedelta(seconds=5)}
    given = {"client_options": options, "retry_config": NO_RETRIES}
    if request.param == "gcs":
        store = GCSStore(
            DEFAULT_BUCKET,
            service_account=str(service_account),
            base_url=server.endpoint_url,
            **given,  # type: ignore[arg-type]
        )
        return ObstoreObjectStore(lambda: store, {}, 2)
    config = {"account_name": LOOK_ALIKE_ACCOUNT, "endpoint": f"{server.endpoint_url}/{LOOK_ALIKE_ACCOUNT}"}
    azure = AzureStore(DEFAULT_BUCKET, sas_key="sig=planted", **config, **given)  # type: ignore[arg-type]
    return ObstoreObjectStore(lambda: azure, {}, 2)


@pytest.fixture
def five_keys(paged: ObstoreObjectStore, request: pytest.FixtureRequest) -> list[str]:
    keys = [f"{abs(hash(request.node.nodeid))}/{n}" for n in range(5)]
    for key in keys:
        ask(paged.put_if_absent(key, [b"x"]))
    return keys


def keys_of(page: ListPage) -> list[str]:
    return [item.key for item in page.objects]


def test_a_listing_of_several_pages_is_whole(paged: ObstoreObjectStore, five_keys: list[str]) -> None:
    prefix = five_keys[0][:-1]
    pages = [ask(paged.list_page(prefix, None))]
    while pages[-1].next_page is not None:
        pages.append(ask(paged.list_page(prefix, pages[-1].next_page)))
    assert [keys_of(page) for page in pages] == [five_keys[:2], five_keys[2:4], five_keys[4:]]


def test_a_listing_that_failed_half_way_goes_on_where_it_was(
    paged: ObstoreObjectStore, five_keys: list[str], server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "2")  # of the server, in this process
    prefix = five_keys[0][:-1]
    first = ask(paged.list_page(prefix, None))
    server.faults.add(Fault("error", ("GET",), times=1, path_part=f"prefix={prefix}"))
    with pytest.raises(RemoteStorageThrottledError):
        ask(paged.list_page(prefix, first.next_page))
    second = ask(paged.list_page(prefix, first.next_page))
    third = ask(paged.list_page(prefix, second.next_page))
    assert keys_of(first) + keys_of(second) + keys_of(third) == five_keys


def test_two_listings_at_once_do_not_disturb_each_other(paged: ObstoreObjectStore, five_keys: list[str]) -> None:
    prefix = five_keys[0][:-1]
    one, other = ask(paged.list_page(prefix, None)), ask(paged.list_page(prefix, None))
    assert keys_of(ask(paged.list_page(prefix, one.next_page))) == five_keys[2:4]
    assert keys_of(ask(paged.list_page(prefix, other.next_page))) == five_keys[2:4]


class _SamePage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        item = "<Contents><Key>p/{}</Key><LastModified>2026-11-26T00:00:00Z</LastModified><Size>1</Size></Contents>"
        page = f"{item.format(1)}{item.format(2)}<NextContinuationToken>same</NextContinuationToken>"
        body = f"<ListBucketResult>{page}</ListBucketResult>".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_listing_whose_continuation_token_repeats_is_an_error(is_kept: bool) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _SamePage) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        options = {"allow_http": True, "timeout": datetime.timedelta(seconds=5)}
        url = f"http://127.0.0.1:{server.server_address[1]}"
        store = GCSStore("b", config={"base_url": url, "skip_signature": True}, client_options=options)  # type: ignore[arg-type]
        listings = ObstoreObjectStore(lambda: store, {}, 2)
        first = ask(listings.list_page("p/", None))
        if not is_kept:
            listings.close()
        with pytest.raises(RemoteStorageRefusedError, match="twice"):
            ask(listings.list_page("p/", first.next_page))
        server.shutdown()


def test_an_empty_listing_of_a_store_is_believed(by_obstore: Backend) -> None:
    manager = by_obstore.unwritten()
    assert list(ask_each(manager.list_log_segments())) == []
    assert (manager.request_counts.list, manager.request_counts.failures) == (1, {})


class _NothingThere(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def tls_store(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A store's URL by https, where nothing is stored, and the file of the authority that signed its certificate."""
    authority = Authority(tmp_path)
    files = authority.tls_for("store", ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate_file, files.key_file)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _NothingThere)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that does not trust it goes away
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}", authority.file
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_certificate_is_trusted_by_its_authoritys_file_alone(
    tls_store: tuple[str, Path], service_account: Path
) -> None:
    url, authority_file = tls_store
    settings = {"bucket": "bucket", "endpoint.url": url, "credentials.file": str(service_account)}
    backend = Backend(GcsWalStorageManager, settings, "cluster", [])
    wanted = segment(0, [])[0].combined_segment_id
    with pytest.raises(RemoteStorageUnreachableError, match="certificate") as caught:
        ask(backend.unwritten(VirtualTime()).fetch_log_segment(wanted, 0, 1))
    assert caught.value.label == "tls"
    trusting = backend.unwritten(tls_ca_file=str(authority_file))
    with pytest.raises(RemoteResourceNotFoundError):
        ask(trusting.fetch_log_segment(wanted, 0, 1))


def test_nothing_that_is_secret_is_in_errors_or_logs(
    by_obstore: Backend, server: FaultyServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    manager = by_obstore.unwritten(VirtualTime(), total_timeout_ms="2500")
    for fault in (Fault("error", status=403, code="AccessDenied"), Fault("error"), Fault("lose_response")):
        server.faults.clear()
        server.faults.add(by_obstore.its(fault))
        with structlog.testing.capture_logs() as logs, pytest.raises(Exception, match="put") as caught:
            ask(manager.copy_log_segment_data(*segment(0, [b"abc"])))
        told = f"{caught.getrepr(chain=True)} {caught.value.__context__!r} {caught.value.__cause__!r} {logs}"
        for secret in ("planted", "sig=", "Bearer", "SharedKey"):
            assert secret not in told + caplog.text


def test_a_store_that_hangs_is_a_time_out_after_one_attempt(by_obstore: Backend, server: FaultyServer) -> None:
    store = by_obstore.unwritten(attempt_timeout_ms="300", total_timeout_ms="300")
    server.faults.add(by_obstore.its(Fault("hang", ("GET",))))
    with pytest.raises(RemoteStorageTimeoutError):
        ask(store.fetch_log_segment(segment(0, [])[0].combined_segment_id, 0, 10))
    assert store.request_counts.failures == {"timeout": 1}


def test_a_host_that_nobody_knows_is_told(by_obstore: Backend) -> None:
    with pytest.raises(RemoteStorageUnreachableError) as caught:
        by_obstore.manager(
            endpoint_url="http://no-such-store.localhost.invalid",
            # one attempt, as a later one may find a resolver that takes too long
            attempt_timeout_ms="20000",
            total_timeout_ms="20000",
        )
    assert caught.value.label == "dns"


@pytest.mark.parametrize("content", [None, "planted nonsense"])
def test_a_file_that_is_none_of_its_kind_is_told_by_its_key(
    by_obstore: Backend, tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    keys = {"credentials.file", "account.key.file", "sas.token.file"} & by_obstore.settings.keys()
    if content is not None:
        keys -= {"sas.token.file"}  # it can only be tried
    for key in (*keys, "tls.ca.file"):
        with pytest.raises(RemoteStorageConfigError) as caught:
            by_obstore.manager(None, None, **{key: str(file)})
        assert caught.value.key == key
        assert "planted" not in f"{caught.value} {caught.value.__context__!r} {caught.value.__cause__!r}"


@pytest.mark.parametrize(
    "environment",
    [
        *({name: "http://proxy.example:9"} for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")),
        {"HTTP_PROXY": "http://proxy.example:9", "http_proxy": ""},
        {"HTTP_PROXY": "http://proxy.example:9", "NO_PROXY": "store.example:9"},
        {"HTTP_PROXY": "http://proxy.example:9", "NO_PROXY": "other.example", "no_proxy": "store.example"},
    ],
)
def test_no_proxy_is_shown_a_secret_in_plain_text(
    environment: dict[str, str], tmp_path: Path, credentials_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "sas"
    token.write_text("sv=1&sig=x")
    azure = {"account": "account", "container": "container", "sas.token.file": str(token)}
    express = {"bucket": "bucket--use1-az4--x-s3", "region": "eu-central-1"}
    express["credentials.file"] = str(credentials_file)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for manager, settings in ((AzureBlobWalStorageManager, azure), (S3ExpressWalStorageManager, express)):
        settings |= {"endpoint.url": "http://store.example:9", "allow.http": "true"}
        with pytest.raises(RemoteStorageConfigError, match="proxy of the environment"):
            manager().configure(settings, StorageContext("cluster", 1, is_written=False))
        with monkeypatch.context() as outside:
            for name in ("NO_PROXY", "no_proxy"):
                outside.setenv(name, "store.example")
            manager().configure(settings, StorageContext("cluster", 1, is_written=False))


ROLE = "[default]\nrole_arn = arn:aws:iam::123456789012:role/a\ncredential_source = Ec2InstanceMetadata\n"


@pytest.mark.parametrize("profile", ["", ROLE])
@pytest.mark.parametrize(
    ("manager", "settings"),
    [
        (S3WalStorageManager, {"region": "eu-central-1", "bucket": "bucket"}),
        (GcsWalStorageManager, {"bucket": "bucket"}),
        (AzureBlobWalStorageManager, {"account": "account", "container": "container"}),
    ],
)
def test_no_proxy_is_asked_for_a_token_of_the_machines_identity(
    manager: type[ObjectWalStorageManager],
    settings: dict[str, str],
    profile: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(profile)
    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "IDENTITY_")):
            monkeypatch.delenv(name)
    environment = {"HOME": str(tmp_path), "HTTP_PROXY": "http://proxy.example:9", "AWS_EC2_METADATA_DISABLED": "true"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RemoteStorageConfigError, match=r"http:.* a proxy of the environment"):
        manager().configure(settings, StorageContext("cluster", 1, is_written=False))
    monkeypatch.setenv("NO_PROXY", "169.254.169.254,metadata.google.internal")
    with (
        nullcontext()
        if not profile or "region" not in settings
        else pytest.raises(RemoteStorageConfigError, match="No credentials found")
    ):
        manager().configure(settings, StorageContext("cluster", 1, is_written=False))


def test_no_home_directory_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_uid: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    GcsWalStorageManager().configure({"bucket": "bucket"}, StorageContext("cluster", 1, is_written=False))


@pytest.mark.parametrize(
    ("host", "no_proxy", "is_refused"),
    [
        *(("10.0.0.1", entry, True) for entry in ("0.1", ".0.0.1", "10.0.0.0/8", "*", "10.0.0.1:9", "10.0.0.10")),
        ("10.0.0.1", "store.example, 10.0.0.1", False),
        ("[::1]", "1", True),
        ("[::1]", "::1", False),
        *(("a.store.example", entry, False) for entry in ("a.store.example", ".example", "store.example", "*")),
        *(
            ("a.store.example", entry, True)
            for entry in ("b.store.example", "tore.example", "STORE.example", "", ".", "b, *")
        ),
    ],
)
def test_only_a_host_that_every_client_leaves_out_is_asked_directly(
    host: str, no_proxy: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:9")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    with pytest.raises(RemoteStorageConfigError) if is_refused else nullcontext():
        check_no_proxy_sees(f"http://{host}:9")


def test_a_token_that_the_store_does_not_know_is_an_access_error(server: FaultyServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("sv=2019-12-12")
    settings = {
        "account": LOOK_ALIKE_ACCOUNT,
        "container": DEFAULT_BUCKET,
        "endpoint.url": f"{server.endpoint_url}/{LOOK_ALIKE_ACCOUNT}",
        "allow.http": "true",
        "sas.token.file": str(file),
    }
    with pytest.raises(RemoteStorageAccessError):
        Backend(AzureBlobWalStorageManager, settings, "cluster", []).manager()


def test_credentials_are_read_anew_when_their_file_changes(tmp_path: Path) -> None:
    file, odd, asked = tmp_path / "token", OddStore(), list[bytes]()
    file.write_text("sv=1&sig=first")

    def answer(head: bytes) -> bytes:
        asked.append(head.partition(b"sig=")[2].split()[0].partition(b"&")[0])
        return b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

    odd.answer = answer
    settings = {"account": "account", "container": "container", "sas.token.file": str(file)}
    given = {**settings, "endpoint.url": odd.endpoint, "allow.http": "true"}
    store = AzureBlobWalStorageManager().open_store(parse_settings(AzureBlobSettings, given))
    try:
        for change in (lambda: None, lambda: file.write_text("sv=1&sig=renewed"), file.unlink):
            change()
            with pytest.raises(RemoteResourceNotFoundError):
                ask(store.get_range("key", 0, 1))
    finally:
        odd.close()
    assert asked == [b"first", b"renewed", b"renewed"], "what cannot be read leaves the last ones in use"


def test_trusted_certificates_may_stand_below_comments_in_any_language(
    tls_store: tuple[str, Path], service_account: Path, tmp_path: Path
) -> None:
    url, authority_file = tls_store
    commented = tmp_path / "ca.pem"
    commented.write_bytes("# Főtanúsítvány\n".encode() + authority_file.read_bytes())
    settings = {"bucket": "bucket", "endpoint.url": url, "credentials.file": str(service_account)}
    trusting = Backend(GcsWalStorageManager, settings, "cluster", []).unwritten(tls_ca_file=str(commented))
    with pytest.raises(RemoteResourceNotFoundError):
        ask(trusting.fetch_log_segment(segment(0, [])[0].combined_segment_id, 0, 1))


def test_a_page_where_tokens_should_come_from_is_an_access_error() -> None:
    """Azure's tokens for a client come from an authority; one that refuses the client is no reason to try again."""
    store = OddStore()
    try:
        store.answer = lambda _: b"HTTP/1.1 401 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        azure = AzureStore(
            "container", account_name="account", client_id="one", client_secret="planted", tenant_id="two",
            authority_host=store.endpoint, endpoint=store.endpoint, client_options={"allow_http": True},
            retry_config=NO_RETRIES,  # type: ignore[arg-type]
        )  # fmt: skip
        with pytest.raises(RemoteStorageAccessError, match="no token") as caught:
            ask(ObstoreObjectStore(lambda: azure, {}, 2).delete("key"))
        assert "planted" not in f"{caught.value} {caught.value.__context__!r} {caught.value.__cause__!r}"
    finally:
        store.close()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"account": "No-Account"}, "account"),
        ({"container": "c"}, "container"),
        ({"bucket": "remote-wal"}, "bucket"),
        ({"account_key_file": "/a", "sas_token_file": "/b"}, "sas.token.file"),
    ],
)
def test_a_wrong_setting_of_azure_is_told_by_its_key(changes: dict[str, str], key: str) -> None:
    backend = Backend(AzureBlobWalStorageManager, {"account": "account", "container": "container"}, "cluster", [])
    with pytest.raises(RemoteStorageConfigError) as caught:
        backend.manager(None, None, **changes)
    assert caught.value.key == key
