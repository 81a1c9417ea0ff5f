"""The backend on S3 and compatible stores, by boto3.

The checksum of the whole object travels twice with a PUT: in x-amz-checksum-crc32c, for the store to check what
arrived, and as metadata `crc32c`, so that we recognise our own object after a write with an unknown outcome. botocore's
own retries are off: ours handle unknown outcomes and total deadlines.
"""

import asyncio
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeVar

import boto3
import botocore.session
import structlog
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import (
    CredentialProvider,
    CredentialResolver,
    Credentials,
    ReadOnlyCredentials,
    SharedCredentialProvider,
)
from botocore.exceptions import BotoCoreError
from pydantic import Field

from kafka_log.crc32c import crc32c
from plugin.clients.backend_settings import (
    METADATA_SERVICE,
    ObjectBackendSettings,
    RemoteBackendSettings,
    check_endpoint,
    check_no_proxy_sees,
    state_of,
)
from plugin.clients.loop_connections import RequestLimits
from plugin.clients.object_store import ListedObject, ListPage, ObjectHead, ObjectStore
from plugin.clients.s3_direct import S3Direct
from plugin.clients.s3_errors import as_storage_error
from plugin.errors import RemoteStorageConfigError, RemoteStorageError, RemoteStorageTimeoutError
from plugin.object_wal_storage_manager import ObjectWalStorageManager

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

log = structlog.get_logger(__name__)

T = TypeVar("T")

DIRECTORY_BUCKET_SUFFIX: Final = "--x-s3"
_BLOCK_BYTES: Final = 64 * 1024
"""Read size; one read gives one TLS record at most, so allocating the whole rest of a body each time would be
wasteful.
"""
PERMISSIONS: Final = {
    "put": "s3:PutObject",
    "get": "s3:GetObject",
    "head": "s3:GetObject",
    "delete": "s3:DeleteObject",
    "list": "s3:ListBucket",
    "versioning": "s3:GetBucketVersioning",
}


class S3Settings(RemoteBackendSettings):
    """Settings of S3WalStorageManager."""

    bucket: str = Field(min_length=3, description="The bucket's name.")
    region: str | None = Field(default=None, description="Default: what the AWS chain says.")
    addressing_style: Literal["auto", "path", "virtual"] = Field(
        default="auto", description="Where the bucket's name stands in the URL."
    )
    max_pool_connections: ClassVar[int] = 32
    """Connections that are kept open (guessed)."""
    credentials_file: Path | None = Field(
        default=None,
        description="A file like ~/.aws/credentials, read anew when it changes; its profile default counts. "
        "Default: the AWS credential chain.",
    )


class S3WalStorageManager(ObjectWalStorageManager):
    """Stores combined segments as objects in an S3 bucket."""

    settings_model = S3Settings

    def open_store(self, settings: ObjectBackendSettings) -> ObjectStore:
        assert isinstance(settings, S3Settings)  # noqa: S101 - narrows what settings_model made
        if settings.bucket.endswith(DIRECTORY_BUCKET_SUFFIX):
            raise RemoteStorageConfigError(
                "configure",
                "bucket",
                f"{settings.bucket} is a directory bucket",
                "use the class plugin.s3_express.S3ExpressWalStorageManager",
            )
        return S3ObjectStore(open_client(settings), settings, PERMISSIONS, self._clock)


def open_client(settings: S3Settings) -> "S3Client":
    """Return a boto3 client for the settings. Raises RemoteStorageConfigError."""
    check_endpoint(settings.endpoint_url, settings.allow_http)
    try:
        client: S3Client = _session(settings).client(
            "s3",
            endpoint_url=settings.endpoint_url,
            verify=str(settings.tls_ca_file) if settings.tls_ca_file else None,
            config=Config(
                connect_timeout=settings.connect_timeout_ms / 1000,
                read_timeout=settings.read_timeout_seconds,
                max_pool_connections=settings.max_pool_connections,
                retries={"total_max_attempts": 1},
                s3={"addressing_style": settings.addressing_style},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                tcp_keepalive=True,
            ),
        )
    except (BotoCoreError, ValueError) as error:
        raise RemoteStorageConfigError(
            "configure", "endpoint.url", str(error), "see also region, and AWS_PROFILE"
        ) from error
    check_endpoint(client.meta.endpoint_url, settings.allow_http)  # which the environment may have set
    # A PUT would first wait for "100 Continue", one round trip more; our bodies are small.
    client.meta.events.register_last("before-sign.s3.PutObject", _drop_expect)
    # A bucket's region is asked for after a redirect; a redirect of that question must not go on for ever.
    client.meta.events.register_last("before-parameter-build.s3.HeadBucket", _follow_no_redirect)
    return client


