"""Finds out from boto3 where a bucket's objects are, and how requests for them are signed.

boto3 is given a request that it builds but does not send (`Routes`). A route keeps the destination, and asks boto3's
signer for the credentials each time, because that refreshes them; sessions of S3 Express are credentials as well.

`S3Signer` signs requests (AWS Signature Version 4 for S3 and S3 Express), with the constant parts cached. botocore's
signer takes some 330 calls for a request, most of them for constant headers. Here the key of a day is derived once, and
only what our own client sends is signed: no query, an already quoted path, headers without odd spaces. Tests compare it
with botocore's.

Source: docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

import hashlib
import hmac
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import NoCredentialsError

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

UNSIGNED_PAYLOAD: Final = "UNSIGNED-PAYLOAD"
EMPTY_PAYLOAD: Final = hashlib.sha256().hexdigest()
SECURITY_TOKEN: Final = "x-amz-security-token"  # noqa: S105 - a header's name
SESSION_TOKEN: Final = "x-amz-s3session-token"  # noqa: S105
"""The header of S3 Express."""
_ALGORITHM: Final = "AWS4-HMAC-SHA256"


class S3Signer:
    """Signs S3 requests with one set of credentials, for one region."""

    def __init__(self, credentials: ReadOnlyCredentials, region: str, service: str, token_header: str) -> None:
        self.credentials = credentials
        self._region = region
        self._service = service
        self._token = {token_header: credentials.token} if credentials.token else {}
        self._of_day: tuple[str, bytes] = ("", b"")

    def signed(self, method: str, path: str, headers: Mapping[str, str], payload: str, wall_s: float) -> dict[str, str]:
        """Return the headers, in small letters, with the signature's added; `payload` is the body's hash, or the
        word in its place."""
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall_s))
        day = moment[:8]
        told = {**headers, **self._token, "x-amz-date": moment, "x-amz-content-sha256": payload}
        names = sorted(told)
        listed = ";".join(names)
        lines = "".join([f"{name}:{told[name]}\n" for name in names])
        canonical = hashlib.sha256(f"{method}\n{path}\n\n{lines}\n{listed}\n{payload}".encode()).hexdigest()
        scope = f"{day}/{self._region}/{self._service}/aws4_request"
        text = f"{_ALGORITHM}\n{moment}\n{scope}\n{canonical}"
        signature = hmac.digest(self._key(day), text.encode(), "sha256").hex()
        told["authorization"] = (
            f"{_ALGORITHM} Credential={self.credentials.access_key}/{scope}, "
            f"SignedHeaders={listed}, Signature={signature}"
        )
        return told

    def _key(self, day: str) -> bytes:
        known, key = self._of_day
        if known != day:
            key = f"AWS4{self.credentials.secret_key}".encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._of_day = (day, key)
        return key


_PROBE_KEY: Final = "k"
_TOKEN_HEADERS: Final = {"s3v4": SECURITY_TOKEN, "v4-s3express": SESSION_TOKEN}
"""By botocore's names of the kinds of signatures that we support; with awscrt their classes differ."""


@dataclass(frozen=True, slots=True)
class Route:
    """The URL, headers and signing by which boto3 would send a request for an object of the bucket."""

    url: str
    """An object's key is appended to it."""
    context: Mapping[str, Any]
    """botocore's context of the request."""
    botocores_signer: Any
    how: Mapping[str, Any]
    """Name, region and version of signatures."""

    def signer(self, known: S3Signer | None) -> S3Signer | None:
        """Return a signer with the present credentials, `known` if they have not changed; None if boto3 signs in a way
        not supported here.

        May block while credentials are refreshed. Raises botocore's errors.
        """
        token_header = _TOKEN_HEADERS.get(self.how["signature_version"])
        if token_header is None:
            return None
        signing = self.context.get("signing", {})
        names = {"request_credentials", "identity_cache", "cache_key"} & signing.keys()
        auth = self.botocores_signer.get_auth_instance(**self.how, **{name: signing[name] for name in names})
        if auth.credentials is None:
            raise NoCredentialsError
        if known is not None and known.credentials == auth.credentials:
            return known
        return S3Signer(auth.credentials, self.how["region_name"], self.how["signing_name"], token_header)

    @property
    def signs_bodies(self) -> bool:
        """Whether a PUT's body must be hashed for its signature; under TLS only if configured."""
        configured = (self.context["client_config"].s3 or {}).get("payload_signing_enabled")
        return not self.url.startswith("https") if configured is None else bool(configured)


class _Built(Exception):  # noqa: N818 - no error: it leaves boto3 with what was asked for
    def __init__(self, route: Route) -> None:
        super().__init__()
        self.route = route


class Routes:
    """Finds a bucket's route by letting boto3 prepare a request that is not sent."""

    def __init__(self, client: "S3Client", bucket: str) -> None:
        self._client = client
        self._bucket = bucket
        self._asking = threading.local()
        # Registered after the handler of S3 Express sessions, which handles requests of all kinds.
        client.meta.events.register_last("before-sign.s3", self._stop)

    def find(self) -> Route:
        """Return the bucket's route as boto3 knows it now. Raises what boto3 raises before it sends anything."""
        self._asking.now = True
        try:
            self._client.put_object(Bucket=self._bucket, Key=_PROBE_KEY, Body=b"")
        except _Built as built:
            return built.route
        finally:
            self._asking.now = False
        raise AssertionError("boto3 sends a request without signing it")

    def _stop(self, request: AWSRequest, request_signer: object, **told: Any) -> None:
        if getattr(self._asking, "now", False):
            signing = request.context.get("signing", {})
            how = {
                "signing_name": signing.get("signing_name") or told["signing_name"],
                "region_name": signing.get("region") or told["region_name"],
                "signature_version": told["signature_version"],
            }
            raise _Built(Route(str(request.url).removesuffix(_PROBE_KEY), request.context, request_signer, how))
