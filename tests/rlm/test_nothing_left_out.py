"""Whatever fails, and whoever dies when: what counts as uploaded is in an object, or was told as a gap."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from tests.rlm.upload_world import UploadWorld

Step = tuple[str, int]
"""What is done, and a number for it."""


def restart_from_a_snapshot(world: UploadWorld, _number: int) -> None:
    world.load_snapshot()
    world.start_agent()


DO: dict[str, Callable[[UploadWorld, int], object]] = {
    "append": lambda world, number: world.append(1 + number % 4),
    "roll": lambda world, _number: world.roll(),
    "expire a segment": lambda world, _number: world.expire_segment(),
    "elect": lambda world, number: world.elect(number % 6),
    "read": lambda world, _number: world.read(),
    "begin an upload": lambda world, _number: world.begin_upload(),
    "an upload succeeds": lambda world, number: world.end_upload(number),
    "an upload fails": lambda world, number: world.end_upload(number, succeeds=False),
    "pass over": lambda world, number: world.pass_over(number),
    "read the backlog": lambda world, _number: world.read_backlog(),
    "store of the backlog": lambda world, _number: world.store_backlog(),
    "publish": lambda world, _number: world.publish(),
    "release": lambda world, _number: world.release_oldest(),
    "crash": lambda world, _number: world.start_agent(),
    "restart from a snapshot": restart_from_a_snapshot,
}
USUAL = (
    "pass over",
    "read the backlog",
    "append",
    "read",
    "begin an upload",
    "an upload succeeds",
    "an upload fails",
    "publish",
)
STEPS = st.lists(
    st.tuples(st.one_of(st.sampled_from(USUAL), st.sampled_from(list(DO))), st.integers(0, 30)), max_size=60
)
HOLE = [
    ("append", 3), ("read", 0), ("begin an upload", 0), ("append", 3), ("read", 0), ("begin an upload", 0),
    ("an upload succeeds", 1), ("an upload fails", 0), ("publish", 0), ("crash", 0),
]  # fmt: skip


@example(HOLE)
@example([*HOLE, ("read", 0), ("begin an upload", 0), ("an upload succeeds", 0), ("publish", 0), ("crash", 0)])
@example([*HOLE[:5], ("roll", 0), ("append", 3), ("read", 0), *HOLE[5:-1], ("expire a segment", 0), ("crash", 0)])
@given(STEPS)
def test_every_record_below_the_uploaded_offset_is_stored_or_told_as_a_gap(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = UploadWorld(Path(directory))
        for what, number in steps:
            DO[what](world, number)
            uploaded = world.led.stored_offset
            assert not world.left_out(below=uploaded), f"after {what}: {uploaded} is told as uploaded"
        world.settle()
        assert world.led.stored_offset == world.log.log_end_offset
        assert not world.left_out(below=world.log.log_end_offset)
        # The next agent finds nothing to do.
        world.start_agent()
        assert not world.read()
        assert not len(world.queue), "uploaded once more"
