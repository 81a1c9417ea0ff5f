"""HTTP/1.1 as bytes only: the head of a request, and an answer from the first byte to the last, read by llhttp.

Nothing here waits, or knows of sockets. An invalid answer raises what http.client would: BadStatusLine, LineTooLong,
IncompleteRead, or another HTTPException.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPException, IncompleteRead, LineTooLong
from typing import Final

from httptools import HttpParserError, HttpResponseParser

_HEAD_MAX_BYTES: Final = 32 * 1024
_ODD_BODY_MAX_BYTES: Final = 64 * 1024
"""Limit for an answer that is no success: an error's text."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""

    def head(self) -> bytes:
        lines = "".join([f"{name}: {value}\r\n" for name, value in self.headers.items()])
        return f"{self.method} {self.target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete HTTP response; interim (1xx) responses are left out."""

    status: int
    headers: Mapping[str, str]
    """Names in small letters; for a repeated name the last value."""
    content: bytes
    is_kept: bool
    """Whether the connection can be used for another request."""


class HttpResponseReader:
    """Parses one HTTP response. The parser calls the methods `on_...`."""

    def __init__(self, most: int) -> None:
        """`most` bounds how many bytes of a successful response's body are read; the rest stays on the connection."""
        self._most = most
        self._parser = HttpResponseParser(self)
        self._head_bytes = 0
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._is_complete = False
        self._is_kept = False

    def received(self, data: bytes) -> HttpResponse | None:
        """Take the next bytes. Returns the response once it is complete. Raises HTTPException."""
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            if not self._is_complete:
                raise HTTPException(f"no valid answer: {error}") from error
            self._is_kept = False
        if self._is_complete:
            return self._answer()
        if not self._status:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_MAX_BYTES:
                raise LineTooLong("an answer's head")
        if self._body_bytes > self._most:
            return self._answer()
        return None

    def ended(self) -> HttpResponse:
        """Handle the connection's end, and return the response. Raises HTTPException if it is incomplete."""
        if not self._status:
            raise BadStatusLine("the connection ended before an answer")
        if "content-length" in self._headers or "transfer-encoding" in self._headers:
            raise IncompleteRead(b"")
        return self._answer()

    def _answer(self) -> HttpResponse:
        content = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        return HttpResponse(self._status, self._headers, content[: self._most], self._is_kept)

    def on_message_begin(self) -> None:
        if self._is_complete:  # more than one answer is unrequested, so the connection is not used again
            self._is_kept = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._status:  # else it is a trailer
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._is_complete or 100 <= status < 200:
            return
        self._status = status
        if status >= 300:
            self._most = max(self._most, _ODD_BODY_MAX_BYTES)

    def on_body(self, body: bytes) -> None:
        if not self._is_complete:
            self._body.append(body)
            self._body_bytes += len(body)

    def on_message_complete(self) -> None:
        if not self._status:
            self._headers = {}  # of an interim answer
        elif not self._is_complete:
            self._is_complete = True
            self._is_kept = self._parser.should_keep_alive() and self._body_bytes <= self._most
