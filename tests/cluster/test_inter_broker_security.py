"""Brokers speak TLS among each other, and log in, as they do without agents; who they are is judged as ever.

StandardAuthorizer is on, and of the anonymous nobody may act as a broker: clients come without a login, and are given
what clients need.
"""

import asyncio
import os
import shlex
import ssl
import struct
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from local_cluster.broker_config import AgentsMode, ClusterSettings, replica_host
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.security.authority import Authority
from local_cluster.security.listeners import InterBroker
from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_connection import Address, PeerTls, connect_framed, exchange_hellos
from replication.wire.peer_protocol import Hello, MessageKind
from tests.cluster.agent_views import FAULTS, AgentCounters
from tests.cluster.conftest import IMPATIENT, ClusterFactory
from tests.cluster.replica_moves import wait_for_isr
from tests.cluster.script import PATIENCE_S, PLAIN, TRANSACTIONS, ZSTD, Script
from tests.replication.fetch_frames import request as fetch_request

REFUSED = "remote_wal_refused_requests_total"
FOLLOWER, LEADER = 3, 1
AGENTS_ACLS = [
    shlex.split(command.partition("--allow-principal User:wal-agent")[2])
    for command in Path("docs/operations.md").read_text().replace("\\\n", " ").splitlines()
    if "kafka-acls.sh" in command and "--allow-principal User:wal-agent" in command
]
"""Of the commands that an operator is told."""


def settings_for(spoken: InterBroker, topic: str, overrides: dict[str, str]) -> ClusterSettings:
    """Agents may what docs/operations.md gives them, and who writes and reads records what they need for it."""
    prefixed = ("--topic", topic, "--resource-pattern-type", "prefixed", "--operation", "All")
    everything = ("--operation", "All", "--group", "*", "--transactional-id", "*")
    judged = replace(spoken, clients_may=(*map(tuple, AGENTS_ACLS), prefixed, everything))
    return ClusterSettings(AgentsMode(), {**IMPATIENT, **overrides}, inter_broker=judged)


