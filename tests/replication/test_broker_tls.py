"""Both agents speak TLS with their own brokers: who is not whom it says is refused, and who refuses says so."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from structlog.testing import capture_logs

from local_cluster.security.authority import Authority
from replication.wire.peer_connection import PeerTls
from tests.kafka_log.batches import batches
from tests.replication.fetch_frames import encode
from tests.replication.test_peer_tls import A_DAY, on_both_event_loops
from tests.replication.two_agents import Agents, framed, two_agents

HOST = "replica-1.internal"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def checking(files: PeerTls) -> ssl.SSLContext:
    """Of a client that wants the name of whom it dials, as brokers and agents do."""
    context = files.client_context()
    context.check_hostname = True
    return context


@asynccontextmanager
async def tls_on_both_legs(broker: PeerTls, agent: PeerTls, name: str = HOST) -> AsyncIterator[Agents]:
    """The leader's broker has the one's files; the agents have the other's, which are read for each connection."""
    async with two_agents(
        broker_listens_by=broker.server_context(),
        dials_broker_by=lambda: checking(agent),
        broker_name=name,
        poses_by=agent.server_context,
    ) as agents:
        yield agents


async def expect_links_to_flow(agents: Agents, dialling: PeerTls) -> None:
    raw = batches(2, 0)
    agents.append({0: raw})
    linked = agents.linked_responses
    follower = await agents.connect(tls=checking(dialling))
    assert await follower.fetch({0: 0}) == follower.expected({0: raw})
    assert agents.linked_responses == linked + 1
    follower.writer.close()


def files(authority: Authority) -> PeerTls:
    return authority.tls_for("broker-1", ["127.0.0.1"], also=[HOST])


@on_both_event_loops
async def test_links_flow_between_brokers_that_speak_tls(authority: Authority) -> None:
    own = files(authority)
    async with tls_on_both_legs(own, own) as agents:
        await expect_links_to_flow(agents, own)


@on_both_event_loops
async def test_a_login_and_a_later_one_go_to_the_leaders_broker_between_fetches(authority: Authority) -> None:
    own = files(authority)
    login = [
        encode(SaslHandshakeRequest(mechanism="PLAIN", version=1), 1),
        encode(SaslAuthenticateRequest(auth_bytes=b"\0broker\0secret", version=2), 2),
    ]
    async with tls_on_both_legs(own, own) as agents:
        raw = batches(1, 0, 3)
        agents.append({0: raw})
        follower = await agents.connect(tls=checking(own))
        for _ in range(2):
            for number, frame in enumerate(login, 1):
                follower.writer.write(framed(frame))
                answer = await follower.receive()
                assert answer is not None
                assert answer.startswith(bytes((0, 0, 0, number)))
            assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert [frame for frame in agents.broker.requests if frame in login] == login * 2
        assert agents.linked_responses == 2


@on_both_event_loops
async def test_the_local_broker_with_an_expired_certificate_is_refused_until_it_is_renewed(
    authority: Authority,
) -> None:
    own, old = files(authority), authority.tls_for("broker-2", life=A_DAY)
    async with tls_on_both_legs(own, own) as agents:
        with capture_logs() as told:
            follower = await agents.connect(tls=checking(old))
            follower.send({0: 0})
            assert await follower.receive() is None
            await agents.until(lambda: agents.follower_faults("broker_tls") == 1)
        (line,) = (one for one in told if one["event"] == "broker_tls_failed")
        assert line["posing_as"] == 1
        assert "certificate has expired" in line["error"]
        await expect_links_to_flow(agents, authority.tls_for("broker-2"))


@on_both_event_loops
async def test_who_speaks_no_tls_where_an_agent_poses_as_a_broker_is_closed(authority: Authority) -> None:
    own = files(authority)
    async with tls_on_both_legs(own, own) as agents:
        follower = await agents.connect()
        follower.send({0: 0})
        assert await follower.receive() is None
        await agents.until(lambda: agents.follower_faults("broker_tls") == 1)
        assert not agents.broker.requests


@on_both_event_loops
async def test_an_agent_that_the_local_broker_does_not_take_for_the_other_one_is_told_so(authority: Authority) -> None:
    own = authority.tls_for("broker-1", also=[HOST])
    async with tls_on_both_legs(own, own) as agents:
        with pytest.raises(ssl.SSLCertVerificationError, match=r"127\.0\.0\.1"):
            await agents.connect(tls=checking(own))
        await agents.until(lambda: agents.follower_faults("broker_tls") == 1)


def trusting(other: PeerTls, own: PeerTls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(other.ca_file))
    context.load_cert_chain(own.certificate_file, own.key_file)
    return context


@pytest.mark.parametrize("case", ["name", "expired"])
@on_both_event_loops
async def test_a_leaders_broker_that_is_not_whom_its_agent_dials_gets_nothing(authority: Authority, case: str) -> None:
    own = files(authority)
    broker = authority.tls_for("other", life=A_DAY, also=[HOST]) if case == "expired" else authority.tls_for("other")
    async with tls_on_both_legs(broker, own) as agents:
        with capture_logs() as told:
            for _ in range(2):
                follower = await agents.connect(tls=checking(own))
                follower.send({0: 0})
                assert await follower.receive() is None
            await agents.until(lambda: agents.leader_faults("broker_unreachable") == 2)
        (line,) = (one for one in told if one["event"] == "broker_unreachable")
        assert ("certificate has expired" if case == "expired" else f"not valid for '{HOST}'") in line["error"]
        assert not agents.broker.requests


@on_both_event_loops
async def test_an_agent_that_its_own_broker_refuses_says_so(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other").tls_for("broker-1", ["127.0.0.1"], also=[HOST])
    own = files(authority)
    # The agent's certificate is of an authority that the broker does not know.
    shown = PeerTls(other.certificate_file, other.key_file, own.ca_file)
    async with tls_on_both_legs(own, shown) as agents:
        with capture_logs() as told:
            follower = await agents.connect(tls=trusting(other, own))
            follower.send({0: 0})
            assert await follower.receive() is None
            await agents.until(lambda: agents.leader_faults("broker_tls") == 1)
        assert [one["event"] for one in told if one["event"] == "broker_tls_failed"] == ["broker_tls_failed"]
        assert not agents.broker.requests
