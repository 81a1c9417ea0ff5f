"""Whatever a store, or a box before it, answers: every operation returns or raises an error of `plugin.errors`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from plugin.azure_blob import AzureBlobWalStorageManager
from plugin.clients.backend_settings import parse_settings
from plugin.clients.object_store import ObjectStore
from plugin.clients.s3_direct import S3Direct
from plugin.errors import RemoteSegmentCorruptError, RemoteStorageError
from plugin.gcs import GcsWalStorageManager
from plugin.object_wal_storage_manager import ObjectWalStorageManager
from plugin.remote_wal_storage_manager import StorageContext
from plugin.s3 import S3WalStorageManager
from plugin.segment_metadata import CombinedSegmentId
from plugin.store_loop import ask, ask_each
from tests.plugin.odd_store import OddStore
from tests.plugin.storage_backends import VirtualTime, segment

SEGMENT = CombinedSegmentId(1, 2, 3)
OK = b"HTTP/1.1 200 OK\r\n"


def sized(head: bytes, body: bytes) -> bytes:
    # Each answer ends its connection: a client that thought otherwise would send the next request into the void.
    return head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body


HTML = b"<html><body>sign in first</body></html>"
ERROR = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>m</Message></Error>"
ANSWERS = {
    "garbage": b"\x00\xff garbage\r\n\r\n",
    "nothing": b"",
    "no header": b"HTTP/1.1 200\r\n\r\n",
    "no status": b"HTTP/1.1 xyz OK\r\n\r\n",
    "an unknown status": sized(b"HTTP/1.1 999 W\r\n", b""),
    "a huge header": OK + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
    "many headers": OK + b"".join(b"X-%d: a\r\n" % number for number in range(300)) + b"\r\n",
    "a page": sized(OK, HTML),
    "a page with 404": sized(b"HTTP/1.1 404 Not Found\r\n", HTML),
    "a page with 500": sized(b"HTTP/1.1 500 E\r\n", HTML),
    "an error with 200": sized(OK + b"Content-Type: application/xml\r\n", ERROR),
    "half an error": sized(b"HTTP/1.1 400 E\r\nContent-Type: application/xml\r\n", b"<Error>"),
    "entities": sized(
        b"HTTP/1.1 400 E\r\n",
        b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b 'ccc'><!ENTITY d '&b;&b;'>]><Error><Code>&d;</Code></Error>",
    ),
    "a bad chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nZZZ\r\nabc",
    "a negative length": OK + b"Content-Length: -5\r\n\r\nabc",
    "a length in words": OK + b"Content-Length: five\r\n\r\nabc",
    "a false encoding": sized(OK + b"Content-Encoding: gzip\r\n", b"abcde"),
    "a redirect": sized(b"HTTP/1.1 301 M\r\nLocation: http://127.0.0.1:1/\r\n", b""),
    "a redirect to nowhere": sized(b"HTTP/1.1 307 M\r\n", b""),
    "a redirect to a region": sized(b"HTTP/1.1 301 M\r\nx-amz-bucket-region: eu-west-1\r\n", b""),
    "continue for ever": b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
    "a header that is no text": sized(OK + b"X: \xff\xfe\r\n", b""),
    "a date in words": sized(OK + b"Last-Modified: yesterday\r\n", b"a"),
    "a date without end": sized(OK + b"Last-Modified: 99999999999999999999\r\n", b"a"),
    "a false checksum": sized(OK + b"x-amz-checksum-crc32c: ####\r\n", b"a"),
    "taken": sized(b"HTTP/1.1 412 Precondition Failed\r\n", b""),
}


MANAGERS: dict[str, type[ObjectWalStorageManager]] = {
    "s3": S3WalStorageManager,
    "s3_by_boto3": S3WalStorageManager,
    "gcs": GcsWalStorageManager,
    "azure": AzureBlobWalStorageManager,
}


class Opened(NamedTuple):
    kind: str
    manager: ObjectWalStorageManager
    store: ObjectStore
    """What it stands on."""


Operation = Callable[[Opened], object]
OPERATIONS: dict[str, Operation] = {
    "put": lambda opened: ask(opened.manager.copy_log_segment_data(*segment(0, [b"x" * 70]))),
    "get": lambda opened: ask(opened.manager.fetch_log_segment(SEGMENT, 0, 5)),
    "head": lambda opened: ask(opened.store.head("key")),
    "delete": lambda opened: ask(opened.manager.delete_log_segment_data(SEGMENT)),
    "list": lambda opened: list(ask_each(opened.manager.list_log_segments(1))),
}
MAY_SUCCEED = {
    ("delete", name)
    for name in (
        *("no header", "a page", "a false encoding", "a page with 404", "a header that is no text", "a bad chunk"),
        *("a date in words", "a date without end", "a false checksum", "an unknown status"),
    )
} | {("get", "a false encoding")}
"""Where nothing that is relied on is wrong: a deletion has no answer but that it was taken."""
MAY_SUCCEED_TOO = {"gcs": {("delete", "a huge header"), ("delete", "an error with 200")}}
"""botocore reads more of an answer to a deletion than its status."""


LABELS = {
    *("odd_answer", "connection", "server_error", "corrupt", "not_found", "refused", "redirect", "exists", "config"),
    *("conflict", "timeout"),
}


@pytest.fixture(scope="module")
def store() -> Iterator[OddStore]:
    store = OddStore()
    yield store
    store.close()


@pytest.fixture(scope="module", params=[*MANAGERS])
def opened(
    request: pytest.FixtureRequest, store: OddStore, service_account: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    """One for all: making a client takes longer than all of its requests here."""
    secret = tmp_path_factory.mktemp("odd") / "secret"
    kind: str = request.param
    own: dict[str, str] = {"credentials.file": str(secret)}
    if issubclass(MANAGERS[kind], S3WalStorageManager):
        secret.write_text("[default]\naws_access_key_id = planted-key\naws_secret_access_key = planted-secret\n")
        own |= {"bucket": "bucket", "region": "us-east-1", "addressing.style": "path"}
    elif kind == "gcs":
        own = {"bucket": "bucket", "credentials.file": str(service_account)}
    else:
        secret.write_text("sv=2019-12-12&sig=planted-secret")
        own = {"account": "account", "container": "bucket", "sas.token.file": str(secret)}
    time = VirtualTime()
    manager = MANAGERS[kind](clock=time.clock, sleep=time.sleep)
    settings = {
        **own,
        "endpoint.url": store.endpoint,
        "allow.http": "true",
        "attempt.timeout.ms": "1500",
        "total.timeout.ms": "1500",
    }
    manager.configure(settings, StorageContext("cluster", 1, is_written=False))
    with pytest.MonkeyPatch.context() as patch:
        if kind == "s3_by_boto3":
            patch.setattr(S3Direct, "admits", lambda *_: False)
        yield Opened(kind, manager, manager.open_store(parse_settings(manager.settings_model, settings)))
    manager.close()


def outcome(operation: str, opened: Opened) -> str | None:
    """The label of its error of ours; None when there is none."""
    try:
        OPERATIONS[operation](opened)
    except RemoteStorageError as error:
        return error.label
    return None


def failure(opened: Opened, operation: str) -> RemoteStorageError:
    with pytest.raises(RemoteStorageError) as caught:
        OPERATIONS[operation](opened)
    return caught.value


@pytest.mark.parametrize("name", ANSWERS)
def test_an_odd_answer_is_an_error_of_ours(name: str, store: OddStore, opened: Opened) -> None:
    store.answer = lambda _: ANSWERS[name]
    for operation in OPERATIONS:
        label = outcome(operation, opened)
        may_succeed = operation == "head" or (operation, name) in MAY_SUCCEED | MAY_SUCCEED_TOO.get(opened.kind, set())
        assert label in LABELS or (label is None and may_succeed), operation


@pytest.mark.parametrize("operation", ["put", "list"])
def test_a_page_in_the_place_of_an_answer_is_no_success(operation: str, store: OddStore, opened: Opened) -> None:
    """A captive portal: an upload would be lost in silence, an empty listing would make every object a lost one."""
    store.answer = lambda _: sized(OK, b"")
    assert failure(opened, operation).label == "odd_answer"


def test_a_taken_key_whose_head_has_no_length_is_a_failed_upload(store: OddStore, opened: Opened) -> None:
    def answer(head: bytes) -> bytes:
        if head.startswith(b"PUT"):
            return sized(b"HTTP/1.1 412 Precondition Failed\r\n", b"")
        return OK + b"Transfer-Encoding: chunked\r\nx-amz-meta-crc32c: 00000000\r\n\r\n"

    store.answer = answer
    error = failure(opened, "put")
    assert (error.operation, error.label) == ("head", "odd_answer")


def test_a_listing_that_goes_on_nowhere_is_no_listing(store: OddStore, opened: Opened) -> None:
    body = b"<ListBucketResult><Name>bucket</Name><IsTruncated>true</IsTruncated></ListBucketResult>"
    store.answer = lambda _: sized(OK, body)
    assert failure(opened, "list").label == "odd_answer"


def test_an_answer_that_is_far_longer_than_the_range_is_not_read_to_its_end(store: OddStore, opened: Opened) -> None:
    before = opened.manager.request_counts.get_bytes
    told = OK + b'Last-Modified: Sun, 22 Nov 2026 16:05:37 GMT\r\nETag: "a"\r\n'
    store.answer = lambda _: sized(told, b"x" * 5_000_000)
    assert isinstance(failure(opened, "get"), RemoteSegmentCorruptError)
    assert opened.manager.request_counts.get_bytes - before < 100


def test_a_redirect_says_what_may_be_wrong(store: OddStore, opened: Opened) -> None:
    store.answer = lambda _: ANSWERS["a redirect to a region"]
    error = failure(opened, "delete")
    assert error.label == "redirect"
    assert ("region" if opened.kind.startswith("s3") else "endpoint.url") in error.hint
