"""The kernel shows what clients have sent and the broker has not read."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from agent.client_connections import ClientConnections
from rlm.write_path.commit.producers import ClientConnection


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket, int]]:
    """A client's socket, the broker's, and the broker's port; brokers listen at both families by one IPv6 socket."""
    with ExitStack() as stack:
        is_dual = request.param is socket.AF_INET6
        listener = stack.enter_context(socket.create_server(("", 0), family=request.param, dualstack_ipv6=is_dual))
        port = listener.getsockname()[1]
        client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        broker = stack.enter_context(listener.accept()[0])
        yield client, broker, port


def only(port: int) -> ClientConnection:
    (one,) = (ClientConnections([port]).sample() or {}).values()
    return one


def test_a_connection_shows_what_came_and_what_of_it_was_not_read(
    pair: tuple[socket.socket, socket.socket, int],
) -> None:
    client, broker, port = pair
    assert (only(port).received_bytes, only(port).unread_bytes) == (0, 0)
    client.sendall(bytes(5000))
    broker.recv(1000, socket.MSG_WAITALL)
    broker.recv(4000, socket.MSG_WAITALL | socket.MSG_PEEK)  # all of it is here
    shown = only(port)
    assert (shown.received_bytes, shown.unread_bytes, shown.read_bytes) == (5000, 4000, 1000)
    assert shown.since_received_s <= shown.since_sent_s


def test_where_nobody_listens_nothing_can_be_seen(pair: tuple[socket.socket, socket.socket, int]) -> None:
    *_, port = pair
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert ClientConnections([bound.getsockname()[1]]).sample() is None
        assert ClientConnections([bound.getsockname()[1], port]).sample()
    assert ClientConnections([]).sample() is None
