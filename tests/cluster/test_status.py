"""`remote-wal status` and every agent's page show an agent that is killed or stands still, within ten seconds."""

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from local_cluster.polling import wait_until
from tests.cluster.agent_views import answer_of
from tests.cluster.script import PLAIN, Script

SHOWN_S = 10.0
RELOADED_S = 5.0
"""A browser's copy of the page is as old as this at most."""


def status(script: Script, *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "cli.main", "status", "--bootstrap-server", script.cluster.bootstrap_servers]
    told = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120, check=False)
    return told.returncode, told.stdout


def fleet(script: Script) -> tuple[int, dict[int, dict[str, Any]]]:
    code, told = status(script, "--json")
    return code, {row["broker"]: row for row in json.loads(told)["brokers"]}


def is_red(script: Script, at: int, broker_id: int) -> bool:
    row = next(
        one for one in answer_of(script.cluster, at, "/").decode().split("<tr>") if f"broker {broker_id}<" in one
    )
    return 'class="bad"' in row and "does not answer" in row


@pytest.mark.thorough
def test_an_agent_that_is_killed_or_stands_still_is_red_everywhere_within_ten_seconds(agent_script: Script) -> None:
    # all well -> 3 is killed -> red with 1 and 2, status exits with 3 -> back -> 3 stands still -> red again -> back
    script = agent_script
    script.create_topic(assignment=[[1, 2, 3], [2, 3, 1]])
    script.produce(PLAIN)
    script.expect_links_to_be_used()
    wait_until(lambda: status(script)[0] == 0, "all is well", 60)
    _, rows = fleet(script)
    assert [rows[one]["agent"] for one in (1, 2, 3)] == ["ready"] * 3
    assert rows[1]["linked_share"]["hour"] > 0
    assert rows[1]["store"]["state"] == "answers"
    assert (
        f'<a href="http://{script.cluster.layout.agent_http_address(3)}/">broker 3</a>'
        in answer_of(script.cluster, 1, "/").decode()
    )

    script.kill_agent(3)
    expect_red(script)
    script.start_agent(3)
    wait_until(lambda: status(script)[0] == 0, "all is well", 60)
    script.cluster.agent(3).pause()
    try:
        expect_red(script)
    finally:
        script.cluster.agent(3).resume()
    wait_until(lambda: status(script)[0] == 0, "all is well", 60)
    script.expect_promises()


def expect_red(script: Script) -> None:
    """Agent 3, on the pages of the others and in the command."""
    begun_s = time.monotonic()
    wait_until(lambda: is_red(script, 1, 3) and is_red(script, 2, 3), "agent 3 is red", 30)
    assert time.monotonic() - begun_s + RELOADED_S <= SHOWN_S
    code, rows = fleet(script)
    assert (code, rows[3]["agent"], rows[3]["linked_share"]) == (3, "silent", None)
    assert rows[3]["answer_s"] <= 3.1
    assert {rows[one]["agent"] for one in (1, 2)} == {"ready"}
    assert all(one["failure"] for one in rows[3]["heard_by_others"].values())
