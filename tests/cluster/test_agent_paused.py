"""An agent, or a broker, stands still for a while: as a slow network is to Kafka, no more and no less."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from local_cluster.polling import WaitTimeoutError, wait_until
from tests.cluster.agent_views import FAULTS
from tests.cluster.replica_moves import wait_for_isr
from tests.cluster.script import PLAIN, TRANSACTIONS, ZSTD, Script

TRIES = 6
"""A pause may meet no response on its way."""


def test_a_paused_follower_leaves_the_isr_and_comes_back(script: Script) -> None:
    # 1 leads; 3 stands still longer than replica.lag.time.max.ms -> ISR 1,2 -> it goes on -> ISR 1,2,3
    script.create_topic(assignment=[[1, 2, 3]])
    # No transactions: their coordinator may be 3, and what 3 leads is not acknowledged while nobody can fetch from it.
    script.produce(PLAIN, ZSTD)
    script.expect_records_to_flow()
    script.cut_off_follower(3)
    wait_for_isr(script.cluster.admin, script.topic, [1, 2])
    script.expect_records_to_flow()
    script.reconnect_follower(3)
    wait_for_isr(script.cluster.admin, script.topic, [1, 2, 3])
    script.expect_promises()


@pytest.mark.gate
def test_after_a_pause_of_the_leaders_agent_nothing_stale_is_served(agent_script: Script) -> None:
    # 1 leads; its agent stands still: no follower is served -> ISR 1 -> it goes on, and followers have given up
    # their requests meanwhile -> ISR 1,2,3
    script = agent_script
    script.create_topic(assignment=[[1, 2, 3]])
    script.produce(PLAIN, TRANSACTIONS)
    script.expect_records_to_flow()
    script.cluster.agent(1).pause()
    wait_for_isr(script.cluster.admin, script.topic, [1])
    script.cluster.agent(1).resume()
    wait_for_isr(script.cluster.admin, script.topic, [1, 2, 3])
    script.expect_promises()


def test_a_response_that_comes_out_of_a_pause_too_late_is_dropped(agent_script: Script) -> None:
    # 1 leads; its agent takes a request for given up sooner than the followers do -> it stands still for longer than
    # that, with a response on its way -> it goes on: the response is dropped with its connection, followers ask again
    script = agent_script
    script.create_topic(assignment=[[1, 2, 3]])
    script.produce(PLAIN, TRANSACTIONS)
    script.expect_records_to_flow()
    with gives_up_after(script, 1, "1000"):
        script.expect_records_to_flow()
        before = script.counters.growth(FAULTS, reason="stale_response")
        with script.without_a_shrinking_isr():
            for _ in range(TRIES):
                pause(script)
                with suppress(WaitTimeoutError):  # the pause met no response on its way
                    wait_until(lambda: script.counters.growth(FAULTS, reason="stale_response") > 0, "stale", 5)
                    break
            script.expect_growth(FAULTS, reason="stale_response")
            script.expect_records_to_flow()
    assert before == 0
    script.expect_promises()


def pause(script: Script) -> None:
    """Of agent 1, for less than replica.socket.timeout.ms of the followers."""
    script.cluster.agent(1).pause()
    threading.Event().wait(1.5)  # the fault itself
    script.cluster.agent(1).resume()


@contextmanager
def gives_up_after(script: Script, broker_id: int, timeout_ms: str) -> Iterator[None]:
    """The agent reads another replica.socket.timeout.ms than its broker has, and its brokers' followers have."""
    file = script.cluster.layout.server_properties(broker_id)
    told = file.read_text()
    file.write_text(f"{told}\nreplica.socket.timeout.ms={timeout_ms}\n")
    try:
        script.stop_agent(broker_id)
        script.start_agent(broker_id)
        yield
    finally:
        file.write_text(told)
    script.stop_agent(broker_id)
    script.start_agent(broker_id)
