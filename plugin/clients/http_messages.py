"""HTTP/1.1 as bytes only: the head of a request, and an answer from the first byte to the last.

The owner of the connection asks the reader for a buffer, fills it, and reports how many bytes came. So a body goes from
the socket into one buffer. Nothing here waits, or knows of sockets; a blocking thread and a protocol on an event loop
use the same code.

An invalid HTTP/1.1 answer raises what http.client would: BadStatusLine, LineTooLong, IncompleteRead.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPException, IncompleteRead, LineTooLong
from io import BytesIO
from typing import Final

_HEAD_MAX_BYTES: Final = 32 * 1024
_BLOCK_BYTES: Final = 16 * 1024
_ODD_BODY_MAX_BYTES: Final = 64 * 1024
"""Limit for an answer that is no success: an error's text."""
_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""

    def head(self) -> bytes:
        """Return everything before the body."""
        lines = "".join([f"{name}: {value}\r\n" for name, value in self.headers.items()])
        return f"{self.method} {self.target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer without interim answers."""

    status: int
    headers: Mapping[str, str]
    """Names in small letters; for a repeated name the last value."""
    content: bytes
    is_kept: bool
    """Whether the connection can be used for another request."""


class AnswerReader:
    """Reads one answer. See the module's theory."""

    __slots__ = (
        "_body", "_chunks", "_content", "_filled", "_headers", "_keeps", "_left", "_most", "_raw", "_status", "answer",
    )  # fmt: skip

    def __init__(self, most: int) -> None:
        """`most`: so many bytes of a success are read; the rest stays on the connection."""
        self._most = most
        self._raw = bytearray(_BLOCK_BYTES)
        self._filled = 0
        self._status = 0
        self._headers: dict[str, str] = {}
        self._keeps = False
        self._content = BytesIO()
        self._body: memoryview | None = None
        """Memory of `_content`, which avoids a copy, for a body of known length; otherwise the answer is in `_raw`
        until its end."""
        self._left: int | None = None
        """The part of the announced length beyond `_most`; None: it ends with the connection, or is chunked."""
        self._chunks: _Chunks | None = None
        self.answer: HttpAnswer | None = None
        """The answer, once it is complete."""

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes; never empty before the answer is complete."""
        if self._body is not None:
            return self._body[self._filled :]
        if len(self._raw) == self._filled:  # it cannot grow in place while somebody has the last view
            self._raw = self._raw + bytes(self._filled or _BLOCK_BYTES)
        return memoryview(self._raw)[self._filled :]

    def received(self, count: int) -> bool:
        """Count bytes put into `buffer`. Returns whether the answer is complete. Raises HTTPException."""
        self._filled += count
        if self._body is not None:
            self._end_of_sized()
        elif self._status:
            self._end_of_unsized()
        else:
            self._look_for_head()
        return self.answer is not None

    def ended(self) -> HttpAnswer:
        """Handle the connection's end. Raises HTTPException if the answer is incomplete."""
        if self.answer is not None:
            return self.answer
        if not self._status:
            raise BadStatusLine("the connection ended before an answer")
        if self._body is not None:
            raise IncompleteRead(b"", len(self._body) - self._filled)
        if self._chunks is not None:
            raise IncompleteRead(b"")
        return self._done(bytes(self._raw[: self._filled]), whole=False)

    def _look_for_head(self) -> None:
        end = self._raw.find(_END, 0, self._filled)
        if end < 0:
            if self._filled >= _HEAD_MAX_BYTES:
                raise LineTooLong("an answer's head")
            return
        status, headers, is_new = _parsed(bytes(self._raw[:end]))
        rest = bytes(self._raw[end + len(_END) : self._filled])
        if 100 <= status < 200:
            self._restart(rest)
            return
        self._status, self._headers = status, headers
        self._keeps = is_new and "close" not in headers.get("connection", "").lower()
        if status >= 300:
            self._most = max(self._most, _ODD_BODY_MAX_BYTES)
        self._begin_body(rest)

    def _restart(self, rest: bytes) -> None:
        self._raw = bytearray(rest)
        self._filled = len(rest)
        self._look_for_head()

    def _begin_body(self, rest: bytes) -> None:
        headers = self._headers
        if "chunked" in headers.get("transfer-encoding", "").lower():
            self._chunks = _Chunks()
        elif self._status in (204, 304):
            self._done(b"", whole=not rest)
            return
        elif (length := headers.get("content-length")) is not None:
            if not (length.isascii() and length.isdigit()):
                raise HTTPException("an answer's length is no number")
            self._left = max(0, int(length) - self._most)
            self._content = BytesIO(bytes(min(int(length), self._most)))
            self._body = self._content.getbuffer()
            taken = len(rest[: len(self._body)])
            self._body[:taken] = rest[:taken]
            self._filled = taken
            # More than was announced is unrequested, so the connection is not used again.
            self._keeps = self._keeps and len(rest) == taken
            self._end_of_sized()
            return
        self._raw = bytearray(rest)
        self._filled = len(rest)
        self._end_of_unsized()

    def _end_of_sized(self) -> None:
        if self._body is not None and self._filled == len(self._body):
            self._done(self._content.getvalue(), whole=not self._left)

    def _end_of_unsized(self) -> None:
        if self._chunks is None:
            if self._filled >= self._most:
                self._done(bytes(self._raw[: self._most]), whole=False)
            return
        rest = self._chunks.take(bytes(self._raw[: self._filled]))
        self._raw, self._filled = bytearray(_BLOCK_BYTES), 0
        if self._chunks.is_whole or len(self._chunks.content) >= self._most:
            self._done(bytes(self._chunks.content[: self._most]), whole=self._chunks.is_whole and not rest)

    def _done(self, content: bytes, *, whole: bool) -> HttpAnswer:
        self.answer = HttpAnswer(self._status, self._headers, content, self._keeps and whole)
        return self.answer


class _Chunks:
    """A body in chunks (RFC 9112, 7.1)."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.is_whole = False
        self._unread = b""

    def take(self, data: bytes) -> bytes:
        """Add data. Returns what came behind the body's end."""
        data = self._unread + data
        while not self.is_whole:
            line, found, rest = data.partition(b"\r\n")
            if not found:
                if len(line) > _HEAD_MAX_BYTES:
                    raise LineTooLong("a chunk's size")
                break
            size = _chunk_size(line)
            if size == 0:
                end = data.find(b"\r\n", len(line)) if rest[:2] == b"\r\n" else data.find(_END)
                if end < 0 or len(rest) < 2:
                    break
                self.is_whole = True
                data = rest[2:] if rest[:2] == b"\r\n" else data[end + len(_END) :]
            elif len(rest) < size + 2:
                break
            else:
                self.content += rest[:size]
                data = rest[size + 2 :]
        self._unread = b"" if self.is_whole else data
        return data if self.is_whole else b""


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0].strip(), 16)
    except ValueError:
        raise HTTPException("a chunk's size is no number") from None


def _parsed(head: bytes) -> tuple[int, dict[str, str], bool]:
    """Return status, headers, and whether the server speaks HTTP/1.1."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not (version.startswith("HTTP/1.") and len(status) == 3 and status.isascii() and status.isdigit()):
        raise BadStatusLine(first[:80])
    headers = dict[str, str]()
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise HTTPException("a line of an answer's head has no name")
        headers[name.lower()] = value.strip()
    return int(status), headers, version == "HTTP/1.1"
