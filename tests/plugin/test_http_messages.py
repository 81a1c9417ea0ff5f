"""An answer is the same however its bytes come, and what is none is said to be none."""

from http.client import HTTPException, IncompleteRead

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugin.clients.http_messages import HttpRequest, HttpResponse, HttpResponseReader

SIZED = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nETag:  a \r\n\r\n01234"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n012\r\n2;name=value\r\n34\r\n0\r\nTrailer: a\r\n\r\n"
)
UNSIZED = b"HTTP/1.1 200 OK\r\n\r\n01234"


def read(data: bytes, pieces: int, most: int = 100) -> HttpResponse:
    """As if so many bytes came at a time, and then the end."""
    reader = HttpResponseReader(most)
    for start in range(0, len(data), pieces):
        if (answer := reader.received(data[start : start + pieces])) is not None:
            return answer
    return reader.ended()


@pytest.mark.parametrize("pieces", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("data", "is_kept"), [(SIZED, True), (INTERIM + SIZED, True), (CHUNKED, True), (UNSIZED, False)]
)
def test_an_answer_is_the_same_however_its_bytes_come(data: bytes, is_kept: bool, pieces: int) -> None:
    answer = read(data, pieces)
    assert (answer.content, answer.is_kept) == (b"01234", is_kept)


def test_names_are_small_and_values_without_spaces_around() -> None:
    assert read(SIZED, 100).headers == {"content-length": "5", "etag": "a"}


@pytest.mark.parametrize("data", [SIZED, CHUNKED, UNSIZED])
def test_of_what_is_longer_than_wanted_the_rest_is_not_waited_for(data: bytes) -> None:
    answer = read(data, 1, most=3)
    assert (answer.content, answer.is_kept) == (b"012", False)


def test_what_comes_behind_an_answer_spoils_the_connection() -> None:
    assert read(SIZED + b"x", 1000).is_kept is False
    assert read(CHUNKED + b"x", 1000).is_kept is False


@pytest.mark.parametrize("head", [b"Connection: close\r\n", b""])
def test_a_host_that_closes_is_taken_at_its_word(head: bytes) -> None:
    version = b"HTTP/1.1" if head else b"HTTP/1.0"
    assert read(version + b" 200 OK\r\nContent-Length: 1\r\n%s\r\na" % head, 1000).is_kept is False


def test_an_errors_text_is_read_though_few_bytes_were_wanted() -> None:
    answer = read(b"HTTP/1.1 404 N\r\nContent-Length: 20\r\n\r\n" + b"x" * 20, 1000, most=3)
    assert (answer.status, len(answer.content)) == (404, 20)


@pytest.mark.parametrize("cut", [SIZED[:-1], CHUNKED[:-1], CHUNKED[:-30]])
def test_an_answer_that_ends_too_early_is_none(cut: bytes) -> None:
    with pytest.raises(IncompleteRead):
        read(cut, 1000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        SIZED[:20],
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: \u00b2\r\n\r\n".encode("latin-1"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\n012\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000,
    ],
)
def test_what_is_no_answer_is_an_error(data: bytes) -> None:
    with pytest.raises(HTTPException):
        read(data, 1000)


@given(st.binary(max_size=200), st.integers(1, 50))
def test_no_bytes_bring_another_error(data: bytes, pieces: int) -> None:
    for start in (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"):
        try:
            read(start + data, pieces)
        except HTTPException:
            continue


def test_a_requests_head_is_what_the_protocol_wants() -> None:
    request = HttpRequest("GET", "/bucket/key", {"host": "store", "range": "bytes=0-1"})
    assert request.head() == b"GET /bucket/key HTTP/1.1\r\nhost: store\r\nrange: bytes=0-1\r\n\r\n"
