"""Finds out from boto3 where a bucket's objects are, and how requests for them are signed.

boto3 is given a request that it builds but does not send (`Routes`). A route keeps the destination, and asks boto3's
signer for the credentials each time, because that refreshes them; sessions of S3 Express are credentials as well.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from botocore.awsrequest import AWSRequest
from botocore.exceptions import NoCredentialsError

from plugin.clients.s3_signatures import SECURITY_TOKEN, SESSION_TOKEN, S3Signer

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

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
