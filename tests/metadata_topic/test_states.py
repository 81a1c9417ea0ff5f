"""The life cycle's table."""

from itertools import permutations, product
from pathlib import Path

from metadata_topic.records.states import TRANSITIONS, Step, furthest, step
from plugin.segment_metadata import RemoteLogSegmentState
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


def diagram() -> str:
    """A Mermaid state diagram of what a writer may publish next. A state may also be published again."""
    first, *_ = RemoteLogSegmentState
    arrows = [f"    [*] --> {first.name}"]
    for before in RemoteLogSegmentState:
        after = sorted(TRANSITIONS[before] - {before})
        arrows += [f"    {before.name} --> {state.name}" for state in after]
        if not after:
            arrows.append(f"    {before.name} --> [*]")
    return "\n".join(["```mermaid", "stateDiagram-v2", *arrows, "```"])


def table() -> str:
    """What each arriving record means to a reader, by the furthest state it knows."""
    head = " | ".join(state.name for state in RemoteLogSegmentState)
    rows = [f"| known \\ arriving | {head} |", "| --- |" + " --- |" * len(RemoteLogSegmentState)]
    for known in (None, *RemoteLogSegmentState):
        steps = " | ".join(step(known, arriving).value for arriving in RemoteLogSegmentState)
        rows.append(f"| {known.name if known is not None else 'nothing'} | {steps} |")
    return "\n".join(rows)


def test_the_diagram_in_the_docs_is_drawn_from_the_table() -> None:
    document = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    drawn, end, _ = document.partition("<!-- states -->")[2].partition("<!-- end of states -->")
    assert (drawn, bool(end)) == (f"\n\n{diagram()}\n\n{table()}\n\n", True), "put it in its place"
