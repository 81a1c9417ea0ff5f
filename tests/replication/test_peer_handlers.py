"""Connections that take their time, or are too many: before their hello, and of one peer."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from local_cluster.security.authority import Authority
from replication.wire.framed_connection import FramedConnection, until_idle
from replication.wire.peer_connection import Address, connect_framed, exchange_hellos
from replication.wire.peer_listener import ConnectionShares, PeerListener, TooManyConnectionsError
from replication.wire.peer_protocol import Hello, PeerCapabilities
from tests.descriptors import none_left
from tests.kafka_log.batches import batches
from tests.replication.test_peer_tls import on_both_event_loops
from tests.replication.two_agents import LOOPBACK, Agents, framed, two_agents


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def agents_under_tls(authority: Authority, **limits: object) -> AsyncIterator[Agents]:
    leader, follower = authority.tls_for("broker-1"), authority.tls_for("broker-2")
    async with two_agents(leader_tls=leader.server_context, follower_tls=follower.client_context, **limits) as agents:
        yield agents


async def expect_links_to_flow(agents: Agents) -> None:
    raw = batches(2, 0)
    agents.broker.logs.clear()
    agents.append({0: raw})
    linked = agents.linked_responses
    follower = await agents.connect()
    answer = await follower.fetch({0: 0})
    while answer is None:  # a busy machine may have been later than a test's limits allow
        follower = await agents.connect()
        answer = await follower.fetch({0: 0})
    assert answer == follower.expected({0: raw})
    assert agents.linked_responses > linked
    follower.writer.close()


async def dial(agents: Agents, count: int, address: Address | None = None) -> list[socket.socket]:
    """Connections that say nothing, to the peer listener if not elsewhere."""
    where = address or agents.leader_address
    loop = asyncio.get_running_loop()
    dialled = []
    for _ in range(count):
        one = socket.socket()
        one.setblocking(False)
        await loop.sock_connect(one, (where.host, where.port))
        dialled.append(one)
    return dialled


async def expect_to_be_closed(dialled: list[socket.socket]) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        for one in dialled:
            with suppress(ConnectionResetError):
                assert await loop.sock_recv(one, 1) == b""
            one.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@on_both_event_loops
async def test_tls_handshakes_that_do_not_begin_count_against_the_limit(authority: Authority) -> None:
    async with agents_under_tls(authority, max_connections=5) as agents:
        silent = await dial(agents, 20)
        await agents.until(lambda: agents.leader_faults("too_many_connections") == 15)
        for one in silent:
            one.close()


@on_both_event_loops
async def test_handshakes_that_do_not_begin_or_go_on_end_in_time_and_leave_nothing_open(authority: Authority) -> None:
    async with agents_under_tls(authority, hello_timeout_s=0.3) as agents:
        await expect_links_to_flow(agents)
        await agents.until(lambda: not agents.leader.connections)
        before, silent = descriptors(), agents.leader_faults("peer_silent")
        dialled = await dial(agents, 20)
        for one in dialled[10:]:  # the beginning of a ClientHello
            one.send(b"\x16\x03\x01\x02\x00\x01\x00")
        await expect_to_be_closed(dialled)
        await agents.until(lambda: agents.leader_faults("peer_silent") == silent + 20)
        await agents.until(lambda: descriptors() <= before)
        await agents.until(lambda: not agents.leader.connections)


@on_both_event_loops
async def test_what_is_no_tls_is_refused_at_once_and_leaves_nothing_open(authority: Authority) -> None:
    async with agents_under_tls(authority) as agents:
        await expect_links_to_flow(agents)
        await agents.until(lambda: not agents.leader.connections)
        before = descriptors()
        dialled = await dial(agents, 5)
        for one in dialled:
            one.send(b"GET / HTTP/1.1\r\n\r\n")
        await expect_to_be_closed(dialled)
        await agents.until(lambda: agents.leader_faults("peer_refused") == 5)
        await agents.until(lambda: descriptors() <= before)


async def hold(agents: Agents, authority: Authority, broker_id: int) -> FramedConnection:
    """A connection of this broker's agent that does nothing after its hello."""
    connection = FramedConnection()
    context = authority.tls_for(f"broker-{broker_id}").client_context()
    await connect_framed(agents.leader_address, connection, context)
    try:
        await exchange_hellos(connection, Hello("cluster", broker_id, 22), expected_broker_id=1)
    except ConnectionError:
        connection.close()
        raise
    return connection


@on_both_event_loops
async def test_a_peer_that_holds_all_its_connections_takes_none_from_another(authority: Authority) -> None:
    async with agents_under_tls(authority, max_connections=4, max_connections_of_one=3) as agents:
        held = [await hold(agents, authority, 3) for _ in range(3)]
        with pytest.raises(ConnectionError):
            await hold(agents, authority, 3)
        assert agents.leader_faults("too_many_connections") == 1
        others = [await hold(agents, authority, 2) for _ in range(3)]
        assert agents.leader_faults("too_many_connections") == 1
        held.pop().close()
        await agents.until(lambda: agents.leader.connections == 5)
        (await hold(agents, authority, 3)).close()
        for one in held + others:
            one.close()


