"""The leader's agent is dead, or stands still, and stays so: its broker is replicated from past it, as in stock Kafka.

The brokers' listener for that speaks TLS, an authorizer is on, and the agents' principals may do ClusterAction alone.
"""

import pytest

from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.security.listeners import certificate_principal
from tests.cluster.agent_views import FAULTS, AgentCounters, answer_of, describe
from tests.cluster.conftest import IMPATIENT, ClusterFactory
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.replica_moves import wait_for_isr
from tests.cluster.script import PATIENCE_S, PLAIN, ZSTD, Script

SETTINGS = ClusterSettings(
    QuickAgents(
        bypass=True,
        overrides=quick(bypass_after_s=1, bypass_return_s=2),
    ),
    {
        **IMPATIENT,
        # Longer than it takes to find out that an agent stands still, on a busy machine too.
        "replica.lag.time.max.ms": "8000",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    },
)
DEAD, OTHERS = 1, (2, 3)


@pytest.mark.gate
def test_acks_all_goes_on_past_the_leaders_dead_agent_and_links_flow_when_it_is_back(
    make_cluster: ClusterFactory, topic: str
) -> None:
    # all three: 1 leads, min.insync 3 -> its agent is killed -> 2 and 3 fetch from 1 itself, the ISR stays 1,2,3
    # two: 2 leads, min.insync 2 -> 1 cannot fetch, as what poses as 2 there is gone -> ISR 2,3 -> it goes on
    # -> the agent is back -> ISR 1,2,3, links -> it stands still -> past it again -> it goes on
    cluster = make_cluster(SETTINGS)
    allow_cluster_action(cluster)
    with Script(cluster, f"{topic}-all-three") as all_three, Script(cluster, f"{topic}-two") as two:
        cluster.admin.create_topic(all_three.topic, assignment=[[1, 2, 3]], config={"min.insync.replicas": "3"})
        cluster.admin.create_topic(two.topic, assignment=[[2, 3, 1]], config={"min.insync.replicas": "2"})
        for script in (all_three, two):
            script.link_topic()
        # No transactions: 1 asks their coordinator about them, and cannot if that is another broker.
        all_three.produce(PLAIN, ZSTD)
        two.produce(PLAIN)
        with all_three.without_a_shrinking_isr():
            cluster.agent(DEAD).kill()
            expect_bypassed(cluster, [DEAD])
            all_three.expect_records_to_flow()
            wait_for_isr(cluster.admin, two.topic, [2, 3])
            two.expect_records_to_flow()
            ready = answer_of(cluster, OTHERS[0], "/readyz").decode().splitlines()
            assert (
                f"degraded: the agent of broker {DEAD} is bypassed, inline, until it has answered for some seconds"
                in ready[1:]
            )

            cluster.start_agent(DEAD)
            expect_bypassed(cluster, [])
            all_three.expect_links_to_be_used()
            cluster.admin.wait_for_full_isr(two.topic)

            counters = AgentCounters(cluster, OTHERS)
            cluster.agent(DEAD).pause()
            expect_bypassed(cluster, [DEAD])
            all_three.expect_records_to_flow()
            assert counters.growth("remote_wal_bypass_bytes_total", direction="received") > 0
            cluster.agent(DEAD).resume()
            expect_bypassed(cluster, [])
        for script in (all_three, two):
            script.expect_promises()
        assert counters.growth(FAULTS, reason="bypass_refused") == 0
        assert counters.growth(FAULTS, reason="bypass_unreachable") == 0


def allow_cluster_action(cluster: LocalCluster) -> None:
    arguments = ["--bootstrap-server", cluster.bootstrap_servers, "--add", "--cluster", "--operation", "ClusterAction"]
    for broker_id in cluster.broker_ids:
        arguments += ["--allow-principal", certificate_principal(broker_id)]
    cluster.tools.run("org.apache.kafka.tools.AclCommand", arguments)


def expect_bypassed(cluster: LocalCluster, agents: list[int]) -> None:
    wait_until(
        lambda: all(describe(cluster, broker_id)["bypassed_agents"] == agents for broker_id in OTHERS),
        f"agents {agents} are bypassed",
        PATIENCE_S,
    )
