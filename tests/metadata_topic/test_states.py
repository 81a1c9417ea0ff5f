"""The life cycle's table."""

from itertools import permutations, product
from pathlib import Path

from metadata_topic.records.states import TRANSITIONS, Step, furthest, step
from metadata_topic.records.states_doc import BEGIN, END, section
from tests.metadata_topic.metadata_strategies import DELETED, DELETING, FINISHED, STARTED


def test_the_table_is_that_of_kip_405_and_has_the_way_of_an_object_that_was_found_missing() -> None:
    moves = {(before, after) for before, afters in TRANSITIONS.items() for after in afters if before != after}
    assert moves == {
        (STARTED, FINISHED), (STARTED, DELETING), (FINISHED, DELETING), (DELETING, DELETED), (FINISHED, DELETED)
    }  # fmt: skip


def test_every_state_may_be_published_again() -> None:
    assert all(step(state, state) is Step.REPEATED for state in TRANSITIONS)


def test_steps() -> None:
    assert step(None, DELETING) is Step.FIRST
    assert step(STARTED, FINISHED) is Step.NEXT
    assert step(FINISHED, DELETED) is Step.NEXT
    assert step(STARTED, DELETED) is Step.SKIPPED_AHEAD
    assert step(FINISHED, STARTED) is Step.REGRESSION
    assert step(DELETED, FINISHED) is Step.REGRESSION


def test_the_furthest_state_does_not_depend_on_the_order() -> None:
    for history in product(TRANSITIONS, repeat=3):
        outcomes = set()
        for order in permutations(history):
            state = None
            for arriving in order:
                state = furthest(state, arriving)
            outcomes.add(state)
        assert outcomes == {max(history)}


def test_the_diagram_in_the_docs_is_drawn_from_the_table() -> None:
    document = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    _, begin, rest = document.partition(BEGIN)
    drawn, end, _ = rest.partition(END)
    assert begin + drawn + end == section(), "put in its place what python -m metadata_topic.records.states_doc prints"
