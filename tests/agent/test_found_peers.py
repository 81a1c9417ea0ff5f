"""Agents come, move and leave while another one runs."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import pytest

from agent.found_peers import FoundPeers, own_address
from agent.settings.process_settings import PeerSettings
from metadata_topic.settings.topic_settings import AgentRegistration
from replication.follower.leader_bypass import RouteLimits
from replication.wire.peer_connection import Address
from tests.kafka_log.batches import batches
from tests.replication.two_agents import Agents, two_agents

LOOPBACK = Address("127.0.0.1", 0)
LIMITS = RouteLimits(0.1, 0.1)


def registered(**addresses: str | None) -> dict[int, AgentRegistration]:
    """Agents by their brokers' ids, as `_1`."""
    found = {int(name[1:]): address for name, address in addresses.items()}
    return {one: AgentRegistration(one, 1, "", "1", 0, peer_address=address) for one, address in found.items()}


@dataclass(slots=True)
class Rig:
    agents: Agents
    found: FoundPeers
    appended: int = 0

    async def until_listening_for(self, *broker_ids: int) -> None:
        await self.agents.until(lambda: set(self.agents.follower.addresses) == set(broker_ids))

    async def expect_records_of_broker_1(self) -> None:
        raw = batches(1, self.appended)
        self.agents.append({0: raw})
        follower = await self.agents.connect(self.agents.follower.addresses[1])
        assert await follower.fetch({0: self.appended}) == follower.expected({0: raw})
        self.appended += 1


@asynccontextmanager
async def rig(listen_at: Address = LOOPBACK, listed: Address | None = None) -> AsyncIterator[Rig]:
    """Broker 1 and its agent run; the agent of broker 2 knows what is `listed`."""
    async with two_agents() as agents:
        await agents.follower.stop()
        await agents.start_follower(listed)
        found = FoundPeers(2, agents.peers, agents.follower, lambda _broker_id: listen_at, {})
        running = asyncio.create_task(found.run())
        try:
            yield Rig(agents, found)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_broker_joins_is_replicated_from_and_leaves() -> None:
    async with rig() as one:
        one.found.registered(registered(_1=str(one.agents.leader_address), _2="10.0.0.2:1", _3=None))
        await one.until_listening_for(1)
        await one.expect_records_of_broker_1()
        where = one.agents.follower.addresses[1]
        idle = await one.agents.connect(where)
        assert await idle.fetch({0: 0}) is not None
        one.found.registered(registered(_1=None))
        await one.until_listening_for()
        with suppress(ConnectionError):  # refused, or reset by the port that just closes, if it took it at all
            late = await one.agents.connect(where)
            assert await late.fetch({0: 0}) is None
        assert await idle.fetch({0: 0}) is None


async def test_other_agents_that_are_registered_are_known_and_those_that_left_are_not() -> None:
    async with rig() as one:
        agents = registered(_1=None, _2=None, _3=None)
        one.found.registered({**agents, 4: replace(agents[3], broker_id=4, is_gone=True)})
        assert one.found.agents == {1: agents[1], 3: agents[3]}


async def test_an_agent_that_moved_is_found_where_it_registered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as left:
        old = Address(*left.getsockname()[:2])
    async with rig(listed=old) as one:
        one.found.registered(registered(_1=str(one.agents.leader_address)))
        turned_away = await one.agents.connect(one.agents.follower.addresses[1])
        assert await turned_away.fetch({0: 0}) is None
        await one.expect_records_of_broker_1()


async def test_what_is_remembered_counts_until_kafka_is_read() -> None:
    past = Address("10.0.0.1", 19096)
    async with rig() as one:
        (agent,) = registered(_1=str(one.agents.leader_address)).values()
        remembered = {1: replace(agent, bypass_address=str(past)), **registered(_4="no address")}
        found = FoundPeers(2, one.agents.peers, one.agents.follower, lambda _one: LOOPBACK, remembered)
        assert dict(one.agents.peers) == {1: one.agents.leader_address}
        found.registered(registered(_1=None))
        assert not one.agents.peers


async def test_where_it_cannot_pose_as_a_broker_it_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.found_peers._RETRY_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = Address(*other.getsockname()[:2])
        async with rig(listen_at=taken) as one:
            one.found.registered(registered(_1=str(one.agents.leader_address)))
            await one.agents.until(lambda: 1 in one.agents.peers)
            assert not one.agents.follower.addresses
            other.close()
            await one.until_listening_for(1)


@pytest.mark.parametrize(
    ("listener", "listed", "told"),
    [
        ("10.0.0.1:19090", {}, "10.0.0.1:19090"),
        ("0.0.0.0:19090", {1: Address("kafka-1", 19090)}, "kafka-1:19090"),
        ("10.0.0.1:19090", {1: Address("kafka-1", 19090)}, "kafka-1:19090"),
        ("0.0.0.0:19090", {2: Address("kafka-2", 19090)}, None),
        ("[::]:19090", {}, None),
        ("127.0.0.1:19090", {}, None),
        ("kafka-1:19090", {}, "kafka-1:19090"),
    ],
)
def test_an_agent_registers_what_others_can_dial(listener: str, listed: dict[int, Address], told: str | None) -> None:
    settings = PeerSettings.model_validate(
        {"remote.wal.agent.peer.listener": listener, "remote.wal.agent.peers": listed}
    )
    assert own_address(1, settings) == told


async def test_ways_past_agents_and_clients_ports_follow_what_is_registered() -> None:
    past = Address("10.0.0.1", 19096)
    calls = asyncio.Semaphore(0)

    async def gateway() -> bool:
        calls.release()
        return True

    async with two_agents(bypass_limits=LIMITS, bypass_is_registered=True) as agents:
        bypasses = agents.follower.bypasses
        found = FoundPeers(2, agents.peers, agents.follower, lambda _broker_id: LOOPBACK, {})
        running = asyncio.create_task(found.run(gateway))
        await calls.acquire()
        (agent,) = registered(_1=str(agents.leader_address)).values()
        found.registered({1: replace(agent, bypass_address=str(past))})
        await agents.until(lambda: list(bypasses) == [1])
        await calls.acquire()
        found.registered({1: agent})
        await agents.until(lambda: not bypasses)
        found.registered({1: replace(agent, bypass_address=str(past))})
        await agents.until(lambda: list(bypasses) == [1])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        # What is remembered counts after a restart, before Kafka is read.
        bypasses.learned({})
        remembered = {1: replace(agent, bypass_address=str(past))}
        FoundPeers(2, agents.peers, agents.follower, lambda _broker_id: LOOPBACK, remembered)
        agents.follower.keep_bypasses()
        assert list(bypasses) == [1]
