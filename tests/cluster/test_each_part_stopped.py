"""Each part of a cluster is stopped in turn: the others show it, and no page, endpoint or command says "all well"."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from local_cluster.polling import wait_until
from tests.cluster.agent_views import answer_of, readiness
from tests.cluster.recovery_commands import ask_cluster
from tests.cluster.script import PLAIN, Script

STOPPED, OTHERS = 2, (1, 3)
STATUS, DESCRIBE, DOCTOR = "status", "describe", "doctor"


@dataclass(frozen=True)
class Part:
    """How a part is stopped and started again, who is to show it, and how."""

    stop: Callable[[Script], object]
    start: Callable[[Script], object]
    witnesses: tuple[int, ...]
    page: str
    readyz: str
    """The beginning of a line; empty: agents go on being ready."""
    commands: tuple[str, ...]
    """These exit with another code than 0."""
    within_s: float = 10.0


def kill_brokers(script: Script) -> None:
    for one in (2, 3):
        script.cluster.broker(one).kill()


def start_brokers(script: Script) -> None:
    for one in (2, 3):
        script.cluster.start_broker(one)


NO_AGENT = (
    OTHERS,
    f"the agent of broker {STOPPED} does not answer",
    f"degraded: the agent of broker {STOPPED} does not answer (last answered",
    (STATUS, DESCRIBE, DOCTOR),
    5.0,  # a browser's copy of the page is as old as this at most, and ten seconds are promised
)
NO_BROKER = "has not answered its agent for "
PARTS = {
    "an agent that is killed": Part(
        lambda script: script.cluster.agent(STOPPED).kill(), lambda script: script.start_agent(STOPPED), *NO_AGENT
    ),
    "an agent that stands still": Part(
        lambda script: script.cluster.agent(STOPPED).pause(),
        lambda script: script.cluster.agent(STOPPED).resume(),
        *NO_AGENT,
    ),
    "a broker": Part(
        lambda script: script.cluster.broker(STOPPED).kill(),
        lambda script: script.cluster.start_broker(STOPPED),
        (STOPPED,),
        NO_BROKER,
        f"degraded: broker {STOPPED} {NO_BROKER}",
        (STATUS, DESCRIBE, DOCTOR),
    ),
    "two brokers of three, and with them the controllers and the agents' topics": Part(
        kill_brokers,
        start_brokers,
        (2, 3),
        NO_BROKER,
        "degraded: broker ",
        (STATUS, DESCRIBE, DOCTOR),
    ),
    "the store": Part(
        lambda script: script.switch_all("puts-refused", ""),
        lambda script: script.clear_switches(),
        (1, 2, 3),
        "fails",
        "",
        (STATUS,),  # a broker may be restarted: all goes inline, as in stock Kafka
    ),
}


def fleet(script: Script, exit_code: int) -> dict[int, dict[str, Any]]:
    """The rows of `remote-wal status`, by broker."""
    told = json.loads(ask_cluster(script.cluster, STATUS, "--json", exit_code=exit_code))
    return {row["broker"]: row for row in told["brokers"]}


def expect_fleet_to_be_well(rows: dict[int, dict[str, Any]]) -> None:
    assert {rows[one]["agent"] for one in (1, 2, 3)} == {"ready"}
    assert rows[1]["linked_share"]["hour"] > 0
    assert rows[1]["store"]["state"] == "answers"


def expect_silence(rows: dict[int, dict[str, Any]]) -> None:
    """Of the agent that does not answer; the others are well."""
    silent = rows[STOPPED]
    assert (silent["agent"], silent["linked_share"]) == ("silent", None)
    assert silent["answer_s"] <= 3.1
    assert {rows[one]["agent"] for one in OTHERS} == {"ready"}
    assert all(one["failure"] for one in silent["heard_by_others"].values())


def is_red(page: str) -> bool:
    row = next(one for one in page.split("<tr>") if f"broker {STOPPED}<" in one)
    return 'class="bad"' in row and "does not answer" in row


@pytest.mark.thorough
@pytest.mark.parametrize("name", PARTS)
def test_what_was_stopped_is_shown_by_the_others_and_is_not_well(agent_script: Script, name: str) -> None:
    part, script, cluster = PARTS[name], agent_script, agent_script.cluster
    servers, config = cluster.bootstrap_servers, str(cluster.layout.server_properties(1))
    commands = {
        STATUS: (STATUS, "--bootstrap-server", servers),
        DESCRIBE: (DESCRIBE, "--bootstrap-server", servers),
        DOCTOR: (DOCTOR, "--before-restart", "--broker-config", config),
    }
    script.create_topic(assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    script.produce(PLAIN)
    script.expect_links_to_be_used()

    def run(command: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "cli.start", *commands[command]]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)

    def page(broker_id: int) -> str:
        return answer_of(cluster, broker_id, "/").decode()

    def all_well() -> bool:
        words = ("all well", "works, and saves nothing")
        titles = {one: [f"<title>broker {one}: {word}</title>" for word in words] for one in cluster.broker_ids}
        return all(any(title in page(one) for title in titles[one]) for one in cluster.broker_ids)

    def is_shown() -> bool:
        return all(
            any(
                f"<title>broker {one}: {word}</title>" in page(one)
                for word in ("not well", "does not answer its agent")
            )
            and part.page in page(one)
            and (
                not part.readyz or any(line.startswith(part.readyz) for line in readiness(cluster, one)[1].splitlines())
            )
            for one in part.witnesses
        )

    wait_until(all_well, "all pages say so", 180)
    wait_until(lambda: all(run(one).returncode == 0 for one in commands), "all commands say so", 180)
    expect_fleet_to_be_well(fleet(script, exit_code=0))
    link = f'<a href="http://{cluster.layout.agent_http_address(STOPPED)}/">broker {STOPPED}</a>'
    assert all(link in page(one) for one in OTHERS)
    part.stop(script)
    try:
        wait_until(is_shown, f"it is shown by {part.witnesses}", part.within_s)
        told = {one: run(one) for one in part.commands}
        assert all(one.returncode for one in told.values()), told
        if part.witnesses == OTHERS:
            assert all(is_red(page(one)) for one in OTHERS)
            expect_silence(fleet(script, exit_code=3))
    finally:
        part.start(script)
    cluster.admin.wait_for_full_isr(script.topic)
    wait_until(all_well, "all pages say so again", 60)
    script.expect_promises()
