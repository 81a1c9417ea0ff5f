"""What botocore raises, turned into `plugin.errors`: the kind, the label for counters, and a hint for the operator.

The codes are those of "Error responses" in the S3 API reference. An answer of 500 or no answer leaves the
outcome of a write unknown; the manager sends the same write again, so nothing here has to tell which it
was.
"""

import errno
from collections.abc import Iterator, Mapping
from typing import Any, Final

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from urllib3.exceptions import EmptyPoolError, HTTPError, NameResolutionError

from plugin.errors import (
    ObjectExistsError,
    RemoteResourceNotFoundError,
    RemoteSegmentCorruptError,
    RemoteStorageAccessError,
    RemoteStorageConfigError,
    RemoteStorageError,
    RemoteStorageRefusedError,
    RemoteStorageSessionExpiredError,
    RemoteStorageThrottledError,
    RemoteStorageTimeoutError,
    RemoteStorageUnreachableError,
    defect_site,
)

_CONNECTION_ERRORS: Final = (boto.BotoCoreError, HTTPError, OSError)
"""What a botocore client raises where it has no answer, streaming of bodies included."""

_THROTTLED: Final = frozenset(
    {"SlowDown", "ServiceUnavailable", "Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded"}
)
_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"})
_NO_OBJECT: Final = frozenset({"NoSuchKey", "404", "NotFound"})
_WRONG_BUCKET: Final = {
    "NoSuchBucket": ("bucket", "there is no such bucket"),
    "InvalidBucketName": ("bucket", "the store does not take this bucket name"),
    "PermanentRedirect": ("region", "the bucket is in another region"),
    "AuthorizationHeaderMalformed": ("region", "the bucket is in another region"),
    "IllegalLocationConstraintException": ("region", "the bucket is in another region"),
}
_NO_CREDENTIALS: Final = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.UnauthorizedSSOTokenError,
)
_TIMEOUTS: Final = (boto.ReadTimeoutError, boto.ConnectTimeoutError, TimeoutError)
_CUT_BODY: Final = (boto.ResponseStreamingError, boto.IncompleteReadError)
_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
_CHAIN_MAX: Final = 16

Permissions = Mapping[str, str]
"""The permission that each operation needs, for the hint: `{"put": "s3:PutObject", ...}`."""


def as_storage_error(operation: str, key: str, error: Exception, permissions: Permissions) -> RemoteStorageError:
    """The error of ours that says what happened; `key` is the object's, or what is listed."""
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
    if isinstance(error, boto.SSLError):
        return RemoteStorageUnreachableError(operation, key, f"TLS: {_cause(error)}", label="tls")
    if isinstance(error, boto.ParamValidationError):
        return RemoteStorageRefusedError(operation, key, str(error))
    if isinstance(error, _CONNECTION_ERRORS) and not isinstance(error, ResponseParserError):
        return _without_connection(operation, key, error)
    return RemoteStorageError(
        operation,
        key,
        f"the answer cannot be understood: {defect_site(error)}",
        "something else than an object store may answer at endpoint.url",
        "odd_answer",
    )


def _without_connection(operation: str, key: str, error: Exception) -> RemoteStorageError:
    cause = _cause(error)
    if isinstance(cause, NameResolutionError):
        return RemoteStorageUnreachableError(
            operation, key, "the store's host name does not resolve", "see endpoint.url and region", "dns"
        )
    if isinstance(cause, EmptyPoolError):
        return RemoteStorageUnreachableError(
            operation, key, "no connection became free", "raise max.pool.connections", "pool"
        )
    if any(isinstance(one, OSError) and one.errno in _NO_DESCRIPTOR for one in _chain(error)):
        return RemoteStorageUnreachableError(
            operation, key, "no file descriptor is left", "raise the agent's limit of open files", "file_descriptors"
        )
    return RemoteStorageUnreachableError(operation, key, f"{type(error).__name__}: {cause}")


def _cause(error: BaseException) -> object:
    """What botocore wrapped; its own text repeats the URL."""
    return getattr(error, "kwargs", {}).get("error", error)


def _chain(error: BaseException) -> Iterator[object]:
    """The error, what botocore wrapped, and what these came from."""
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
    reason = f"{status} {code}"
    if status == 412:
        return ObjectExistsError(operation, key, reason)
    if code in _WRONG_BUCKET:
        setting, text = _WRONG_BUCKET[code]
        return RemoteStorageConfigError(operation, setting, f"{text} ({reason})")
    if code in _NO_OBJECT:
        return RemoteResourceNotFoundError(operation, key, reason)
    if code in _EXPIRED:
        return RemoteStorageSessionExpiredError(operation, key, reason, "the credentials or the session ran out")
    if code in _THROTTLED or status in (429, 503):
        return RemoteStorageThrottledError(operation, key, reason)
    if code == "RequestTimeTooSkewed":
        return RemoteStorageAccessError(
            operation, key, reason, "this host's clock is more than 15 minutes off: set it", "clock_skew"
        )
    if status in (401, 403):
        hint = f"needs {permissions.get(operation, 'access to the bucket')}, and credentials that the store knows"
        return RemoteStorageAccessError(operation, key, reason, hint)
    return _of_another_answer(operation, key, status, code)


def _of_another_answer(operation: str, key: str, status: int, code: str) -> RemoteStorageError:
    reason = f"{status} {code}"
    if code == "RequestTimeout":
        return RemoteStorageTimeoutError(operation, key, reason)
    if code in ("BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"):
        return RemoteStorageError(operation, key, reason, "the bytes were altered on their way", "bad_digest")
    if status == 416:
        return RemoteSegmentCorruptError(operation, key, f"the object ends before the range ({reason})")
    if status == 409:
        return RemoteStorageError(operation, key, reason, "another request on the key is under way", "busy")
    if status == 501:
        return RemoteStorageConfigError(
            operation, "endpoint.url", f"the store lacks what is needed ({reason})", "conditional PUT, range GET"
        )
    if 300 <= status < 400:
        return RemoteStorageRefusedError(
            operation,
            key,
            f"the store sends its clients elsewhere ({reason})",
            "see region and endpoint.url",
            "redirect",
        )
    if 400 <= status < 500:
        return RemoteStorageRefusedError(operation, key, reason)
    return RemoteStorageError(operation, key, reason, label="server_error")
