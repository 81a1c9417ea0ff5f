"""Each part of a cluster is stopped in turn: within ten seconds the others show it, and nothing says "all well"."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from local_cluster.polling import wait_until
from tests.cluster.agent_views import answer_of, readiness
from tests.cluster.script import PLAIN, Script

WITHIN_S = 10
STOPPED, OTHERS = 2, (1, 3)

STOPS: dict[str, tuple[Callable[[Script], object], Callable[[Script], object], tuple[int, ...], str, str]] = {
    "an agent that is killed": (
        lambda script: script.cluster.agent(STOPPED).kill(),
        lambda script: script.start_agent(STOPPED),
        OTHERS,
        "its agent does not answer",
        f"degraded: the agent of broker {STOPPED} does not answer (last answered",
    ),
    "an agent that stands still": (
        lambda script: script.cluster.agent(STOPPED).pause(),
        lambda script: script.cluster.agent(STOPPED).resume(),
        OTHERS,
        "its agent does not answer",
        f"degraded: the agent of broker {STOPPED} does not answer (last answered",
    ),
    "a broker": (
        lambda script: script.cluster.broker(STOPPED).kill(),
        lambda script: script.cluster.start_broker(STOPPED),
        (STOPPED,),
        "the local broker does not take connections",
        "degraded: the local broker does not take connections",
    ),
}
"""How a part is stopped and started again, who is to show it, what the page says then, and a line of /readyz."""


@pytest.mark.thorough
@pytest.mark.parametrize("part", STOPS)
def test_what_was_stopped_is_shown_by_the_others_and_is_not_well(agent_script: Script, part: str) -> None:
    stop, start, witnesses, shown, told = STOPS[part]
    script, cluster = agent_script, agent_script.cluster
    script.create_topic(assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    script.produce(PLAIN)
    script.expect_records_to_flow()

    def page(broker_id: int) -> str:
        return answer_of(cluster, broker_id, "/").decode()

    def all_well() -> bool:
        return all(f"<title>broker {one}: all well</title>" in page(one) for one in cluster.broker_ids)

    def is_shown() -> bool:
        return all(
            f"<title>broker {one}: not well</title>" in page(one)
            and shown in page(one)
            and any(line.startswith(told) for line in readiness(cluster, one)[1].splitlines())
            for one in witnesses
        )

    wait_until(all_well, "all pages say so", 60)
    stop(script)
    try:
        wait_until(is_shown, f"it is shown by {witnesses}", WITHIN_S)
        if "agent" in part:
            command = ("-m", "cli.start", "describe", "--bootstrap-server", cluster.bootstrap_servers)
            asked = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120, check=False)
            assert asked.returncode == 3, asked.stdout + asked.stderr
    finally:
        start(script)
    cluster.admin.wait_for_full_isr(script.topic)
    wait_until(all_well, "all pages say so again", 60)
    script.expect_promises()
