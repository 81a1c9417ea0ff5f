"""What the agent's log holds of an error: where it was, and nothing of what was being handled."""

import subprocess
import sys

import pytest

MARKER = "bytes-of-a-record"
FAILING = f"""
import logging, structlog
from cli.agent_start import log_to_stderr
log_to_stderr(console=%s)
def handle(payload):
    raise KeyError("a defect")
for tell in (structlog.get_logger().exception, logging.getLogger("library").exception):
    try:
        handle(b"{MARKER}")
    except KeyError:
        tell("part_failed")
"""


@pytest.mark.parametrize("console", [False, True])
def test_a_traceback_names_places_and_shows_no_variables(console: bool) -> None:
    told = subprocess.run(
        [sys.executable, "-c", FAILING % console], capture_output=True, text=True, check=True, timeout=60
    ).stderr
    assert told.count("part_failed") == 2
    assert told.count("handle") >= 2
    assert MARKER not in told.replace(f'handle(b"{MARKER}")', "")
