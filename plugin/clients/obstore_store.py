"""An ObjectStore by obstore, which binds Rust's object_store: for Google Cloud Storage and Azure Blob Storage.

obstore's own retries are off, because ours handle unknown outcomes and total deadlines. The checksum of the whole
object travels as metadata `crc32c`, so that we recognise our own object. In transit only TLS protects the bytes,
because obstore sends no checksum for the store to compare.

obstore gives a listing as one stream, and hides the store's page tokens. So an unfinished stream is kept, under its
prefix and the last key that it gave; a request for the part behind that key continues it. After a failure the stream is
gone, and the listing starts again from that key: both stores list in the order of keys. An answer that is no listing at
all is parsed as an empty one; so an empty listing counts only when the store also says that a key which cannot exist
does not exist.
"""

import datetime
import os
import re
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import obstore
import structlog
from obstore.exceptions import BaseError

from kafka_log.crc32c import crc32c
from plugin.clients.backend_settings import RemoteBackendSettings, check_endpoint, check_no_proxy_sees, state_of
from plugin.clients.object_store import ListedObject, ListPage, ObjectHead
from plugin.clients.response_errors import Permissions, error_of_response, odd_answer
from plugin.errors import (
    ObjectExistsError,
    RemoteResourceNotFoundError,
    RemoteSegmentCorruptError,
    RemoteStorageAccessError,
    RemoteStorageConfigError,
    RemoteStorageError,
    RemoteStorageRefusedError,
    RemoteStorageTimeoutError,
    RemoteStorageUnreachableError,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import AzureStore, ClientConfig, GCSStore, RetryConfig

log = structlog.get_logger(__name__)

T = TypeVar("T")

_KEPT_LISTINGS: Final = 16
_NO_OBJECT: Final = "no-such-object"
"""No key of ours ends like this."""


def client_options(settings: RemoteBackendSettings) -> "ClientConfig":
    """Return the options of obstore's HTTP client. Raises RemoteStorageConfigError."""
    check_endpoint(settings.endpoint_url, settings.allow_http)
    check_no_proxy_sees(settings.endpoint_url)
    options: ClientConfig = {
        "allow_http": settings.allow_http,
        "timeout": datetime.timedelta(milliseconds=settings.attempt_timeout_ms),
        "connect_timeout": datetime.timedelta(milliseconds=settings.connect_timeout_ms),
    }
    if settings.tls_ca_file is not None:
        certificates = read_setting("tls.ca.file", settings.tls_ca_file)
        try:
            ssl.create_default_context(cadata=certificates.encode("ascii", "ignore").decode())  # without its comments
        except ssl.SSLError as error:
            raise RemoteStorageConfigError(
                "configure", "tls.ca.file", f"holds no certificate: {error.reason}"
            ) from None
        options["root_certificate"] = certificates
    return options


def check_identity(key: str, logins: str, *services: str) -> None:
    """Raise RemoteStorageConfigError naming `key` if a proxy would see the token of the machine's identity, which
    metadata services give.

    `logins` matches names in the environment from which obstore takes another login.
    """
    if not any(value and re.fullmatch(logins, name) for name, value in os.environ.items()):
        for service in services:
            check_no_proxy_sees(service, key)


def one_attempt(settings: RemoteBackendSettings) -> "RetryConfig":
    return {
        "max_retries": 0,
        "retry_timeout": datetime.timedelta(milliseconds=settings.attempt_timeout_ms),
        "backoff": {},
    }


def read_setting(key: str, file: Path) -> str:
    """Return the content of a file that a setting names. Raises RemoteStorageConfigError, without the content."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RemoteStorageConfigError("configure", key, f"cannot be read: {type(error).__name__}") from None


def opened(key: str, hint: str, make: Callable[[], T]) -> T:
    """Open an obstore store. Raises RemoteStorageConfigError naming `key`, without obstore's text."""
    try:
        return make()
    except (BaseError, ValueError, OSError) as error:
        reason = f"obstore does not take it: {type(error).__name__}"
    raise RemoteStorageConfigError("configure", key, reason, hint)


class ObstoreObjectStore:
    """An ObjectStore on Google Cloud Storage or Azure Blob Storage."""

    def __init__(
        self,
        open_store: Callable[[], "GCSStore | AzureStore"],
        permissions: Permissions,
        page_objects: int,
        credentials_file: Path | None = None,
        place: str = "",
    ) -> None:
        """`open_store` is called again when `credentials_file` changes; `place` is put before keys in errors.

        `page_objects`: how many objects a page of the store's listings holds.
        """
        self._open_store = open_store
        self._credentials_file, self._place = credentials_file, place
        self._credentials = credentials_file and state_of(credentials_file)
        self._opened = open_store()
        self._permissions = permissions
        self._page_objects = page_objects
        self._listings: OrderedDict[tuple[str, str], AsyncIterator[Sequence[ObjectMeta]]] = OrderedDict()

    @property
    def _store(self) -> "GCSStore | AzureStore":
        """The store, by the present credentials; by the last ones if their file cannot be used."""
        present = self._credentials_file and state_of(self._credentials_file)
        if present != self._credentials:
            try:
                self._opened = self._open_store()
                log.info("credentials_read_anew", file=str(self._credentials_file))
            except RemoteStorageConfigError as error:
                log.warning("credentials_unreadable", error=str(error), consequence="the last ones stay in use")
            self._credentials = present
        return self._opened

    async def put_if_absent(self, key: str, chunks: Sequence[bytes | memoryview]) -> None:
        body = b"".join(chunks)
        attributes = {"Content-Type": "application/octet-stream", "crc32c": f"{crc32c(body):08x}"}
        await self._ask(
            "put",
            key,
            lambda: obstore.put_async(
                self._store, key, body, mode="create", use_multipart=False, attributes=attributes
            ),
        )

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        data = await self._ask("get", key, lambda: obstore.get_range_async(self._store, key, start=start, end=end))
        return data.to_bytes()

    async def head(self, key: str) -> ObjectHead:
        async def ask() -> ObjectHead:
            answer = await obstore.get_async(self._store, key, options={"head": True})
            checksum = answer.attributes.get("crc32c", "")
            return ObjectHead(answer.meta["size"], int(checksum, 16) if len(checksum) == 8 else None)

        return await self._ask("head", key, ask)

    async def delete(self, key: str) -> None:
        try:
            await self._ask("delete", key, lambda: obstore.delete_async(self._store, key))
        except RemoteResourceNotFoundError:
            return

    async def list_page(self, prefix: str, page: str | None) -> ListPage:
        return await self._ask("list", prefix, lambda: self._list_page(prefix, page))

    async def _list_page(self, prefix: str, page: str | None) -> ListPage:
        kept = self._listings.pop((prefix, page), None) if page is not None else None
        listing = kept or aiter(obstore.list(self._store, prefix, offset=page, chunk_size=self._page_objects))
        found = await _next_part(listing)
        # Azure ignores an unknown start position.
        while page is not None and found and found[-1]["path"] <= page:
            passed, found = found[-1]["path"], await _next_part(listing)
            if kept or (found and found[-1]["path"] <= passed):
                reason = "the store gives a part of the listing twice: it would never end"
                raise RemoteStorageRefusedError("list", prefix, reason)
        if not found and page is None:
            await self._check_that_it_is_a_store(prefix)
        objects = [
            ListedObject(item["path"], item["size"], int(item["last_modified"].timestamp() * 1000))
            for item in found
            if page is None or item["path"] > page
        ]
        if len(found) < self._page_objects:
            return ListPage(objects, None)
        self._listings[prefix, objects[-1].key] = listing
        while len(self._listings) > _KEPT_LISTINGS:  # abandoned listings
            self._listings.popitem(last=False)
        return ListPage(objects, objects[-1].key)

    async def _check_that_it_is_a_store(self, prefix: str) -> None:
        try:
            await obstore.head_async(self._store, prefix + _NO_OBJECT)
        except FileNotFoundError:
            return

    def close(self) -> None:
        self._listings.clear()

    async def _ask(self, operation: str, key: str, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            return await ask()
        except Exception as error:  # obstore also raises errors that are not its own
            failed = as_storage_error(operation, f"{self._place}{key}", error, self._permissions)
        raise failed  # raised here, so that obstore's text, which may hold a token, is not attached


async def _next_part(listing: AsyncIterator[Sequence["ObjectMeta"]]) -> Sequence["ObjectMeta"]:
    """Return the next part, or an empty one. obstore's awaitables do not fit `anext` with a default."""
    try:
        return await anext(listing)
    except StopAsyncIteration:
        return ()


_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,80})</Code>")
_KIND: Final = re.compile(r"kind: (\w+)")
_FOR_CREDENTIALS: Final = "Error performing token request"
_CREDENTIALS_HINT: Final = "see credentials in the documentation of this storage manager"
_CUT_BODY: Final = ("Interrupted", "Decode", "Body")
_OTHER_RANGE: Final = re.compile(r"non-partial response|Requested \d+\.\.\d+, got")
_NO_CONNECTION: Final = (
    ("dns error", "the store's host name does not resolve", "see endpoint.url, and the account's name", "dns"),
    ("InvalidCertificate", "TLS: the certificate is not trusted", "see tls.ca.file", "tls"),
    ("Too many open files", "no file descriptor is left", "raise the agent's limit of open files", "file_descriptors"),
)
"""Parts of the text, and what they mean."""


