"""A gateway's connection at the leader's agent as plain values: what is read, what goes on, what is asked for."""

import pytest

from gateway.produce.produce_frame import ProduceRequestView, scan_produce_request
from gateway.produce.route_core import DEFAULT_WINDOW, Window
from gateway.produce.route_request import cut_request, encode_route_request
from gateway.produce.splice_core import Action, AskInline, AskReason, Read, SpliceCore, SpliceLimits, ToBroker
from plugin.router_object_id import RouterObjectId
from replication.wire.kafka_frame import MalformedFrameError
from tests.gateway.produce.produce_frames import produce, records

WAIT_S = 0.3
SIZE = 2048
RECORDS = records(SIZE)
OBJECT = RouterObjectId(4, 11, 2, 3)


def frame_of(number: int) -> bytes:
    return produce({number: RECORDS}, correlation_id=number)


def route(number: int, object_id: RouterObjectId = OBJECT) -> bytes:
    view = scan_produce_request(frame_of(number))
    assert isinstance(view, ProduceRequestView)
    found = cut_request(frame_of(number), view)
    assert found is not None
    return b"".join(map(bytes, encode_route_request(found.routed(number, object_id, 100 * number, b"zone"))))


def read(number: int) -> Read:
    return Read(number, OBJECT, 100 * number, 100 * number + len(RECORDS), b"zone")


def to_broker(actions: list[Action]) -> list[bytes]:
    assert all(isinstance(action, ToBroker) for action in actions)
    return [b"".join(map(bytes, action.buffers)) for action in actions if isinstance(action, ToBroker)]


def make(window: Window = DEFAULT_WINDOW, reading_bytes: int = 1 << 20) -> SpliceCore:
    return SpliceCore(SpliceLimits(WAIT_S, 1 << 20, reading_bytes, window), 4, 11)


def test_a_late_read_is_asked_for_once_and_what_it_brings_is_not_looked_at() -> None:
    core = make()
    core.request_came(route(0), 1.0)
    core.request_came(route(1), 1.1)
    assert core.deadline_s == 1.0 + WAIT_S
    assert core.look_again(1.0) == []
    assert core.look_again(1.0 + WAIT_S) == [AskInline(0, AskReason.LATE)]
    assert core.deadline_s == 1.1 + WAIT_S
    assert core.look_again(1.0 + WAIT_S) == core.was_read(0, RECORDS) == core.not_read(0) == []
    assert core.was_read(1, RECORDS) == []
    assert to_broker(core.original_came(0, frame_of(0))) == [frame_of(0), frame_of(1)]


def test_originals_that_nobody_asked_for_or_that_are_others_end_the_connection() -> None:
    core = make()
    core.request_came(route(0), 1.0)
    for number in (0, 1):
        with pytest.raises(MalformedFrameError):
            make().original_came(number, frame_of(0))
    core.not_read(0)
    with pytest.raises(MalformedFrameError):
        core.original_came(0, frame_of(0) + b"\0")


@pytest.mark.parametrize("other", [OBJECT._replace(gateway_id=5), OBJECT._replace(incarnation=10)])
def test_an_object_of_another_gateway_or_of_its_predecessor_is_not_read(other: RouterObjectId) -> None:
    with pytest.raises(MalformedFrameError, match="gateway"):
        make().request_came(route(0, other), 1.0)


def test_numbers_ascend() -> None:
    core = make()
    core.request_came(route(5), 1.0)
    for number in (5, 4):
        with pytest.raises(MalformedFrameError, match="comes after"):
            core.request_came(route(number), 1.0)


@pytest.mark.parametrize("window", [Window(2, 1 << 20), Window(64, 2000)])
def test_who_sends_more_behind_a_waiting_request_than_the_window_is_let_go(window: Window) -> None:
    core = make(window)
    core.request_came(route(0), 1.0)
    core.frame_came(b"x" * 1000)
    core.frame_came(b"x" * 1000)
    with pytest.raises(MalformedFrameError, match="wait already"):
        core.frame_came(b"x")


def test_so_many_bytes_are_read_at_once_and_the_rest_in_turn() -> None:
    core = make(reading_bytes=2 * len(RECORDS))
    assert [core.request_came(route(number), 1.0) for number in range(4)] == [[read(0)], [read(1)], [], []]
    assert core.was_read(1, RECORDS) == [read(2)]
    *_, last = core.was_read(0, RECORDS)
    assert last == read(3)


def test_one_that_waits_for_its_turn_for_too_long_is_asked_for_unread() -> None:
    core = make(reading_bytes=1)
    core.request_came(route(0), 1.0)
    core.request_came(route(1), 1.0)
    assert core.look_again(1.0 + WAIT_S) == [AskInline(0, AskReason.LATE), AskInline(1, AskReason.LATE)]
    assert core.not_read(0) == []
