"""Whatever a peer, a client or a stranger can fill has a bound, and each address a share of it."""

import ast
import re
import struct
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from gateway.serve.fetch_frames import FetchRequest, WantedPartition
from gateway.serve.serving import FETCH_SESSION_ID_NOT_FOUND, MAX_PARTITIONS, FetchSessions
from kafka_log.topic_partition import TopicId, TopicIdPartition
from replication.wire.frame_inbox import MAX_QUEUED_FRAMES, STAGING_BYTES, FrameInbox
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_listener import ConnectionShares, TooManyConnectionsError, holder_at
from replication.wire.request_order import MAX_UNANSWERED
from tests.replication.test_relay_core import Rig

ROOT = Path(__file__).parents[2]
PACKAGES = ["agent", "gateway", "replication"]
FLOOD = 5_000
OF_ONE_HOST = (f"2001:db8:0:7::{number:x}" for number in count(1))
"""Addresses of a network that a host has for itself."""


def _session() -> float:
    """Partitions of a client's fetch session."""
    sessions = FetchSessions(lambda: 7)
    wanted = (WantedPartition(TopicIdPartition(TopicId(bytes(16)), n), -1, 0, -1, -1, 1) for n in count())

    def asked(session_id: int, epoch: int, partitions: int) -> FetchRequest:
        some = tuple(next(wanted) for _ in range(partitions))
        return FetchRequest(b"", 17, 1, "", 500, 1, 1 << 20, 0, session_id, epoch, some, (), b"")

    turn, most = sessions.asked(asked(0, 0, 1)), 0
    for epoch in range(1, FLOOD):
        assert turn is not None
        if turn.error:
            assert turn.error == FETCH_SESSION_ID_NOT_FOUND
            break
        most = max(most, len(turn.partitions))
        turn = sessions.asked(asked(sessions.answered(turn), epoch, 10))
    return most


def _frames_of_one_connection() -> float:
    """Frames that are queued once reading should pause."""
    inbox = FrameInbox(STAGING_BYTES, MemoryBudget(), lambda: None)
    while not inbox.is_full:
        inbox.assembler.buffer()[:5] = struct.pack(">iB", 1, 0)
        inbox.received(5)
    return len(inbox.frames)


def _half_frames_of_one_host() -> float:
    """The part of the memory for frames that one host takes with half frames."""
    budget, limit = MemoryBudget(100 << 20), 50 << 20
    inboxes = [FrameInbox(limit, budget.share_of(holder_at(next(OF_ONE_HOST))), lambda: None) for _ in range(200)]
    for inbox in inboxes:
        inbox.assembler.buffer()[:4] = struct.pack(">i", limit)
        inbox.received(4)
        while not inbox.is_full and inbox.assembler.is_partial:
            inbox.received(min(len(inbox.assembler.buffer()), 1 << 20))
    return budget.used / (100 << 20)


def _connections_of_one_host() -> float:
    """Connections that one host holds."""
    shares = ConnectionShares(1000, 100)
    for held in range(FLOOD):
        try:
            shares.enter(next(OF_ONE_HOST))
        except TooManyConnectionsError:
            return held
    return FLOOD


def _requests_sent_ahead() -> float:
    """Requests that a peer sends before it is answered."""
    core, frame = Rig().core, struct.pack(">hhih", 18, 0, 1, -1)
    for number in range(FLOOD):
        try:
            core.request(frame, 0.0)
        except MalformedFrameError:
            return number
    return FLOOD


BUFFERS: dict[Callable[[], float], float] = {
    _session: MAX_PARTITIONS,
    _frames_of_one_connection: MAX_QUEUED_FRAMES,
    _half_frames_of_one_host: 0.5,
    _connections_of_one_host: 100,
    _requests_sent_ahead: MAX_UNANSWERED,
}


@pytest.mark.parametrize("fill", BUFFERS, ids=lambda fill: fill.__name__)
def test_a_buffer_that_a_peer_fills_has_a_bound(fill: Callable[[], float]) -> None:
    assert 0 < fill() <= BUFFERS[fill]


def _calls(name: str) -> list[tuple[str, ast.Call, str]]:
    """Where the product makes one: file, call, and the file's text."""
    found = []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                found.append((str(path.relative_to(ROOT)), node, text))
    return found


def test_every_connection_counts_its_frames_in_a_budget_or_takes_small_ones_alone() -> None:
    calls = _calls("FramedConnection")
    assert len(calls) > 5
    for path, call, _ in calls:
        has_budget = any(keyword.arg == "budget" for keyword in call.keywords)
        is_small = [ast.unparse(one) for one in call.args] in (["MAX_MESSAGE_BYTES"], ["_MAX_FRAME_BYTES"])
        assert has_budget or is_small, f"{path}:{call.lineno}"


def test_a_share_is_of_an_address_or_of_a_network_that_one_host_may_have() -> None:
    assert [holder_at(one) for one in ("10.0.0.1", "10.0.0.2")] == ["10.0.0.1", "10.0.0.2"]
    assert holder_at("2001:db8:0:7:1::1") == holder_at("2001:db8:0:7::2") != holder_at("2001:db8:0:8::1")
    assert holder_at("fe80::1%eth0") == holder_at("fe80::2")


def test_every_share_of_frames_is_a_holders() -> None:
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for asked in re.findall(r"\.share_of\((.*)\)", path.read_text()):
            assert "holder" in asked, path


def test_every_listener_counts_connections_by_address() -> None:
    made = [path for path, _, _ in _calls("PeerListener")]
    assert made == ["replication/wire/peer_listener.py"]  # by CountedListeners, which has shares