def as_storage_error(operation: str, key: str, error: Exception, permissions: Permissions) -> RemoteStorageError:
    """Convert an error of obstore to a RemoteStorageError; `key` is the object's, or the listed prefix.

    obstore describes failures only in its errors' text, and that text has the request's URL, which may contain a token.
    So status, error code and kind are parsed from it, and the rest is never passed on.
    """
    if isinstance(error, RemoteStorageError):
        return error
    text = str(error)
    status = _STATUS.search(text)
    if _FOR_CREDENTIALS in text and (status is None or status[1].startswith("4")):
        reason = f"no token for the credentials{f' ({status[1]})' if status else ''}"
        return RemoteStorageAccessError(operation, key, reason, _CREDENTIALS_HINT)
    if status is not None:
        code = _CODE.search(text)
        # Azure answers 409 to a write on a taken key, but also in other cases; Google answers 412.
        name = code[1] if code else "BlobAlreadyExists" if type(error).__name__ == "AlreadyExistsError" else ""
        return _of_status(operation, key, int(status[1]), name, permissions)
    return _without_status(operation, key, error, text)


def _of_status(operation: str, key: str, status: int, code: str, permissions: Permissions) -> RemoteStorageError:
    if status == 404 and code in ("", "BlobNotFound"):
        return RemoteResourceNotFoundError(operation, key, f"404 {code}".rstrip())
    return error_of_response(operation, key, status, code, permissions)


