"""Turns errors of botocore, sockets and http.client into `plugin.errors`: the kind, the label for counters, and a hint.

`plugin.clients.response_errors` handles the store's own responses. Without one, or after one of 500, the
outcome of a write is unknown.
"""

import errno
import socket
import ssl
from collections.abc import Iterator, Mapping
from http.client import HTTPException, IncompleteRead
from typing import Any, Final

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from urllib3.exceptions import EmptyPoolError, HTTPError, NameResolutionError

from plugin.clients.response_errors import Permissions, error_of_response, odd_answer
from plugin.errors import (
    RemoteSegmentCorruptError,
    RemoteStorageAccessError,
    RemoteStorageError,
    RemoteStorageRefusedError,
    RemoteStorageTimeoutError,
    RemoteStorageUnreachableError,
    in_words,
)

_CONNECTION_ERRORS: Final = (boto.BotoCoreError, HTTPError, HTTPException, OSError)
"""Errors without an answer, also while bodies are streamed."""

_NO_CREDENTIALS: Final = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.UnauthorizedSSOTokenError,
)
_TIMEOUTS: Final = (boto.ReadTimeoutError, boto.ConnectTimeoutError, TimeoutError)
_CUT_BODY: Final = (boto.ResponseStreamingError, boto.IncompleteReadError, IncompleteRead)
_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
_CHAIN_MAX: Final = 16


def as_storage_error(operation: str, key: str, error: Exception, permissions: Permissions) -> RemoteStorageError:
    """Convert an error of botocore, http.client or a socket to a RemoteStorageError; `key` is the object's, or the
    listed prefix."""
    if isinstance(error, RemoteStorageError):
        return error
    if isinstance(error, boto.ClientError):
        return _of_an_answer(operation, key, error, permissions)
    if isinstance(error, _NO_CREDENTIALS):
        return RemoteStorageAccessError(
            operation, key, str(error), "set credentials.file, or one of the sources of the AWS credential chain"
        )
    if isinstance(error, _TIMEOUTS):
        return RemoteStorageTimeoutError(operation, key, f"no answer in time: {type(error).__name__}")
    if isinstance(error, _CUT_BODY):
        return RemoteSegmentCorruptError(operation, key, "the body ended before its announced length")
    if isinstance(error, boto.SSLError | ssl.SSLError):
        return RemoteStorageUnreachableError(operation, key, f"TLS: {_cause(error)}", label="tls")
    if isinstance(error, boto.ParamValidationError):
        return RemoteStorageRefusedError(operation, key, str(error))
    if isinstance(error, _CONNECTION_ERRORS) and not isinstance(error, ResponseParserError):
        return _without_connection(operation, key, error)
    return odd_answer(operation, key, error)


def _without_connection(operation: str, key: str, error: Exception) -> RemoteStorageError:
    cause = _cause(error)
    if isinstance(cause, NameResolutionError | socket.gaierror):
        return RemoteStorageUnreachableError(
            operation, key, "the store's host name does not resolve", "see endpoint.url and region", "dns"
        )
    if isinstance(cause, EmptyPoolError):
        return RemoteStorageUnreachableError(
            operation, key, "no connection became free", "32 are kept open; see what the host does", "pool"
        )
    if any(isinstance(one, OSError) and one.errno in _NO_DESCRIPTOR for one in _chain(error)):
        return RemoteStorageUnreachableError(
            operation, key, "no file descriptor is left", "raise the agent's limit of open files", "file_descriptors"
        )
    return RemoteStorageUnreachableError(operation, key, f"{type(error).__name__}: {in_words(cause)}")


def _cause(error: BaseException) -> object:
    """Return what botocore wrapped; its own text repeats the URL."""
    return getattr(error, "kwargs", {}).get("error", error)


def _chain(error: BaseException) -> Iterator[object]:
    """Yield the error, what botocore wrapped, and the causes of both."""
    left: list[object] = [error]
    for _ in range(_CHAIN_MAX):
        if not left:
            return
        one = left.pop()
        yield one
        if isinstance(one, BaseException):
            left += [each for each in (one.__cause__ or one.__context__, _cause(one)) if each not in (None, one)]


def _of_an_answer(operation: str, key: str, error: boto.ClientError, permissions: Permissions) -> RemoteStorageError:
    answer: Mapping[str, Any] = error.response
    code = str(answer.get("Error", {}).get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return error_of_response(operation, key, status, code, permissions)