def test_brokers_log_in_end_to_end_under_tls_and_again_on_connections_that_last(
    make_cluster: ClusterFactory, topic: str, tmp_path: Path
) -> None:
    # each broker leads one -> links flow -> for several times as long as a login lasts, over the same connections
    # -> transactions, whose brokers and coordinators log in at each other, too
    # -> a broker that leads is killed, then an agent: all log in anew, and links flow
    # agents take no link without SHA-256, and pose as brokers for their own broker's user alone
    # they speak mutual TLS between them -> with 2's certificate nothing is had that 2's broker does not ask
    authority, agents = two_authorities(tmp_path)
    spoken = InterBroker("SASL_SSL", authority)
    strict = {
        f"listener.name.replication.{spoken.mechanism.lower()}.connections.max.reauth.ms": "2000",
        "remote.wal.link.digest": "sha256",
        "remote.wal.agent.replica.user": str(os.getuid()),
    }
    settings = replace(
        settings_for(spoken, topic, strict), broker_overrides={one: agent_tls(agents, one) for one in (1, 2, 3)}
    )
    cluster = make_cluster(settings)
    with Script(cluster, topic) as script:
        script.create_topic(assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        script.produce(PLAIN, ZSTD)
        script.expect_links_to_be_used()
        before, counters = connections_made(script), AgentCounters(cluster)
        with script.without_a_shrinking_isr():
            script.expect_records_to_flow(8000)
            script.expect_links_to_be_used()
        # A busy machine loses one at times. If they did not outlast a login each would be made anew, again and again.
        assert connections_made(script) - before < before
        with Script(cluster, f"{topic}-transactions") as transactions:
            transactions.create_topic(assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
            transactions.produce(TRANSACTIONS)
            transactions.expect_records_to_flow()
            transactions.expect_promises()
        assert counters.growth(FAULTS) == 0
        assert "|LINK_DIGESTS" in script.agent_log(FOLLOWER)
        expect_to_survive_kills(script)
        expect_nothing_in_anothers_name(cluster, topic, agents)
        script.expect_promises()


@pytest.mark.thorough
@pytest.mark.parametrize(("protocol", "mechanism"), [("SASL_PLAINTEXT", "PLAIN"), ("SASL_SSL", "OAUTHBEARER")])
def test_brokers_log_in_by_other_mechanisms_too(
    make_cluster: ClusterFactory, topic: str, tmp_path: Path, protocol: str, mechanism: str
) -> None:
    # links flow -> a broker that leads is killed, then an agent: all log in anew, and links flow
    spoken = InterBroker(protocol, Authority(tmp_path), mechanism)
    cluster = make_cluster(settings_for(spoken, topic, {}))
    with Script(cluster, topic) as script:
        script.create_topic(assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        script.produce(PLAIN, ZSTD)
        script.expect_links_to_be_used()
        expect_to_survive_kills(script)
        script.expect_promises()


def expect_to_survive_kills(script: Script) -> None:
    """With producers at work, whose every record is held against the log in the end."""
    victim = script.cluster.admin.wait_for_leader(script.topic)
    script.cluster.broker(victim).kill()
    script.cluster.admin.wait_for_leader(script.topic, other_than=victim)
    script.expect_records_to_flow()
    script.cluster.start_broker(victim)
    script.cluster.admin.wait_for_full_isr(script.topic)
    script.kill_agent(FOLLOWER)
    script.expect_records_to_flow()
    script.start_agent(FOLLOWER)
    script.cluster.admin.wait_for_full_isr(script.topic)
    script.expect_links_to_be_used()


def two_authorities(directory: Path) -> tuple[Authority, Authority]:
    (directory / "of-agents").mkdir()
    return Authority(directory), Authority(directory / "of-agents")


def agent_tls(authority: Authority, broker_id: int) -> dict[str, str]:
    files = authority.tls_for(f"broker-{broker_id}")
    key = "remote.wal.agent.ssl"
    return {
        f"{key}.certificate.file": str(files.certificate_file),
        f"{key}.key.file": str(files.key_file),
        f"{key}.ca.file": str(files.ca_file),
    }


def expect_nothing_in_anothers_name(cluster: LocalCluster, topic: str, authority: Authority) -> None:
    counters = AgentCounters(cluster, [LEADER])
    files = authority.directory / "broker-2.pem", authority.directory / "broker-2.key"
    context = PeerTls(*files, authority.file).client_context()
    hello = Hello(cluster.layout.cluster_id, 2, 1)
    host, _, port = cluster.layout.peer_address(LEADER).rpartition(":")
    address = Address(host, int(port))
    delete = struct.pack(">hhih", 20, 6, 7, 1) + b"x\0\2\0" + bytes([len(topic) + 1]) + topic.encode()
    fetch = fetch_request({0: 0}, replica_id=FOLLOWER)
    seen = {api: counters.growth(REFUSED, listener="peer", api=api) for api in ("DeleteTopics", "Fetch")}
    for asked in (delete, fetch):
        assert asyncio.run(answer_to(asked, address, context, hello)) is None
    for api, before in seen.items():
        assert counters.growth(REFUSED, listener="peer", api=api) > before


async def answer_to(request: bytes, address: Address, tls: ssl.SSLContext, hello: Hello) -> bytes | None:
    """Of the leader's agent, to one that says that it is another broker's."""
    connection = FramedConnection()
    async with asyncio.timeout(PATIENCE_S):
        await connect_framed(address, connection, tls)
        try:
            await exchange_hellos(connection, hello, LEADER)
            channel = PeerChannel(connection)
            channel.send(MessageKind.KAFKA, request)
            message = await channel.receive()
            return None if message is None else bytes(message[1])
        finally:
            connection.abort()  # with this loop, which ends now and does not wait for a TLS goodbye


@pytest.mark.thorough
def test_an_agents_certificate_is_judged_by_its_broker_and_renewed_without_a_restart(
    make_cluster: ClusterFactory, topic: str, tmp_path: Path
) -> None:
    # links flow -> 3's agent shows another name, then an expired certificate, on connections that 3 makes anew as 1's
    # agent was away -> 3 and its agent say why, ISR 1,2 -> a good certificate -> ISR 1,2,3, links
    authority, agents = two_authorities(tmp_path)
    spoken, names = InterBroker("SSL", authority), list(map(replica_host, (1, 2, 3)))
    own = authority.tls_for("agent-3", also=names)
    key = "remote.wal.agent.broker.ssl"
    given = {f"{key}.certificate.file": str(own.certificate_file), f"{key}.key.file": str(own.key_file)}
    principals = {"super.users": ";".join([*map(spoken.principal, (1, 2, 3)), "User:CN=agent-3"])}
    overrides = {one: agent_tls(agents, one) | (given if one == FOLLOWER else {}) for one in (1, 2, 3)}
    settings = replace(settings_for(spoken, topic, principals), broker_overrides=overrides)
    cluster = make_cluster(settings)
    with Script(cluster, topic) as script:
        script.create_topic(assignment=[[LEADER, 2, FOLLOWER]])
        script.produce(PLAIN, ZSTD)
        script.expect_links_to_be_used()
        for shown, life, told in (
            (["elsewhere.internal"], timedelta(days=3650), "No subject alternative DNS name matching"),
            (names, timedelta(days=1), "NotAfter"),
        ):
            authority.tls_for("agent-3", life=life, also=shown)
            expect_refusals(script, told)
        wait_for_isr(cluster.admin, topic, [LEADER, 2])
        authority.tls_for("agent-3", also=names)
        cluster.admin.wait_for_full_isr(topic)
        script.expect_links_to_be_used()
        script.expect_promises()


def expect_refusals(script: Script, told: str) -> None:
    """The leader's agent starts anew, so that all dial it again: the follower's broker refuses its own agent."""
    counters, log = AgentCounters(script.cluster, [FOLLOWER]), script.cluster.layout.broker_log(FOLLOWER)
    script.kill_agent(LEADER)
    script.start_agent(LEADER)
    wait_until(lambda: counters.growth(FAULTS, reason="broker_tls") > 0, "the agent tells", PATIENCE_S)
    wait_until(lambda: told in log.read_text(), f"its broker says {told}", PATIENCE_S)
    assert '"broker_tls_failed"' in script.agent_log(FOLLOWER)


def connections_made(script: Script) -> int:
    return sum(script.agent_log(one).count('"peer_accepted"') for one in script.cluster.broker_ids)
