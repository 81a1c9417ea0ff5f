"""The object store of the tests in other tongues: Google's XML API and Azure's Blob API, put into S3's for moto.

Told apart by their headers. What obstore sends is understood, and no more: one write, one read, headers, deletion (of
Azure by a batch of one), listings. Requests of the account of Azurite go on to Azurite, where that runs.
"""

import http.client
import re
from dataclasses import replace
from datetime import datetime
from email.utils import format_datetime
from typing import Final
from urllib.parse import parse_qs, unquote, urlencode
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.faulty_store import Answer, FaultyFront, Request

AZURITE_ACCOUNT: Final = "devstoreaccount1"
LOOK_ALIKE_ACCOUNT: Final = "lookalike"
_S3: Final = "{http://s3.amazonaws.com/doc/2006-03-01/}"
_TO_S3: Final = {
    "x-goog-if-generation-match": "if-none-match",
    "x-goog-meta-crc32c": "x-amz-meta-crc32c",
    "x-ms-meta-crc32c": "x-amz-meta-crc32c",
}


class DialectFront(FaultyFront):
    azurite_port: int | None = None
    azurite_sas_token = ""

    def answer(self, request: Request) -> Answer:
        if "x-ms-version" in request.headers:
            return self._to_azure(request)
        if request.headers.get("authorization", "").startswith("Bearer ") or "goog" in " ".join(request.headers):
            return self._to_google(request)
        return super().answer(request)

    def _to_google(self, request: Request) -> Answer:
        if not request.headers.get("authorization", "").startswith("Bearer "):
            return _error(401, "AuthenticationRequired")
        return _with_metadata(super().answer(_in_s3(request)), "x-goog-meta-crc32c")

    def _to_azure(self, request: Request) -> Answer:
        if request.bucket == AZURITE_ACCOUNT:
            return self._from_azurite(request)
        query = parse_qs(request.query)
        if "sig" not in query and not request.headers.get("authorization", "").startswith("SharedKey "):
            return _error(403, "AuthenticationFailed")
        request = replace(request, path=request.path.removeprefix(f"/{LOOK_ALIKE_ACCOUNT}"))
        if query.get("comp") == ["list"]:
            return self._azure_listing(request, query)
        if query.get("comp") == ["batch"]:
            return self._azure_batch(request)
        answer = super().answer(replace(_in_s3(request), query=""))
        if answer.status == 412:
            return _error(409, "BlobAlreadyExists")
        return _in_azures_words(_with_metadata(answer, "x-ms-meta-crc32c"))

    def _azure_listing(self, request: Request, query: dict[str, list[str]]) -> Answer:
        wanted = {"list-type": "2", "prefix": query.get("prefix", [""])[0]}
        if "marker" in query:
            wanted["continuation-token"] = query["marker"][0]
        answer = super().answer(replace(_in_s3(request), query=urlencode(wanted)))
        if answer.status != 200:
            return _in_azures_words(answer)
        listed = ElementTree.fromstring(answer.body)
        blobs = "".join(_blob(item) for item in listed.iter(f"{_S3}Contents"))
        marker = listed.findtext(f"{_S3}NextContinuationToken") or ""
        body = f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{marker}</NextMarker></EnumerationResults>"
        return Answer(200, (("Content-Type", "application/xml"),), f'<?xml version="1.0"?>{body}'.encode())

    def _azure_batch(self, request: Request) -> Answer:
        target = re.search(rb"^DELETE (\S+) HTTP", request.body, re.MULTILINE)
        number = re.search(rb"Content-ID: (\S+)", request.body, re.IGNORECASE)
        assert target is not None
        path = unquote(target[1].decode().partition("?")[0]).removeprefix(f"/{LOOK_ALIKE_ACCOUNT}")
        known = super().answer(replace(_in_s3(request), method="HEAD", path=path, query="", body=b"")).status == 200
        super().answer(replace(_in_s3(request), method="DELETE", path=path, query="", body=b""))
        status = b"202 Accepted" if known else b"404 The specified blob does not exist."
        part = b"Content-Type: application/http\r\nContent-ID: " + (number[1] if number else b"0")
        body = b"--batch\r\n" + part + b"\r\n\r\nHTTP/1.1 " + status + b"\r\n\r\n\r\n--batch--\r\n"
        return Answer(202, (("Content-Type", "multipart/mixed; boundary=batch"),), body)

    def _from_azurite(self, request: Request) -> Answer:
        headers = dict(request.headers)
        if self.faults.take("ignore_conditions", request):
            # The account's key has signed the condition; a shared access signature signs no headers.
            headers = {name: value for name, value in headers.items() if name not in ("if-none-match", "authorization")}
            request = replace(request, query=f"{request.query}&{self.azurite_sas_token}")
        connection = http.client.HTTPConnection("127.0.0.1", self.azurite_port, timeout=20)
        try:
            connection.request(request.method, request.target, request.body, headers)
            answer = connection.getresponse()
            return Answer(answer.status, tuple(answer.getheaders()), answer.read())
        finally:
            connection.close()


def _in_s3(request: Request) -> Request:
    headers = {_TO_S3.get(name, name): value for name, value in request.headers.items() if name != "authorization"}
    if headers.get("if-none-match") == "0":
        headers["if-none-match"] = "*"
    return replace(request, path=unquote(request.path), headers=headers)


def _with_metadata(answer: Answer, name: str) -> Answer:
    headers = tuple((name if given.lower() == "x-amz-meta-crc32c" else given, value) for given, value in answer.headers)
    return replace(answer, headers=headers)


def _in_azures_words(answer: Answer) -> Answer:
    for code, azures in ((b"NoSuchKey", b"BlobNotFound"), (b"NoSuchBucket", b"ContainerNotFound")):
        answer = replace(answer, body=answer.body.replace(b"<Code>" + code, b"<Code>" + azures))
    return answer


def _blob(item: ElementTree.Element) -> str:
    changed = datetime.fromisoformat(item.findtext(f"{_S3}LastModified", ""))
    return (
        f"<Blob><Name>{escape(item.findtext(f'{_S3}Key', ''))}</Name><Properties>"
        f"<Last-Modified>{format_datetime(changed, usegmt=True)}</Last-Modified><Etag>0x1</Etag>"
        f"<Content-Length>{item.findtext(f'{_S3}Size')}</Content-Length>"
        "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
    )


def _error(status: int, code: str) -> Answer:
    document = f'<?xml version="1.0"?><Error><Code>{code}</Code></Error>'
    return Answer(status, (("Content-Type", "application/xml"),), document.encode())
