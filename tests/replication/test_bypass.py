"""The way around a dead agent: the follower's broker gets the leader's bytes from the leader's broker itself."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kafka.protocol.sasl import SaslHandshakeResponse

from replication.follower.leader_bypass import Bypass, BypassWay, LeaderRoute, RouteLimits
from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_connection import Address
from replication.wire.peer_protocol import Hello
from replication.wire.sasl_login import SaslLogin
from tests.kafka_log.batches import batches
from tests.metric_values import metric_value
from tests.replication.fetch_frames import encode
from tests.replication.two_agents import PATIENCE_S, Agents, framed, two_agents

QUICK = RouteLimits(after_s=0.1, return_after_s=0.1, probe_s=0.02, probe_max_s=0.05)
STEADY = RouteLimits(after_s=1.0, return_after_s=0.1, probe_s=0.02, probe_max_s=0.05)
"""An agent that lives answers in time, also on a busy machine."""
PATIENT = RouteLimits(after_s=2 * PATIENCE_S, return_after_s=0.1, probe_s=0.02, probe_max_s=0.05)
OTHER_REQUEST = b"\x00\x17\x00\x04\x00\x00\x00\x09\x00\x00"
"""For metadata."""


def switches(agents: Agents, to: str) -> float:
    return metric_value(agents.follower_metrics.bypass.switches.labels(to))


def bypassed_peers(agents: Agents) -> float:
    return metric_value(agents.follower_metrics.bypass.peers)


@asynccontextmanager
async def standing_still(greetings: int) -> AsyncIterator[Address]:
    """An agent that answers so many hellos, and nothing else; then it only takes connections, as its kernel does."""
    left = greetings
    connections: list[FramedConnection] = []
    tasks: list[asyncio.Task[None]] = []

    async def greet(connection: FramedConnection) -> None:
        nonlocal left
        if await connection.read_frame() is not None and left > 0:
            left -= 1
            connection.write_frame(Hello("cluster", 1, 11).encode())

    def connected(connection: FramedConnection) -> None:
        connections.append(connection)
        tasks.append(asyncio.create_task(greet(connection)))

    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: FramedConnection(on_connected=connected), "127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in connections:
            connection.abort()


async def test_where_the_leaders_agent_is_dead_its_broker_is_asked_and_its_bytes_pass_as_they_are() -> None:
    async with two_agents(bypass_limits=QUICK) as agents:
        raw = batches(2, 0, payload=b"a" * 100_000)
        agents.append({0: raw})
        await agents.leader.stop()
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert await follower.fetch({0: 0}, replica_id=-1) == follower.expected({0: raw})
        assert (agents.linked_responses, agents.storage.fetches) == (0, [])
        assert agents.follower.bypasses.bypassed == [1]
        assert (switches(agents, "broker"), bypassed_peers(agents)) == (1, 1)
        received = agents.follower_metrics.bypass.bytes.labels("received")
        assert metric_value(received) == 2 * (4 + len(follower.expected({0: raw})))
        assert agents.follower_faults("peer_unreachable") == 1


async def test_an_agent_that_lives_and_does_not_reach_its_broker_is_bypassed_unless_the_broker_is_down() -> None:
    def expired() -> ssl.SSLContext:
        raise ssl.SSLError("certificate has expired")

    async with two_agents(bypass_limits=QUICK, dials_broker_by=expired) as agents:
        raw = batches(2, 0)
        agents.append({0: raw})
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert agents.follower.bypasses.bypassed == [1]
        assert agents.leader_faults("broker_unreachable") >= 1
    async with two_agents(bypass_limits=PATIENT) as agents:
        await agents.broker.stop()
        for _ in range(5):
            assert await (await agents.connect()).fetch({0: 0}) is None
        assert agents.leader_faults("broker_unreachable") == 5
        assert agents.follower.bypasses.bypassed == []


async def test_a_way_that_is_registered_later_is_taken_until_it_goes() -> None:
    async with two_agents(bypass_limits=QUICK, bypass_is_registered=True) as agents:
        raw = batches(2, 0)
        agents.append({0: raw})
        await agents.leader.stop()
        bypasses = agents.follower.bypasses
        assert not bypasses
        bypasses.learned({1: agents.broker_address, 7: agents.broker_address})
        agents.follower.keep_bypasses()
        assert list(bypasses) == [1], "this agent does not pose as broker 7"
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert (bypasses.bypassed, bypassed_peers(agents)) == ([1], 1)
        bypasses.learned({})
        agents.follower.keep_bypasses()
        assert (bypasses.bypassed, bypassed_peers(agents)) == ([], 0)
        assert await follower.fetch({0: 0}) is None, "it is to begin anew"


async def test_a_way_ends_with_the_leader_that_this_agent_poses_as() -> None:
    async with two_agents(bypass_limits=QUICK) as agents:
        await agents.leader.stop()
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) is not None
        assert agents.follower.bypasses.bypassed == [1]
        await agents.follower.leave(1)
        agents.follower.keep_bypasses()
        assert (len(agents.follower.bypasses), bypassed_peers(agents)) == (0, 0)


def test_what_is_listed_goes_before_what_is_registered_whose_certificate_must_name_the_broker() -> None:
    listed, registered = Address("10.0.0.1", 1), Address("10.0.0.2", 2)
    bypass = Bypass({1: listed}, QUICK, lambda: None, lambda: 0.0, takes_registered=True)
    bypass.registered.update({1: registered, 2: registered})
    assert bypass.way_to(1) == BypassWay(listed)
    assert bypass.way_to(2) == BypassWay(registered, "broker-2")
    assert bypass.way_to(3) is None


async def test_other_requests_of_a_broker_pass_as_well() -> None:
    async with two_agents(bypass_limits=QUICK) as agents:
        await agents.leader.stop()
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: b""})
        follower.writer.write(framed(OTHER_REQUEST))
        assert await follower.receive() == b"\x00\x00\x00\x09some other answer"
        assert agents.broker.requests[-1] == OTHER_REQUEST


async def test_while_an_agent_restarts_a_new_connection_waits_for_it_and_is_not_closed() -> None:
    async with two_agents(bypass_limits=PATIENT) as agents:
        raw = batches(1, 0)
        agents.append({0: raw})
        await agents.leader.stop()
        follower = await agents.connect()
        follower.send({0: 0})
        await agents.until(lambda: agents.follower_faults("peer_unreachable") == 1)
        await agents.leader.start(agents.leader_address, None)
        assert await follower.receive() == follower.expected({0: raw})
        assert (agents.follower.bypasses.bypassed, switches(agents, "broker")) == ([], 0)


async def test_an_agent_that_answers_again_gets_its_links_back_on_new_connections() -> None:
    async with two_agents(bypass_limits=STEADY) as agents:
        raw = batches(1, 0)
        agents.append({0: raw})
        await agents.leader.stop()
        follower = await agents.connect()
        follower.send({0: 0})
        await agents.until(lambda: agents.follower_faults("peer_unreachable") == 1)
        agents.bypass_ahead_s += STEADY.after_s
        assert await follower.receive() == follower.expected({0: raw})
        await agents.leader.start(agents.leader_address, None)
        assert await follower.receive() is None, "its fetcher is to begin anew"
        again = await agents.connect()
        assert await again.fetch({0: 0}) == again.expected({0: raw})
        assert agents.linked_responses == 1
        assert (agents.follower.bypasses.bypassed, switches(agents, "agent"), bypassed_peers(agents)) == ([], 1, 0)


async def test_an_agent_that_takes_connections_and_says_no_hello_is_dead() -> None:
    async with two_agents(bypass_limits=QUICK) as agents, standing_still(greetings=0) as hung:
        raw = batches(1, 0)
        agents.append({0: raw})
        await agents.follower.stop()
        await agents.start_follower(hung)
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert agents.follower.bypasses.bypassed == [1]


async def test_an_agent_that_stands_still_under_a_connection_is_found_out_and_the_connection_closed() -> None:
    async with two_agents(bypass_limits=STEADY) as agents, standing_still(greetings=1) as hung:
        raw = batches(1, 0)
        agents.append({0: raw})
        await agents.follower.stop()
        await agents.start_follower(hung)
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) is None
        again = await agents.connect()
        assert await again.fetch({0: 0}) == again.expected({0: raw})
        assert agents.follower.bypasses.bypassed == [1]


async def test_a_connection_that_nobody_uses_is_no_reason_to_bypass_an_agent_that_answers() -> None:
    dialled: list[None] = []
    async with two_agents(bypass_limits=STEADY, follower_tls=lambda: dialled.append(None)) as agents:
        raw = batches(1, 0)
        agents.append({0: raw})
        follower = await agents.connect()
        await follower.fetch({0: 0})
        dialled.clear()
        agents.bypass_ahead_s += STEADY.after_s
        await agents.until(lambda: len(dialled) == 1)  # the agent is asked
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert agents.follower.bypasses.bypassed == []


async def test_a_broker_that_closes_the_connection_without_an_answer_is_told_of() -> None:
    async with two_agents(bypass_limits=QUICK) as agents:
        await agents.leader.stop()
        agents.broker.half_answers = True
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) is None
        assert agents.follower_faults("bypass_refused") == 1


async def test_a_broker_that_refuses_the_agents_login_is_told_of_and_gets_no_frame() -> None:
    async with two_agents(bypass_limits=QUICK, bypass_login=SaslLogin("PLAIN", "agent", "secret").log_in) as agents:
        await agents.leader.stop()
        agents.broker.answer = lambda _frame: encode(
            SaslHandshakeResponse(error_code=33, mechanisms=["GSSAPI"], version=1), 0
        )
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) is None
        assert agents.follower_faults("bypass_refused") == 1
        assert len(agents.broker.requests) == 1


async def test_where_neither_agent_nor_broker_is_reached_the_connection_ends_and_later_ones_find_the_agent() -> None:
    async with two_agents(bypass_limits=QUICK) as agents:
        await agents.leader.stop()
        await agents.broker.stop()
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) is None
        assert agents.follower_faults("bypass_unreachable") == 1
        await agents.leader.start(agents.leader_address, None)
        await agents.until(lambda: agents.follower.bypasses.bypassed == [])


async def test_a_defect_in_watching_an_agent_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_agents(bypass_limits=QUICK) as agents:
        await agents.leader.stop()
        follower = await agents.connect()
        with contextlib.closing(follower.writer):
            follower.send({0: 0})
            await agents.until(lambda: agents.follower.bypasses.bypassed == [1])
        whole = LeaderRoute.probe_answered

        def broken(*_: object) -> bool:
            monkeypatch.setattr(LeaderRoute, "probe_answered", whole)
            raise ZeroDivisionError("planted")

        monkeypatch.setattr(LeaderRoute, "probe_answered", broken)
        await agents.leader.start(agents.leader_address, None)
        await agents.until(lambda: agents.follower.bypasses.bypassed == [])
        assert agents.follower_faults("bypass_defect") == 1
