"""Agents with nothing to do."""

import sys
import threading

from tests.cluster.agent_views import CPU_SECONDS, AgentCounters
from tests.cluster.script import Script

MEASURED_S = 10.0
MOST_OF_A_CORE = 0.15
"""Only gross defects reach it: polling, a wake-up per partition."""


def test_idle_agents_of_many_partitions_are_idle(agent_script: Script) -> None:
    agent_script.create_topic(partitions=60)
    loads = {}
    counters = {
        broker_id: AgentCounters(agent_script.cluster, [broker_id]) for broker_id in agent_script.cluster.broker_ids
    }
    threading.Event().wait(MEASURED_S)  # a span to measure over, not a wait for anything
    for broker_id, counter in counters.items():
        loads[broker_id] = counter.growth(CPU_SECONDS) / MEASURED_S
    report = ", ".join(f"agent {broker_id} {load:.1%}" for broker_id, load in loads.items())
    sys.stdout.write(f"of a core: {report}\n")
    assert max(loads.values()) < MOST_OF_A_CORE, loads
