"""The catalogue of failures answers every case, and the tests that it names are there."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CATALOGUE = (Path(__file__).with_name("faults.md")).read_text()
CASES = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in CATALOGUE.splitlines()
    if re.match(r"\| \d+ \|", line)
]


def _named() -> Iterator[tuple[str, str]]:
    """The file and the name of each test; `::name` is in the file of the one before."""
    for line in CATALOGUE.splitlines():
        file = ""
        for found, name in re.findall(r"`([\w/]*)::(\w+)`", line):
            file = found or file
            package, _, subject = file.rpartition("/")
            yield f"tests/{package}/test_{subject}.py", f"test_{name}"


NAMED = sorted(set(_named()))


@cache
def _tests_of(path: str) -> frozenset[str]:
    file = ROOT / path
    return (
        frozenset(re.findall(r"^(?:async )?def (test_\w+)\(", file.read_text(), re.MULTILINE))
        if file.exists()
        else frozenset()
    )


def test_all_cases_are_answered_in_order() -> None:
    assert [int(number) for number, *_ in CASES] == list(range(1, 76))


def test_every_answer_has_its_columns_and_a_state() -> None:
    assert [case for case in CASES if len(case) != 4 or case[2] not in {"covered", "partly", "not"}] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_state_has_what_it_claims(case: list[str]) -> None:
    _, _, state, shown = case
    assert ("::" in shown) == (state != "not"), "covered and partly name tests, not has none"
    assert ("Missing: " in shown) == (state == "partly"), "partly says what no test shows"


def test_the_tests_that_are_named_exist() -> None:
    assert len(NAMED) > 75
    assert [f"{path}::{name}" for path, name in NAMED if name not in _tests_of(path)] == []
