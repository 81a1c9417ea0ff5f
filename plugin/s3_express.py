"""The backend on S3 Express One Zone: a directory bucket, and its sessions.

Each request is signed with a session's credentials, which CreateSession gives for five minutes. botocore has its own
session cache, but it trusts this host's clock and fails with a KeyError if a look-alike answers without credentials; so
ours replaces it. It holds one session per bucket, refreshes it a minute before its end, measured by the monotonic clock
from the store's own Date, and forgets it when the store says that it has expired: the manager then tries once more.
While the store gives no new session, the old one stays in use to its end.

Directory buckets list in no order and accept only prefixes that end in "/", and their ETags are no MD5. Nothing here
relies on either.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from botocore.credentials import ReadOnlyCredentials, RefreshableCredentials
from botocore.utils import S3ExpressIdentityResolver

from plugin.clients.backend_settings import ObjectBackendSettings, check_no_proxy_sees
from plugin.clients.object_store import ObjectStore
from plugin.errors import (
    RemoteStorageAccessError,
    RemoteStorageConfigError,
    RemoteStorageError,
    RemoteStorageSessionExpiredError,
)
from plugin.object_wal_storage_manager import ObjectWalStorageManager
from plugin.s3 import DIRECTORY_BUCKET_SUFFIX, S3ObjectStore, S3Settings, open_client

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

log = structlog.get_logger(__name__)

PERMISSIONS: Final = dict.fromkeys(("put", "get", "head", "delete", "list"), "s3express:CreateSession")
SESSION_SECONDS: Final = 300.0
REFRESH_BEFORE_END_SECONDS: Final = 60.0
_RETRY_AFTER_SECONDS: Final = 5.0
"""How long requests use the old session, without waiting for a new one, after the store gave none. A guess."""


class S3ExpressWalStorageManager(ObjectWalStorageManager):
    """Stores combined segments as objects in a directory bucket of S3 Express One Zone."""

    settings_model = S3Settings

    def open_store(self, settings: ObjectBackendSettings) -> ObjectStore:
        assert isinstance(settings, S3Settings)  # noqa: S101 - narrows what settings_model made
        if not settings.bucket.endswith(DIRECTORY_BUCKET_SUFFIX):
            raise RemoteStorageConfigError(
                "configure",
                "bucket",
                f"{settings.bucket} is no directory bucket: its name does not end in --<zone id>--x-s3",
                "use the class plugin.s3.S3WalStorageManager for other buckets",
            )
        client = open_client(settings)
        check_no_proxy_sees(client.meta.endpoint_url)  # an answer holds a session's secret key
        sessions = ExpressSessions(lambda: _create_session(client, settings.bucket), self._clock)
        _use(sessions, client)
        return S3ExpressObjectStore(client, settings, sessions, self._clock)


@dataclass(frozen=True, slots=True)
class ExpressSession:
    """A session's credentials, which botocore's signer reads."""

    access_key: str
    secret_key: str
    token: str
    lifetime: float
    """Seconds from the answer to the end."""

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        return ReadOnlyCredentials(self.access_key, self.secret_key, self.token)


class ExpressSessions:
    """The session of one directory bucket. Thread-safe: one thread refreshes it, the others wait for it.

    They also share its failure. Otherwise each would wait for all calls before its own, beyond any deadline.
    """

    def __init__(
        self, create_session: Callable[[], ExpressSession], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._create_session = create_session
        self._clock = clock
        self._lock = threading.Lock()
        self._session: ExpressSession | None = None
        self._refresh_at = 0.0
        self._ends_at = 0.0
        self._failure: Exception | None = None
        """The last one, unless a session was created since."""

    def get_credentials(self, bucket: str) -> ExpressSession:
        """Return the session, a new one if the old one is near its end. botocore calls this to sign a request."""
        known_failure = self._failure
        with self._lock:
            asked_at = self._clock()
            old = self._session
            if old is not None and asked_at < self._refresh_at:
                return old
            is_valid = old is not None and asked_at < self._ends_at
            if not is_valid and self._failure is not None and self._failure is not known_failure:
                raise self._failure.with_traceback(None)  # another call failed while this one waited
            try:
                new = self._create_session()
            except Exception as error:
                now = self._clock()
                if old is None or now >= self._ends_at:
                    self._failure = error
                    raise
                log.warning("session_not_renewed", error=str(error), consequence="the old one is used to its end")
                self._refresh_at = min(now + _RETRY_AFTER_SECONDS, self._ends_at)
                return old
            self._session, self._failure = new, None
            self._ends_at = asked_at + new.lifetime
            self._refresh_at = asked_at + max(0.0, new.lifetime - REFRESH_BEFORE_END_SECONDS)
            return new

    def forget(self) -> None:
        """Forget the session, which the store no longer accepts.

        Takes no lock: the event loop calls this, and must not wait for a thread's CreateSession.
        """
        self._session = None


class S3ExpressObjectStore(S3ObjectStore):
    """An S3ObjectStore that drops its session once the store says that it has expired."""

    def __init__(
        self,
        client: "S3Client",
        settings: S3Settings,
        sessions: ExpressSessions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(client, settings, PERMISSIONS, clock)
        self._sessions = sessions

    def storage_error(self, operation: str, key: str, error: Exception) -> RemoteStorageError:
        found = super().storage_error(operation, key, error)
        if isinstance(found, RemoteStorageSessionExpiredError):
            self._sessions.forget()
        return found


def _use(sessions: ExpressSessions, client: "S3Client") -> None:
    """Make botocore sign with our sessions: its own resolver with our cache, registered after the built-in one."""
    cache = cast(Any, sessions)  # it only calls get_credentials
    S3ExpressIdentityResolver(client, RefreshableCredentials, cache=cache).register()


def _create_session(client: "S3Client", bucket: str) -> ExpressSession:
    answer: Mapping[str, Any] = client.create_session(Bucket=bucket)
    credentials = answer.get("Credentials") or {}
    access_key, secret_key, token = (
        str(credentials.get(name) or "") for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")
    )
    if not (access_key and secret_key and token):
        raise RemoteStorageAccessError(
            "create session",
            bucket,
            "the store answered without credentials",
            "it may be a look-alike that does not know S3 Express",
        )
    return ExpressSession(access_key, secret_key, token, _lifetime(answer, credentials.get("Expiration")))


def _lifetime(answer: Mapping[str, Any], expiration: datetime | None) -> float:
    """Return the seconds between both times by the store's clock, so that this host's does not matter."""
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    if expiration is None or date is None:
        return SESSION_SECONDS
    return min(SESSION_SECONDS, (expiration - parsedate_to_datetime(date)).total_seconds())
