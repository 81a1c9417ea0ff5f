"""An agent is killed with SIGKILL at each step of a record's way. Kafka's own retries must be all that is needed."""

import pytest

from tests.cluster.script import PLAIN, TRANSACTIONS, ZSTD, Script, expect_whole_objects

BEFORE_AND_DURING_THE_UPLOAD = ["die-before-put", "die-mid-put", "die-after-put"]
BEFORE_THE_FOLLOWER_HAS_ITS_REPLY = ["die-before-get", "die-after-get"]


@pytest.mark.parametrize("steps", [BEFORE_AND_DURING_THE_UPLOAD, BEFORE_THE_FOLLOWER_HAS_ITS_REPLY], ids=["put", "get"])
def test_an_agent_killed_at_a_step_of_the_way_loses_nothing(script: Script, steps: list[str]) -> None:
    # every agent leads one partition and follows two: each step comes by at each agent
    script.create_topic(partitions=3)
    script.produce(PLAIN, ZSTD, TRANSACTIONS)
    script.expect_records_to_flow()
    for number, step in enumerate(steps):
        victim = script.cluster.broker_ids[number % 3]
        script.switch(victim, step)
        script.expect_agent_to_die(victim)
        script.start_agent(victim)
        script.expect_records_to_flow()
    script.expect_promises()
    if script.with_agents:
        assert expect_whole_objects(script.cluster) > 0