def _without_status(operation: str, key: str, error: Exception, text: str) -> RemoteStorageError:
    if isinstance(error, FileNotFoundError):
        return RemoteResourceNotFoundError(operation, key, "it is not there")
    if type(error).__name__ == "AlreadyExistsError":
        return ObjectExistsError(operation, key, "it is there")
    if "Received redirect" in text:
        return RemoteStorageRefusedError(
            operation, key, "the store sends its clients elsewhere", "see endpoint.url", "redirect"
        )
    if _OTHER_RANGE.search(text):
        return RemoteSegmentCorruptError(operation, key, "the answer holds another range than was asked for")
    kind = _KIND.search(text)
    return _of_kind(operation, key, kind[1] if kind else "", error, text)


def _of_kind(operation: str, key: str, kind: str, error: Exception, text: str) -> RemoteStorageError:
    if kind == "Timeout":
        return RemoteStorageTimeoutError(operation, key, "no answer in time")
    for part, reason, hint, label in _NO_CONNECTION:
        if part in text:
            return RemoteStorageUnreachableError(operation, key, reason, hint, label)
    if kind in ("Connect", "Request"):
        return RemoteStorageUnreachableError(operation, key, "no connection, or one that broke")
    if kind in _CUT_BODY:
        return RemoteSegmentCorruptError(operation, key, "the body ended before its announced length")
    return odd_answer(operation, key, error)
