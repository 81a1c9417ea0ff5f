"""Turns obstore's errors into `plugin.errors`.

obstore describes failures only in its errors' text, and that text has the request's URL, which may contain a token. So
status, error code and kind are parsed from it, and the rest is never passed on.
"""

import re
from typing import Final

from plugin.clients.answer_errors import Permissions, error_of_answer
from plugin.errors import (
    ObjectExistsError,
    RemoteResourceNotFoundError,
    RemoteSegmentCorruptError,
    RemoteStorageAccessError,
    RemoteStorageError,
    RemoteStorageRefusedError,
    RemoteStorageTimeoutError,
    RemoteStorageUnreachableError,
    defect_site,
)

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
    """Return our error; `key` is the object's, or the listed prefix."""
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
    return error_of_answer(operation, key, status, code, permissions)


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
    return RemoteStorageError(
        operation,
        key,
        f"the answer cannot be understood: {defect_site(error)}",
        "something else than an object store may answer at endpoint.url",
        "odd_answer",
    )
