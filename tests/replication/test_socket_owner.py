"""Where the agent poses as a broker, only the local broker's user connects, if that is asked for."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from replication.wire.peer_listener import NotTheBrokerError, check_owner
from tests.kafka_log.batches import batches
from tests.replication.test_peer_tls import on_both_event_loops
from tests.replication.two_agents import two_agents

OWN, OTHER = os.getuid(), os.getuid() + 1
FAMILIES = {
    "IPv4": (socket.AF_INET, "127.0.0.1", socket.AF_INET, "127.0.0.1"),
    "IPv6": (socket.AF_INET6, "::1", socket.AF_INET6, "::1"),
    "IPv4 by a socket of IPv6, as Java's": (socket.AF_INET, "127.0.0.1", socket.AF_INET6, "::ffff:127.0.0.1"),
}


@contextmanager
def connected(listens: int, at: str, dials: int, to: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """(accepted, its other end)."""
    with socket.socket(listens) as listening, socket.socket(dials) as dialling:
        listening.bind((at, 0))
        listening.listen()
        dialling.connect((to, listening.getsockname()[1]))
        accepted, _ = listening.accept()
        with accepted:
            yield accepted, dialling


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_kernel_tells_whose_the_other_end_is(family: tuple[int, str, int, str]) -> None:
    with connected(*family) as (accepted, _):
        check_owner(accepted, OWN)
        with pytest.raises(NotTheBrokerError, match=f"a process of user {OWN} connected, and only user {OTHER} may"):
            check_owner(accepted, OTHER)


@pytest.mark.skipif(OWN != 0, reason="takes root to be somebody else")
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_it_is_who_made_the_socket_that_counts_and_not_who_asks(family: tuple[int, str, int, str]) -> None:
    os.seteuid(OTHER)
    try:
        with connected(*family) as (accepted, _):
            os.seteuid(OWN)
            check_owner(accepted, OTHER)
            with pytest.raises(NotTheBrokerError):
                check_owner(accepted, OWN)
    finally:
        os.seteuid(OWN)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_who_closes_at_once_is_nobody_and_not_root(family: tuple[int, str, int, str]) -> None:
    """A request that was sent before is not to pass."""
    with connected(*family) as (accepted, dialling):
        dialling.send(b"request")
        dialling.close()
        for uid in (0, OWN):
            with pytest.raises(NotTheBrokerError, match="does not say"):
                check_owner(accepted, uid)


@on_both_event_loops
async def test_where_an_agent_poses_as_a_broker_none_but_the_brokers_user_connects() -> None:
    async with two_agents(broker_uid=OTHER, max_connections_to_one=1) as agents:
        raw = batches(2, 0)
        agents.append({0: raw})
        where = agents.follower_address.host, agents.follower_address.port
        with socket.create_connection(where), socket.create_connection(where):
            await agents.until(lambda: agents.follower_faults("not_the_broker") == 2)
        follower = await agents.connect()
        assert await follower.reader.read() == b""
        assert not agents.follower_faults("too_many_connections"), "the broker's share is not theirs"
        assert agents.follower.connections == 0
        assert not agents.broker.requests


@on_both_event_loops
async def test_the_brokers_own_user_is_served() -> None:
    async with two_agents(broker_uid=OWN) as agents:
        raw = batches(2, 0)
        agents.append({0: raw})
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
