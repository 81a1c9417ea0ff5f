"""A client's connection at the gateway as plain values: what is offered, what goes on and when, and what is kept."""

import pytest

from gateway.produce.produce_frame import ProduceRequestView
from gateway.produce.route_core import (
    DEFAULT_WINDOW,
    Action,
    ForwardInline,
    ForwardRoute,
    Left,
    Offer,
    RouteCore,
    RouteLimits,
    SendOriginal,
    Settled,
    StoredRecords,
    Window,
)
from gateway.produce.route_request import splice_request
from plugin.router_object_id import RouterObjectId
from replication.wire.kafka_frame import MalformedFrameError
from tests.gateway.produce.produce_frames import produce, records

WAIT_S = 0.2
KIB = 1024
WHERE = StoredRecords(RouterObjectId(4, 1, 2, 3), 50, b"zone")


def small(correlation_id: int) -> bytes:
    """Below what `core` links."""
    return produce({0: records(100)}, correlation_id=correlation_id)


def large(correlation_id: int, acks: int = -1, version: int = 13) -> bytes:
    return produce({0: records(2 * KIB)}, correlation_id=correlation_id, acks=acks, version=version)


def is_linked(view: ProduceRequestView, size: int, now_s: float) -> bool:
    return size >= KIB


def make(window: Window = DEFAULT_WINDOW, kept_requests: int = 64, kept_bytes: int = 1 << 20) -> RouteCore:
    return RouteCore(RouteLimits(WAIT_S, kept_requests, kept_bytes, window), is_linked)


def offered(actions: list[Action], number: int) -> None:
    (offer,) = actions
    assert isinstance(offer, Offer)
    assert offer.number == number


def forwarded(action: Action, number: int, frame: bytes) -> None:
    assert isinstance(action, ForwardRoute)
    assert action.request.number == number
    assert (action.request.object_id, action.request.start_position, action.request.custom_metadata) == WHERE
    assert b"".join(map(bytes, splice_request(action.request, records(2 * KIB)))) == frame


def test_a_slow_upload_is_waited_for_so_long_and_no_longer_and_its_end_means_nothing_then() -> None:
    core = make()
    offered(core.frame_came(large(1), 1.0), 0)
    deadline_s = core.deadline_s
    assert deadline_s == 1.0 + WAIT_S
    assert core.look_again(1.0 + WAIT_S / 2) == []
    assert core.look_again(1.0 + WAIT_S) == [Settled(0), ForwardInline(large(1))]
    assert core.stored(0, WHERE, 1.5) == []
    assert core.not_stored(0, 1.5) == []
    assert (core.kept_bytes, core.deadline_s) == (0, None)


def test_the_original_is_sent_when_it_is_asked_for_and_once() -> None:
    core = make()
    core.frame_came(large(1), 1.0)
    core.stored(0, WHERE, 1.1)
    assert core.inline_asked(0, 1.2) == [SendOriginal(0, large(1)), Settled(0)]
    assert core.kept_bytes == 0
    with pytest.raises(MalformedFrameError):
        core.inline_asked(0, 1.3)
    assert core.answered(0, 1.4) == []


def test_nothing_is_given_that_may_have_reached_the_broker_or_did_not_go_on() -> None:
    core = make()
    core.frame_came(large(1), 1.0)
    with pytest.raises(MalformedFrameError):
        core.inline_asked(0, 1.0)  # not forwarded
    core.stored(0, WHERE, 1.1)
    core.answered(0, 1.2)
    for number in (0, 1):
        with pytest.raises(MalformedFrameError):
            core.inline_asked(number, 1.3)


@pytest.mark.parametrize("window", [Window(2, 1 << 20), Window(64, 2 * len(small(0)))])
def test_so_much_follows_a_request_that_may_be_asked_for_and_no_more(window: Window) -> None:
    core = make(window)
    core.frame_came(large(1), 1.0)
    core.stored(0, WHERE, 1.0)
    went = [core.frame_came(small(number), 1.0) for number in (2, 3, 4, 5)]
    assert went == [[ForwardInline(small(2))], [ForwardInline(small(3))], [], []]
    assert core.deadline_s is None
    assert core.answered(0, 1.1)[1:] == [ForwardInline(small(4)), ForwardInline(small(5))]


def test_a_closed_window_gives_no_deadline_that_nothing_would_come_of() -> None:
    core = make(Window(1, 1 << 20))
    core.frame_came(large(1), 1.0)
    core.stored(0, WHERE, 1.0)
    core.frame_came(small(2), 1.0)
    core.frame_came(large(3), 1.0)
    assert core.deadline_s is None
    assert core.look_again(9.0) == []
    assert core.answered(0, 9.0)[1:] == [Settled(1), ForwardInline(large(3))]


def ends(actions: list[Action], *wanted: Action) -> bool:
    """Whether these come last; named tuples of two kinds with the same fields are equal."""
    last = actions[-len(wanted) :]
    return last == list(wanted) and [*map(type, last)] == [*map(type, wanted)]


def adopting() -> RouteCore:
    core = RouteCore(RouteLimits(WAIT_S), is_linked, adopts=True)
    core.frame_came(large(1), 1.0)
    core.stored(0, WHERE, 1.1)
    return core


@pytest.mark.parametrize(("adopted", "ended"), [(True, Left(0)), (False, Settled(0))])
def test_who_adopts_says_what_becomes_of_the_records_before_the_answer_or_after(adopted: bool, ended: Action) -> None:
    core = adopting()
    assert core.answered(0, 1.2) == []
    assert core.kept_bytes == 0
    assert ends(core.outcome(0, adopted), ended)
    core = adopting()
    assert core.outcome(0, adopted) == []
    assert ends(core.answered(0, 1.2), ended)
    assert core.closed() == []


@pytest.mark.parametrize("is_answered", [False, True])
def test_what_nobody_has_told_of_is_left_at_the_end(is_answered: bool) -> None:
    core = adopting()
    if is_answered:
        core.answered(0, 1.2)
    assert ends(core.closed(), Left(0))


def test_what_was_asked_for_inline_has_no_outcome() -> None:
    core = adopting()
    assert core.inline_asked(0, 1.2) == [SendOriginal(0, large(1)), Settled(0)]
    with pytest.raises(MalformedFrameError):
        core.outcome(0, adopted=True)
    assert core.answered(0, 1.3) == []
    assert core.closed() == []


def test_an_outcome_that_nobody_waits_for_is_malformed() -> None:
    core = make()
    core.frame_came(large(1), 1.0)
    core.stored(0, WHERE, 1.1)
    with pytest.raises(MalformedFrameError):
        core.outcome(0, adopted=True)
