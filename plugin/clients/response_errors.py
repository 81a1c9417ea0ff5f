"""Translates a store's unsuccessful answer into `plugin.errors`, by HTTP status and the error's code.

The codes are those of "Error responses" in the S3 API reference, which Google's XML API shares, and of "Blob Storage
error codes" in Azure's. An answer of 500 leaves the outcome of a write unknown; the manager sends the same write again,
so nothing here has to find out.
"""

from collections.abc import Mapping
from typing import Final

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
    defect_site,
)

Permissions = Mapping[str, str]
"""The permission that each operation needs, for the hint: `{"put": "s3:PutObject", ...}`."""

_THROTTLED: Final = frozenset(
    {
        *("SlowDown", "ServiceUnavailable", "Throttling", "ThrottlingException", "TooManyRequests"),
        *("RequestLimitExceeded", "ServerBusy"),
    }
)
_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"})
_NO_OBJECT: Final = frozenset({"NoSuchKey", "404", "NotFound"})
_WRONG_BUCKET: Final = {
    "NoSuchBucket": ("bucket", "there is no such bucket"),
    "InvalidBucketName": ("bucket", "the store does not take this bucket name"),
    "PermanentRedirect": ("region", "the bucket is in another region"),
    "AuthorizationHeaderMalformed": ("region", "the bucket is in another region"),
    "IllegalLocationConstraintException": ("region", "the bucket is in another region"),
    "ContainerNotFound": ("container", "there is no such container"),
    "ContainerBeingDeleted": ("container", "the container is being deleted"),
    "ContainerDisabled": ("container", "the container is disabled"),
}


def error_of_response(operation: str, key: str, status: int, code: str, permissions: Permissions) -> RemoteStorageError:
    """Return the RemoteStorageError for an unsuccessful response; `key` is the object's, or the listed prefix,
    behind the bucket's name."""
    reason = f"{status} {code}"
    if status == 412 or code == "BlobAlreadyExists":
        return ObjectExistsError(operation, key, reason)
    if code in _WRONG_BUCKET:
        setting, text = _WRONG_BUCKET[code]
        return RemoteStorageConfigError(operation, setting, f"{text} ({reason}): {key}")
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


def odd_answer(operation: str, key: str, error: Exception) -> RemoteStorageError:
    """Return the RemoteStorageError for an answer that no object store gives."""
    reason, hint = f"the answer cannot be understood: {defect_site(error)}", "something else may answer at endpoint.url"
    return RemoteStorageError(operation, key, reason, hint, "odd_answer")


def _of_another_answer(operation: str, key: str, status: int, code: str) -> RemoteStorageError:
    reason = f"{status} {code}"
    if code in ("RequestTimeout", "OperationTimedOut"):
        return RemoteStorageTimeoutError(operation, key, reason)
    if code in ("BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"):
        return RemoteStorageError(operation, key, reason, "the bytes were altered on their way", "bad_digest")
    if status == 416:
        return RemoteSegmentCorruptError(operation, key, f"the object ends before the range ({reason})")
    if status == 409:
        return RemoteStorageError(operation, key, reason, "another request on the key is under way", "busy")
    if status == 501:
        return RemoteStorageConfigError(
            operation, "endpoint.url", f"lacks what is needed ({reason}) for {key}", "conditional PUT, range GET"
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
