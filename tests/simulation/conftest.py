"""Tells which seeds the day's are, as no failure may depend on a day that is over."""

import pytest

from tests.simulation.many_runs import seeds_of, today
from tests.simulation.test_simulation import PARTS, SEEDS_OF_A_PART


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seeds = seeds_of(today(), 0, PARTS * SEEDS_OF_A_PART)
    terminalreporter.write_line(f"simulated besides the fixed seeds: {seeds.start} to {seeds.stop - 1}")
