"""Answers belong to requests by the order of the connection, whatever ids a client chooses."""

import struct

import pytest

from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.request_order import RequestOrder
from tests.gateway.produce.produce_frames import VERSIONS, produce, records

HANDSHAKE, PLAIN = 17, b"\0alice\0secret"


def request(api_key: int, number: int, version: int = 1) -> bytes:
    return struct.pack(">hhih", api_key, version, number, -1)


def answer(number: int) -> bytes:
    return struct.pack(">i", number) + b"whatever"


@pytest.mark.parametrize("version", [*range(3, 9), *VERSIONS])
def test_what_a_broker_never_answers_has_no_place(version: int) -> None:
    order = RequestOrder[str]()
    for acks, what in ((0, "lost"), (1, "leader"), (0, "lost"), (-1, "all")):
        content = {0: records()}
        order.asked(produce(content, version=version, correlation_id=7, acks=acks, transactional_id="t"), what)
    order.asked(request(3, 7), "metadata")
    assert [order.answered(answer(7)) for _ in range(3)] == ["leader", "all", "metadata"]
    assert not len(order)


@pytest.mark.parametrize("frame", [answer(8), b"\0\0\0", b""])
def test_an_answer_with_another_id_than_the_next_requests_is_refused(frame: bytes) -> None:
    order = RequestOrder[str]()
    order.asked(request(3, 7), "first")
    order.asked(request(3, 8), "second")
    with pytest.raises(MalformedFrameError):
        order.answered(frame)


def test_an_answer_that_nobody_asked_for_is_refused() -> None:
    with pytest.raises(MalformedFrameError):
        RequestOrder[str]().answered(answer(7))


def test_a_login_by_tokens_keeps_the_order() -> None:
    order = RequestOrder[str]()
    for frame, what in ((request(HANDSHAKE, 1, version=0), "handshake"), (PLAIN, "token"), (request(3, 2), "metadata")):
        order.asked(frame, what)
    assert [order.answered(one) for one in (answer(1), b"", answer(2))] == ["handshake", "token", "metadata"]
    order.asked(produce({0: records()}, correlation_id=3), "produce")
    with pytest.raises(MalformedFrameError):
        order.answered(answer(4))
