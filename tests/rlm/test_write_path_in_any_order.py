"""Whatever happens to the write path's core, in whatever order: what counts as uploaded is stored."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from tests.rlm.driven_core import LIMITS, Driven
from tests.rlm.plain_log import partition

DO: dict[str, Callable[[Driven, int], object]] = {
    "append": lambda driven, number: driven.append(number % 3, 1 + number // 3 % 3),
    "begin reads": lambda driven, _number: None if driven.reading else driven.begin_reads(),
    "end reads": lambda driven, _number: driven.end_reads(),
    "begin an upload": lambda driven, _number: driven.begin_upload(),
    "an upload is stored": lambda driven, number: driven.end_upload(number) if driven.uploads else None,
    "an upload fails": lambda driven, number: driven.end_upload(number, succeeds=False) if driven.uploads else None,
    "cut": lambda driven, number: driven.logs[number % 3].cut(number // 3 % (len(driven.logs[number % 3].batches) + 1)),
    "look": lambda driven, number: driven.append(number % 3, 0),
    "assign": lambda driven, number: driven.assign(*(at for at in range(3) if number >> at & 1)),
    "hurry": lambda driven, number: driven.core.pacing.hurry(partition(number % 3), driven.now_s, hurried=number > 15),
    "time passes": lambda driven, number: setattr(driven, "now_s", driven.now_s + number / 10),
}
USUAL = ("append", "begin reads", "end reads", "begin an upload", "an upload is stored", "an upload fails")
STEPS = st.lists(
    st.tuples(st.one_of(st.sampled_from(USUAL), st.sampled_from(list(DO))), st.integers(0, 30)), max_size=60
)


def check(driven: Driven) -> None:
    for known, led in driven.core.led.items():
        log = driven.logs[known.partition]
        below = min([led.uploaded_offset, *(cut for cut in log.cuts)])
        left_out = [raw for raw in log.batches[: max(below, 0)] if raw not in driven.stored]
        assert not left_out, f"{led.uploaded_offset} of {known.partition} is told as uploaded, without {left_out}"
    carried = LIMITS.commit.max_in_flight * LIMITS.commit.upload_bytes
    assert driven.core.queue.size_bytes <= LIMITS.queue_bytes + LIMITS.read_bytes + carried
    assert len(driven.uploads) <= LIMITS.commit.max_in_flight


@given(STEPS)
def test_what_counts_as_uploaded_is_stored_and_all_is_stored_in_the_end(steps: list[tuple[str, int]]) -> None:
    driven = Driven()
    driven.assign(0, 1, 2)
    for what, number in steps:
        DO[what](driven, number)
        check(driven)
    driven.assign(0, 1, 2)
    driven.settle()
    driven.now_s += 10
    for number in range(3):
        driven.append(number)
    driven.settle()
    for number, log in enumerate(driven.logs):
        assert driven.uploaded(number) == len(log.batches)
        assert set(log.batches) <= driven.stored
        led = driven.core.led[partition(number)]
        assert (led.pending_bytes, led.backlog_bytes, led.is_settled) == (0, 0, True)
    assert (len(driven.core.queue), driven.core.queue.size_bytes) == (0, 0)