def _drop_expect(request: AWSRequest, **_: object) -> None:
    del request.headers["Expect"]


def _follow_no_redirect(context: dict[str, dict[str, object]], **_: object) -> None:
    context.setdefault("s3_redirect", {})["redirected"] = True


class _FileCredentials(Credentials):
    """The present keys of the profile "default" in a file, which is checked for each signature.

    A file that cannot be read, for instance while it is replaced, leaves the last keys in use.
    """

    def __init__(self, file: Path) -> None:
        """Read the file. Raises RemoteStorageConfigError."""
        self._file = file
        self._state = state_of(file)
        self._frozen = _read_credentials(file)
        first = self._frozen
        super().__init__(str(first.access_key), str(first.secret_key), first.token, method="credentials.file")

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Return the keys with which botocore signs. For any thread."""
        state = state_of(self._file)
        if state != self._state:
            try:
                self._frozen = _read_credentials(self._file)
                log.info("credentials_read_anew", file=str(self._file))
            except RemoteStorageConfigError as error:
                log.warning("credentials_unreadable", error=str(error), consequence="the last ones stay in use")
            self._state = state
        return self._frozen


def _read_credentials(file: Path) -> ReadOnlyCredentials:
    try:
        credentials = SharedCredentialProvider(str(file), "default").load()
    except BotoCoreError as error:
        raise RemoteStorageConfigError(
            "configure", "credentials.file", f"cannot be read: {type(error).__name__}"
        ) from None
    if credentials is None:
        raise RemoteStorageConfigError("configure", "credentials.file", "has no profile default, or is not there")
    return credentials.get_frozen_credentials()


class _FileProvider(CredentialProvider):
    """Gives botocore `_FileCredentials`."""

    def __init__(self, credentials: _FileCredentials) -> None:
        super().__init__()
        self._credentials = credentials

    def load(self) -> Credentials:
        return self._credentials


def _past_proxies(load: Callable[[], T]) -> Callable[[], T]:
    """Return what loads keys from the machine's metadata service, which botocore asks by the environment's proxy."""

    def checked() -> T:
        check_no_proxy_sees(METADATA_SERVICE, "credentials.file")
        return load()

    return checked


def _session(settings: S3Settings) -> boto3.session.Session:
    """Return a session. Raises RemoteStorageConfigError."""
    session = botocore.session.get_session()
    if settings.credentials_file is None:
        machines = session.get_component("credential_provider").get_provider("iam-role")
        machines.load = _past_proxies(machines.load)
    else:
        provider = _FileProvider(_FileCredentials(settings.credentials_file))
        session.register_component("credential_provider", CredentialResolver([provider]))
    return boto3.session.Session(region_name=settings.region, botocore_session=session)


class S3ObjectStore:
    """An ObjectStore on one bucket: small requests by `S3Direct`, the rest by a boto3 client in threads."""

    def __init__(
        self,
        client: "S3Client",
        settings: S3Settings,
        permissions: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._bucket = settings.bucket
        self._attempt_timeout = settings.attempt_timeout_ms / 1000
        self._permissions = permissions
        self._clock = clock
        self._threads = ThreadPoolExecutor(settings.max_pool_connections, "store")
        self._direct = _direct(client, settings, clock)

    async def put_if_absent(self, key: str, chunks: Sequence[bytes | memoryview]) -> None:
        direct = self.direct_for(sum(map(len, chunks)))
        if direct is None:
            await self._by_boto3("put", key, partial(self._put, key, chunks))
            return
        body = b"".join(chunks)
        with self._as_storage_errors("put", key):
            if not await direct.put(key, body, crc32c(body)):
                raise _elsewhere("put", key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        direct = self.direct_for(end - start)
        if direct is None:
            return await self._by_boto3("get", key, partial(self._get_range, key, start, end))
        with self._as_storage_errors("get", key):
            data = await direct.get(key, start, end)
            if data is None:
                raise _elsewhere("get", key)
            return data

    async def head(self, key: str) -> ObjectHead:
        def ask() -> ObjectHead:
            answer = self._client.head_object(Bucket=self._bucket, Key=key)
            text = answer["Metadata"].get("crc32c", "")
            return ObjectHead(answer["ContentLength"], int(text, 16) if _is_hex(text) else None)

        return await self._by_boto3("head", key, ask)

    async def delete(self, key: str) -> None:
        await self._by_boto3("delete", key, lambda: self._client.delete_object(Bucket=self._bucket, Key=key))

    async def list_page(self, prefix: str, page: str | None) -> ListPage:
        def ask() -> ListPage:
            if page is None:
                answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix)
            else:
                answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, ContinuationToken=page)
            objects = [
                ListedObject(item["Key"], item["Size"], int(item["LastModified"].timestamp() * 1000))
                for item in answer.get("Contents", [])
            ]
            return ListPage(objects, answer["NextContinuationToken"] if answer["IsTruncated"] else None)

        return await self._by_boto3("list", prefix, ask)

    async def keeps_versions(self) -> bool:
        """Whether the bucket keeps deleted objects as versions. Directory buckets cannot."""
        if self._bucket.endswith(DIRECTORY_BUCKET_SUFFIX):
            return False
        answer = await self._by_boto3("versioning", "", lambda: self._client.get_bucket_versioning(Bucket=self._bucket))
        return answer.get("Status") == "Enabled"

    def direct_for(self, size_bytes: int) -> S3Direct | None:
        """Return the client that sends a request of so many bytes on the event loop; None: boto3 sends it, in a
        thread."""
        return self._direct if self._direct.admits(size_bytes) else None

    async def _by_boto3(self, operation: str, key: str, ask: Callable[[], T]) -> T:
        with self._as_storage_errors(operation, key):
            return await asyncio.get_running_loop().run_in_executor(self._threads, ask)

    def _put(self, key: str, chunks: Sequence[bytes | memoryview]) -> None:
        body = b"".join(chunks)
        checksum = crc32c(body)
        answer = self._client.put_object(
            Bucket=self._bucket,
            Key=key,
            Body=body,
            IfNoneMatch="*",
            ChecksumCRC32C=b64encode(checksum.to_bytes(4, "big")).decode(),
            ContentType="application/octet-stream",
            Metadata={"crc32c": f"{checksum:08x}"},
        )
        answer["ETag"]  # an answer without it does not come from an object store
        self.renew_direct()

    def _get_range(self, key: str, start: int, end: int) -> bytes:
        deadline = self._clock() + self._attempt_timeout
        answer = self._client.get_object(Bucket=self._bucket, Key=key, Range=f"bytes={start}-{end - 1}")
        # One more than requested shows that the answer is another one.
        with closing(answer["Body"]) as body:
            data = read_in_time(body.read, end - start + 1, lambda: self._clock() > deadline, "get", key)
        self.renew_direct()
        return data

    def close(self) -> None:
        self._direct.close()
        self._threads.shutdown(wait=False)
        self._client.close()

    def renew_direct(self) -> None:
        """Give `S3Direct` the route and credentials that boto3 has just used."""
        try:
            self._direct.renew()
        except Exception as error:
            log.warning("direct_client_off", error=str(error), consequence="boto3 sends the requests, more slowly")

    def storage_error(self, operation: str, key: str, error: Exception) -> RemoteStorageError:
        """Convert any exception of boto3 to a RemoteStorageError that names the bucket."""
        return as_storage_error(operation, f"s3://{self._bucket}/{key}", error, self._permissions)

    @contextmanager
    def _as_storage_errors(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise self.storage_error(operation, key, error) from error


def read_in_time(
    read: Callable[[int], bytes], most: int, is_late: Callable[[], bool], operation: str, key: str
) -> bytes:
    """Read a body up to `most` bytes. `read` takes the most to return, and returns nothing at the end.

    Raises RemoteStorageTimeoutError once `is_late`, because a store that sends byte by byte could hold a thread without
    end; and what `read` raises.
    """
    blocks, left = list[bytes](), most
    while left and (block := read(min(left, _BLOCK_BYTES))):
        blocks.append(block)
        left -= len(block)
        if is_late():
            raise RemoteStorageTimeoutError(operation, key, "the body came too slowly")
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _direct(client: "S3Client", settings: S3Settings, clock: Callable[[], float]) -> S3Direct:
    limits = RequestLimits(
        connect_timeout=settings.connect_timeout_ms / 1000,
        read_timeout=settings.read_timeout_seconds,
        attempt_timeout=settings.attempt_timeout_ms / 1000,
        kept=settings.max_pool_connections,
    )
    ca_file = str(settings.tls_ca_file) if settings.tls_ca_file else None
    return S3Direct(client, settings.bucket, ca_file, limits, clock)


def _elsewhere(operation: str, key: str) -> RemoteStorageError:
    return RemoteStorageError(operation, key, "the bucket is elsewhere: boto3 is to find it", label="redirect")


def _is_hex(text: str) -> bool:
    return len(text) == 8 and all(character in "0123456789abcdef" for character in text)