async def test_connections_of_one_address_leave_room_for_other_addresses() -> None:
    shares = ConnectionShares(max_unnamed=5, max_of_one=3)
    first = [shares.enter("10.0.0.1") for _ in range(3)]
    with pytest.raises(TooManyConnectionsError):
        shares.enter("10.0.0.1")
    second = [shares.enter("10.0.0.2") for _ in range(2)]
    with pytest.raises(TooManyConnectionsError):  # all together
        shares.enter("10.0.0.3")
    shares.name(second[0], 2)
    shares.leave(first[0])
    shares.enter("10.0.0.1")
    shares.enter("10.0.0.3")


async def test_a_share_is_free_again_in_whichever_state_its_connection_ended() -> None:
    shares = ConnectionShares(max_unnamed=2, max_of_one=1)
    for _ in range(3):
        unnamed = shares.enter("10.0.0.1")
        shares.leave(unnamed)
        named = shares.enter("10.0.0.1")
        shares.name(named, 2)
        other = shares.enter("10.0.0.1")
        with pytest.raises(TooManyConnectionsError):
            shares.name(other, 2)
        shares.leave(other)
        shares.leave(named)


@on_both_event_loops
async def test_without_file_descriptors_a_connection_waits_until_there_are_some_again() -> None:
    accepted: list[socket.socket] = []
    failed = asyncio.Event()
    listener = PeerListener(lambda connection, _address: accepted.append(connection), failed.set, pause_s=0.02)
    await listener.start(LOOPBACK)
    with socket.socket() as waiting:
        waiting.setblocking(False)
        with none_left():
            await asyncio.get_running_loop().sock_connect(waiting, listener.sockets[0].getsockname())
            await asyncio.wait_for(failed.wait(), 60)
            assert not accepted
        async with asyncio.timeout(60):
            while not accepted:  # noqa: ASYNC110 - the kernel tells
                await asyncio.sleep(0.01)
    accepted[0].close()
    await listener.close()


async def dial_as_broker(agents: Agents, count: int) -> list[socket.socket]:
    """Where the follower's agent poses as the leader."""
    return await dial(agents, count, agents.follower_address)


@on_both_event_loops
async def test_who_asks_nothing_where_an_agent_poses_as_a_broker_is_let_go_and_bothers_no_other_agent() -> None:
    async with two_agents(first_frame_timeout_s=0.3) as agents:
        await expect_links_to_flow(agents)
        await agents.until(lambda: not agents.leader.connections)
        before, silent = descriptors(), agents.follower_faults("peer_silent")
        dialled = await dial_as_broker(agents, 20)
        for one in dialled[10:]:  # half of a request
            one.send(b"\0\0\1\0\0\1")
        assert agents.leader.connections == 0
        await expect_to_be_closed(dialled)
        await agents.until(lambda: agents.follower_faults("peer_silent") == silent + 20)
        await agents.until(lambda: not agents.follower.connections)
        await agents.until(lambda: descriptors() <= before)
        assert agents.leader.connections == 0
        await expect_links_to_flow(agents)


@on_both_event_loops
async def test_where_an_agent_poses_as_a_broker_connections_are_counted_from_their_accept_on() -> None:
    async with two_agents(max_connections_to_one=3) as agents:
        held = await dial_as_broker(agents, 5)
        await agents.until(lambda: agents.follower_faults("too_many_connections") == 2)
        assert agents.follower.connections == 3
        for one in held:
            one.close()
        await agents.until(lambda: not agents.follower.connections)
        await expect_links_to_flow(agents)


@on_both_event_loops
async def test_a_connection_on_which_nobody_says_anything_any_more_ends(authority: Authority) -> None:
    """Whose agent said hello, and fetched: so it is held by no other limit than the broker's own."""
    async with agents_under_tls(authority, idle_timeout_s=0.2) as agents:
        await expect_links_to_flow(agents)
        follower = await agents.connect()
        await follower.fetch({0: 0})
        assert await follower.reader.read() == b""
        assert agents.leader_faults("peer_idle") >= 1
        await agents.until(lambda: not agents.leader.connections and not agents.follower.connections)
        await expect_links_to_flow(agents)


@on_both_event_loops
async def test_a_connection_that_asked_whether_an_agent_is_alive_and_asks_no_more_ends() -> None:
    """Its host may be gone without a word, and a new one counts beside it."""
    async with two_agents(idle_timeout_s=0.2, max_connections_of_one=2) as agents:
        asked = framed(replace(agents.follower_hello, capabilities=PeerCapabilities.PRESENCE).encode())
        gone = [await agents.connect(agents.leader_address) for _ in range(2)]
        for one in gone:
            one.writer.write(asked)
            answer = await one.receive()
            assert answer is not None
            assert Hello.decode(answer).broker_id == 1
        for one in gone:
            assert await one.reader.read() == b""
        assert agents.leader_faults("peer_idle") == 2
        await agents.until(lambda: not agents.leader.connections)
        await expect_links_to_flow(agents)


class Heard(FramedConnection):
    """Has received something at each of the first looks, and nothing after these."""

    def __init__(self, busy_looks: int) -> None:
        self.looks, self._busy_looks = 0, busy_looks

    @property
    def bytes_received(self) -> int:
        self.looks += 1
        return min(self.looks, self._busy_looks)


async def test_a_connection_is_idle_when_neither_side_was_heard_in_a_whole_interval() -> None:
    often, never = Heard(5), Heard(0)
    await until_idle((often, never), 0.0)
    assert often.looks == never.looks == 6
