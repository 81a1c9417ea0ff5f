"""An agent, or a broker, stands still for a while: as a slow network is to Kafka, no more and no less."""

from tests.cluster.script import PLAIN, TRANSACTIONS, ZSTD, Script


def test_a_paused_follower_leaves_the_isr_and_comes_back(script: Script) -> None:
    # 1 leads; 3 stands still longer than replica.lag.time.max.ms -> ISR 1,2 -> it goes on -> ISR 1,2,3
    script.create_topic(assignment=[[1, 2, 3]])
    # No transactions: their coordinator may be 3, and what 3 leads is not acknowledged while nobody can fetch from it.
    script.produce(PLAIN, ZSTD)
    script.expect_records_to_flow()
    script.cut_off_follower(3)
    script.cluster.admin.wait_for_isr(script.topic, [1, 2])
    script.expect_records_to_flow()
    script.reconnect_follower(3)
    script.cluster.admin.wait_for_isr(script.topic, [1, 2, 3])
    script.expect_promises()


def test_after_a_pause_of_the_leaders_agent_nothing_stale_is_served(agent_script: Script) -> None:
    # 1 leads; its agent stands still: no follower is served -> ISR 1 -> it goes on, and followers have given up
    # their requests meanwhile -> ISR 1,2,3
    script = agent_script
    script.create_topic(assignment=[[1, 2, 3]])
    script.produce(PLAIN, TRANSACTIONS)
    script.expect_records_to_flow()
    script.cluster.pause_agent(1)
    script.cluster.admin.wait_for_isr(script.topic, [1])
    script.cluster.resume_agent(1)
    script.cluster.admin.wait_for_isr(script.topic, [1, 2, 3])
    script.expect_promises()
