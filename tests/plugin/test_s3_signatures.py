"""Signatures are those of botocore's signers."""

import datetime
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import botocore.auth
import pytest
from botocore.auth import S3ExpressAuth, S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from plugin.clients.s3_route import EMPTY_PAYLOAD, SECURITY_TOKEN, SESSION_TOKEN, UNSIGNED_PAYLOAD, S3Signer

HOST, REGION, CHECKSUM = "bucket.example:9000", "eu-west-1", "x-amz-checksum-crc32c"
MOMENT = datetime.datetime(2026, 11, 23, 23, 59, 58, tzinfo=datetime.UTC)
PUT = {"if-none-match": "*", "content-type": "application/octet-stream", CHECKSUM: "AAAAAA=="}
RANGE = {"range": "bytes=0-99"}


def by_botocore(
    auth: S3SigV4Auth, method: str, path: str, headers: Mapping[str, str], body: bytes, scheme: str
) -> dict[str, str]:
    request = AWSRequest(method, f"{scheme}://{HOST}{path}", {"host": HOST, **headers}, body)
    checksum = {"request_algorithm": {"algorithm": "crc32c", "in": "header", "name": CHECKSUM}}
    request.context = {"checksum": checksum, "has_streaming_input": True}
    auth.add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


@pytest.mark.parametrize("path", ["/a/b~c", "/a%20b/%C3%BC", "/key"])
@pytest.mark.parametrize("token", [None, "a+token/="])
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("is_express", [False, True])
def test_headers_are_what_botocore_makes_of_the_same_request(
    monkeypatch: pytest.MonkeyPatch, path: str, token: str | None, scheme: str, is_express: bool
) -> None:
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: MOMENT)
    credentials = ReadOnlyCredentials("access", "secret/+", token if not is_express else token or "session")
    if is_express:
        no_cache: Any = None
        auth: S3SigV4Auth = S3ExpressAuth(credentials, "s3express", REGION, identity_cache=no_cache)
    else:
        auth = S3SigV4Auth(credentials, "s3", REGION)
    service, token_header = ("s3express", SESSION_TOKEN) if is_express else ("s3", SECURITY_TOKEN)
    signer = S3Signer(credentials, REGION, service, token_header)
    for method, headers, body in (("PUT", PUT, b"abc"), ("GET", RANGE, b"")):
        payload = EMPTY_PAYLOAD
        if body:
            payload = UNSIGNED_PAYLOAD if scheme == "https" else sha256(body).hexdigest()
        signed = signer.signed(method, path, {"host": HOST, **headers}, payload, MOMENT.timestamp())
        assert signed == by_botocore(auth, method, path, headers, body, scheme)


def test_a_days_key_is_not_used_on_the_next() -> None:
    credentials = ReadOnlyCredentials("access", "secret", None)

    def signed(signer: S3Signer, wall_s: float) -> str:
        return signer.signed("GET", "/key", {"host": HOST}, EMPTY_PAYLOAD, wall_s)["authorization"]

    kept = S3Signer(credentials, REGION, "s3", SECURITY_TOKEN)
    for wall_s in (MOMENT.timestamp(), MOMENT.timestamp() + 10, MOMENT.timestamp()):
        assert signed(kept, wall_s) == signed(S3Signer(credentials, REGION, "s3", SECURITY_TOKEN), wall_s)
