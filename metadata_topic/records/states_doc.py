"""Draws the documentation of combined segments' states from `metadata_topic.records.states`.

`python -m metadata_topic.records.states_doc` prints it; docs/formats.md has this output between two marks.
"""

import sys

from metadata_topic.records.states import TRANSITIONS, step
from plugin.segment_metadata import RemoteLogSegmentState

BEGIN = "<!-- states: python -m metadata_topic.records.states_doc -->"
END = "<!-- end of states -->"


def diagram() -> str:
    """Return a Mermaid state diagram of what a writer may publish next. A state may also be published again."""
    first, *_ = RemoteLogSegmentState
    arrows = [f"    [*] --> {first.name}"]
    for before in RemoteLogSegmentState:
        after = sorted(TRANSITIONS[before] - {before})
        arrows += [f"    {before.name} --> {state.name}" for state in after]
        if not after:
            arrows.append(f"    {before.name} --> [*]")
    return "\n".join(["```mermaid", "stateDiagram-v2", *arrows, "```"])


def table() -> str:
    """Return a table of what each arriving record means to a reader, by the furthest state it knows."""
    head = " | ".join(state.name for state in RemoteLogSegmentState)
    rows = [f"| known \\ arriving | {head} |", "| --- |" + " --- |" * len(RemoteLogSegmentState)]
    for known in (None, *RemoteLogSegmentState):
        steps = " | ".join(step(known, arriving).value for arriving in RemoteLogSegmentState)
        rows.append(f"| {known.name if known is not None else 'nothing'} | {steps} |")
    return "\n".join(rows)


def section() -> str:
    """Return the section for docs/formats.md: diagram and table between the two marks."""
    return f"{BEGIN}\n\n{diagram()}\n\n{table()}\n\n{END}"


if __name__ == "__main__":
    sys.stdout.write(section() + "\n")
