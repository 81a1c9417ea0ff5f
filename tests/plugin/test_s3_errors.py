import errno

import pytest
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from urllib3.exceptions import EmptyPoolError, NameResolutionError, NewConnectionError

from plugin.clients.s3_errors import as_storage_error
from plugin.errors import (
    ObjectExistsError,
    OperationError,
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
)
from plugin.remote_wal_storage_manager import StorageContext
from plugin.s3 import PERMISSIONS, S3WalStorageManager


def answer(status: int, code: str) -> boto.ClientError:
    return boto.ClientError(
        {
            "Error": {"Code": code},
            "ResponseMetadata": {
                "RequestId": "1",
                "HostId": "h",
                "HTTPStatusCode": status,
                "HTTPHeaders": {},
                "RetryAttempts": 0,
            },
        },
        "PutObject",
    )


def caused_by(cause: OSError) -> NewConnectionError:
    """As urllib3 raises it."""
    error = NewConnectionError(None, "failed")  # type: ignore[arg-type]
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind", "label"),
    [
        (answer(412, "PreconditionFailed"), ObjectExistsError, "exists"),
        (answer(404, "NoSuchKey"), RemoteResourceNotFoundError, "not_found"),
        (answer(404, "404"), RemoteResourceNotFoundError, "not_found"),
        (answer(404, "NoSuchBucket"), RemoteStorageConfigError, "config"),
        (answer(301, "PermanentRedirect"), RemoteStorageConfigError, "config"),
        (answer(501, "NotImplemented"), RemoteStorageConfigError, "config"),
        (answer(503, "SlowDown"), RemoteStorageThrottledError, "throttled"),
        (answer(503, ""), RemoteStorageThrottledError, "throttled"),
        (answer(429, "TooManyRequests"), RemoteStorageThrottledError, "throttled"),
        (answer(400, "ExpiredToken"), RemoteStorageSessionExpiredError, "session_expired"),
        (answer(403, "AccessDenied"), RemoteStorageAccessError, "access"),
        (answer(403, "403"), RemoteStorageAccessError, "access"),
        (answer(403, "SignatureDoesNotMatch"), RemoteStorageAccessError, "access"),
        (answer(403, "RequestTimeTooSkewed"), RemoteStorageAccessError, "clock_skew"),
        (answer(400, "RequestTimeout"), RemoteStorageTimeoutError, "timeout"),
        (answer(400, "BadDigest"), RemoteStorageError, "bad_digest"),
        (answer(409, "ConditionalRequestConflict"), RemoteStorageError, "busy"),
        (answer(416, "InvalidRange"), RemoteSegmentCorruptError, "corrupt"),
        (answer(405, "MethodNotAllowed"), RemoteStorageRefusedError, "refused"),
        (answer(500, "InternalError"), RemoteStorageError, "server_error"),
        (boto.ReadTimeoutError(endpoint_url="u"), RemoteStorageTimeoutError, "timeout"),
        (boto.ConnectTimeoutError(endpoint_url="u"), RemoteStorageTimeoutError, "timeout"),
        (boto.SSLError(endpoint_url="u", error=OSError("bad certificate")), RemoteStorageUnreachableError, "tls"),
        (
            boto.EndpointConnectionError(
                endpoint_url="u", error=NameResolutionError("h", None, OSError("x"))  # type: ignore[arg-type]
            ),
            RemoteStorageUnreachableError,
            "dns",
        ),
        (
            boto.EndpointConnectionError(endpoint_url="u", error="[Errno 111] Connection refused"),
            RemoteStorageUnreachableError,
            "connection",
        ),
        (boto.ConnectionClosedError(endpoint_url="u"), RemoteStorageUnreachableError, "connection"),
        (ConnectionResetError(), RemoteStorageUnreachableError, "connection"),
        (boto.NoCredentialsError(), RemoteStorageAccessError, "access"),
        (boto.ResponseStreamingError(error="IncompleteRead"), RemoteSegmentCorruptError, "corrupt"),
        (KeyError("ContentLength"), RemoteStorageError, "odd_answer"),
        (ResponseParserError("not well-formed"), RemoteStorageError, "odd_answer"),
        (RecursionError(), RemoteStorageError, "odd_answer"),
        (answer(301, "301"), RemoteStorageRefusedError, "redirect"),
        (boto.HTTPClientError(error=EmptyPoolError(None, "full")), RemoteStorageUnreachableError, "pool"),  # type: ignore[arg-type]
        (
            boto.EndpointConnectionError(endpoint_url="u", error=caused_by(OSError(errno.EMFILE, "too many"))),
            RemoteStorageUnreachableError,
            "file_descriptors",
        ),
        (boto.ParamValidationError(report="bad"), RemoteStorageRefusedError, "refused"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_each_error_becomes_its_kind_and_names_the_bucket(
    error: Exception, kind: type[RemoteStorageError], label: str
) -> None:
    mapped = as_storage_error("put", "s3://the-bucket/the-key", error, PERMISSIONS)
    assert "s3://the-bucket/the-key" in str(mapped)
    assert "Errno" not in str(mapped)
    assert type(mapped) is kind
    assert mapped.label == label
    assert mapped.operation == "put"


def test_a_permission_is_named() -> None:
    assert "s3:PutObject" in as_storage_error("put", "k", answer(403, "AccessDenied"), PERMISSIONS).hint


def test_an_error_of_the_store_names_its_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    settings = {
        "bucket": "wal-bucket", "region": "us-east-1", "endpoint.url": "http://127.0.0.1:1", "allow.http": "true",
        "attempt.timeout.ms": "100", "total.timeout.ms": "100",
    }  # fmt: skip
    manager = S3WalStorageManager()
    with pytest.raises(RemoteStorageUnreachableError, match="s3://wal-bucket/"):
        manager.configure(settings, StorageContext("A" * 22, 1))
    manager.close()


def test_a_profile_of_the_environment_that_is_not_there_is_told_as_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nosuch")
    settings = {"region": "eu-central-1", "bucket": "bucket"}
    with pytest.raises(RemoteStorageConfigError, match=r"nosuch.*AWS_PROFILE"):
        S3WalStorageManager().configure(settings, StorageContext("cluster", 1, is_written=False))


def test_no_operations_error_shows_the_systems_number() -> None:
    assert str(OperationError("read", "f", str(OSError(2, "No such file", "f")))) == "read f: No such file: 'f'"
