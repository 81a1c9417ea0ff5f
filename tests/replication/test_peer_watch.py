"""Whether other agents are there is measured, and what was measured has an age."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from structlog.testing import capture_logs

from plugin.errors import in_words
from replication.follower.peer_watch import STALE_S, PeerWatch, Presence
from replication.leader.leader_context import LeaderContext
from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_connection import connect_framed
from replication.wire.peer_protocol import NO_BROKER_SERVED, Hello, PeerCapabilities
from tests.replication.two_agents import Agents, two_agents


@dataclass
class Watching:
    agents: Agents
    watch: PeerWatch
    now_s: float = 100.0
    tells: list[Callable[[], object]] = field(default_factory=list)

    async def until(self, *, there: bool) -> Presence:
        await self.agents.until(lambda: self.watch.get_presence(1).is_there is there)
        return self.watch.get_presence(1)


@asynccontextmanager
async def watching(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watching]:
    """The agent of broker 2 asks that of broker 1."""
    monkeypatch.setattr("replication.follower.peer_watch._INTERVAL_S", 0.005)
    monkeypatch.setattr("replication.follower.peer_watch._RESPONSE_S", 0.2)
    async with two_agents() as agents:
        context = replace(agents.follower_context, clock=lambda: rig.now_s)
        rig = Watching(agents, PeerWatch(context, agents.peers, lambda: [tell() for tell in rig.tells]))
        running = asyncio.create_task(rig.watch.run())
        try:
            yield rig
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_an_agent_that_answers_is_there_and_its_broker_is_not_bothered(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(monkeypatch) as rig:
        assert rig.watch.get_presence(1).may_be_there
        assert await rig.until(there=True) == Presence(0.0)
        rig.now_s += 3.0
        await rig.agents.until(lambda: rig.watch.get_presence(1).answered_s_ago == 0.0)
        assert rig.watch.silent == {}
        assert rig.agents.leader.connections == 1
        assert not rig.agents.leader.relays
        assert rig.agents.broker.requests == []


async def test_an_agent_that_is_stopped_is_told_as_silent_and_as_there_once_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with watching(monkeypatch) as rig:
        changes: list[bool] = []
        rig.tells.append(lambda: changes.append(rig.watch.get_presence(1).is_there))
        await rig.until(there=True)
        await rig.agents.leader.stop()
        found = await rig.until(there=False)
        assert found.failure is not None
        assert not found.may_be_there
        assert rig.watch.silent.keys() == {1}
        rig.now_s += 7.0
        assert rig.watch.get_presence(1).answered_s_ago == pytest.approx(7.0, abs=0.1)
        await rig.agents.leader.start(rig.agents.leader_address, None)
        await rig.until(there=True)
        assert changes == [True, False, True]


async def test_whom_an_agent_cannot_serve_is_known_as_soon_as_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(monkeypatch) as rig:
        leader, told, changes = vars(rig.agents.leader), list[int](), list[tuple[bool, bool]]()
        leader["_context"] = replace(leader["_context"], unserved=lambda: tuple(told))
        rig.tells.append(lambda: changes.append((rig.watch.serves(1, 5), rig.watch.serves(1, 6))))
        assert rig.watch.serves(1, 5), "it was not asked yet"
        await rig.until(there=True)
        for unserved in ([5], [*NO_BROKER_SERVED], []):
            told[:] = unserved
            seen = len(changes)
            await rig.agents.until(lambda seen=seen: len(changes) > seen)  # type: ignore[misc]
        assert changes == [(True, True), (False, True), (False, False), (True, True)]
        await rig.agents.leader.stop()
        await rig.until(there=False)
        assert not rig.watch.serves(1, 5)


async def test_an_agent_that_takes_connections_and_stands_still_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(monkeypatch) as rig:
        await rig.until(there=True)
        await rig.agents.leader.stop()
        where = rig.agents.leader_address
        with socket.create_server((where.host, where.port)):  # the kernel takes connections, and nobody answers
            await rig.agents.until(lambda: rig.watch.get_presence(1).failure == "no answer within 0.2 s")
            assert rig.watch.get_presence(1).answered_s_ago is not None


async def test_an_agent_that_stands_still_is_silent_at_the_first_question_without_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A second question would double the time until a frozen agent is shown as dead.
    stands_still = asyncio.Event()

    async def answer(context: LeaderContext, peer: FramedConnection, _asker: Hello) -> None:
        told = replace(context.hello, capabilities=PeerCapabilities.PRESENCE).encode()
        peer.write_frame(told)
        while await peer.read_frame() is not None:
            if stands_still.is_set():
                await asyncio.Event().wait()
            peer.write_frame(told)

    monkeypatch.setattr("replication.leader.leader_proxy._answer_presence", answer)
    async with watching(monkeypatch) as rig:
        await rig.until(there=True)
        dialled: list[object] = []
        connect = connect_framed

        async def dial(*where: object) -> None:
            dialled.append(rig.watch.get_presence(1).failure)
            await connect(*where)  # type: ignore[arg-type]

        monkeypatch.setattr("replication.follower.peer_watch.connect_framed", dial)
        stands_still.set()
        await rig.agents.until(lambda: bool(dialled))
        assert dialled[0] == "no answer within 0.2 s"


async def test_an_agent_that_does_not_know_the_question_is_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def greet_only(_context: LeaderContext, peer: FramedConnection, _asker: Hello) -> None:
        peer.write_frame(Hello("cluster", 1, 11).encode())

    monkeypatch.setattr("replication.leader.leader_proxy._answer_presence", greet_only)
    async with watching(monkeypatch) as rig:
        await rig.until(there=True)
        rig.now_s += 3.0
        await rig.agents.until(lambda: rig.watch.get_presence(1).answered_s_ago == 0.0)


async def test_what_nobody_measures_any_more_is_not_said_to_be_well() -> None:
    assert Presence(STALE_S).is_there
    assert not Presence(STALE_S + 0.1).is_there
    assert not Presence().is_there


async def test_another_clusters_agent_is_not_taken_for_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(monkeypatch) as rig:
        await rig.until(there=True)
        context = rig.agents.follower_context
        other = PeerWatch(replace(context, hello=replace(context.hello, cluster_id="other")), rig.agents.peers)
        running = asyncio.create_task(other.run())
        await rig.agents.until(lambda: other.get_presence(1).failure is not None)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_broker_that_takes_connections_and_stands_still_is_not_taken_for_a_silent_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("replication.leader.leader_proxy.connect_framed", partial(connect_framed, timeout_s=0.1))
    async with two_agents(dials_broker_by=ssl.create_default_context) as agents:
        await agents.broker.stop()
        where = agents.broker_address
        with socket.create_server((where.host, where.port)):  # the kernel takes connections, and nobody answers
            assert await (await agents.connect()).fetch({0: 0}) is None
            await agents.until(lambda: agents.leader_faults("broker_unreachable") == 1)
            assert agents.leader.broker_unreachable == "no answer in time"
            assert not agents.leader_faults("peer_silent")


async def test_an_agent_that_goes_while_the_broker_is_dialled_is_no_broker_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(*_: object) -> None:
        raise ConnectionResetError("the connection is closed")

    monkeypatch.setattr("replication.leader.leader_proxy.LeaderProxy._answer", answer)
    async with two_agents() as agents:
        with capture_logs() as told:
            assert await (await agents.connect()).fetch({0: 0}) is None
            await agents.until(lambda: agents.leader_faults("connection_lost") > 0)
        assert agents.leader.broker_unreachable is None
        assert not agents.leader_faults("broker_unreachable")
        assert "broker_unreachable" not in [one["event"] for one in told]


async def test_a_broker_that_ends_is_noticed_though_nobody_connects_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replication.leader.leader_proxy._LOOK_S", 0.005)
    async with two_agents() as agents:
        watching = asyncio.create_task(agents.leader.watch_broker())
        with capture_logs() as told:
            await agents.broker.stop()
            await agents.until(lambda: agents.leader.broker_unreachable is not None)
            agents.now_s += 30
            assert agents.leader.broker_unreachable_s == 30
        assert [one["event"] for one in told] == ["broker_unreachable"]
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_broker_that_is_back_is_found_though_nobody_asks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[object]()

    def worded(error: object) -> str:
        told.append(error)
        return in_words(error)

    monkeypatch.setattr("replication.leader.leader_proxy._LOOK_S", 0.005)
    monkeypatch.setattr("replication.leader.leader_proxy.in_words", worded)
    async with two_agents() as agents:
        watching = asyncio.create_task(agents.leader.watch_broker())
        await agents.broker.stop()
        assert await (await agents.connect()).fetch({0: 0}) is None
        await agents.until(lambda: len(told) > 3)  # the watch has found it away, too
        assert "Errno" not in str(agents.leader.broker_unreachable)
        where = agents.broker_address
        back = await asyncio.start_server(lambda _reader, writer: writer.close(), where.host, where.port)
        await agents.until(lambda: agents.leader.broker_unreachable is None)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        back.close()
