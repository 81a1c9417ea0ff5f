"""Where a bucket's objects are, and how requests for them are signed, as boto3 finds it out.

Theory. boto3 is asked by a request that it builds and does not send (`Routes`). Of what it says a route keeps where to,
and asks its signer for the credentials each time, as that is what refreshes them; sessions of S3 Express are
credentials as well.
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
"""By botocore's names of the kinds of signatures that are ours; their classes are others where awscrt is there."""


@dataclass(frozen=True, slots=True)
class Route:
    """How boto3 would send a request for an object of the bucket."""

    url: str
    """What an object's key is appended to."""
    context: Mapping[str, Any]
    """botocore's, of the request."""
    botocores_signer: Any
    how: Mapping[str, Any]
    """Name, region and version of signatures."""

    def signer(self, known: S3Signer | None) -> S3Signer | None:
        """By the credentials of now: the one that is `known`, if they are the same; None: such signatures are not ours.

        May block, as credentials are refreshed. Raises what botocore does.
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
        """Whether a PUT's body is to be hashed; under TLS it goes without, unless that was configured."""
        configured = (self.context["client_config"].s3 or {}).get("payload_signing_enabled")
        return not self.url.startswith("https") if configured is None else bool(configured)


class _Built(Exception):  # noqa: N818 - no error: it leaves boto3 with what was asked for
    def __init__(self, route: Route) -> None:
        super().__init__()
        self.route = route


class Routes:
    """Asks boto3 how it would send a request, and keeps it from doing so."""

    def __init__(self, client: "S3Client", bucket: str) -> None:
        self._client = client
        self._bucket = bucket
        self._asking = threading.local()
        # Behind what knows S3 Express' sessions, which registers for requests of all kinds.
        client.meta.events.register_last("before-sign.s3", self._stop)

    def find(self) -> Route:
        """Where the bucket is by what boto3 knows now. Raises what boto3 does before it sends anything."""
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
