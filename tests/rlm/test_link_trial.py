"""A load of which one interval does not pay is tried for several, if appends go on without followers."""

import math
from dataclasses import replace

import pytest

from metadata_topic.settings.topic_settings import LinkPolicy
from rlm.write_path.commit.group_commit import UploadNow
from rlm.write_path.commit.link_trial import LinkTrial, Verdict
from tests.rlm.driven_core import LIMITS, Driven
from tests.rlm.plain_log import BATCH_BYTES, partition

INTERVAL_S, PAYING_BYTES = 0.025, 25_000.0
RATE = 800_000.0
"""Of which two intervals pay, and one does not."""


def begun(trial: LinkTrial, from_s: float = 0.0, rate: float = RATE, paying_bytes: float = PAYING_BYTES) -> float:
    """When it began, asked each millisecond."""
    for step in range(20_000):
        now_s = from_s + step / 1000
        if trial.begin(rate, paying_bytes, now_s):
            return now_s
    return math.inf


def test_it_begins_once_a_rate_that_may_pay_has_come_for_a_while() -> None:
    assert 0.1 < begun(LinkTrial(INTERVAL_S)) < 0.5
    assert begun(LinkTrial(INTERVAL_S), rate=PAYING_BYTES / INTERVAL_S * 1.01) == math.inf, "one interval pays"
    assert begun(LinkTrial(INTERVAL_S), rate=PAYING_BYTES / 0.1) == math.inf, "it would hardly pay at all"


def test_a_rate_that_only_passes_by_is_not_tried() -> None:
    trial = LinkTrial(INTERVAL_S)
    for step in range(100):
        assert not trial.begin(RATE * (1 + step % 20), PAYING_BYTES, step / 100)


def test_what_goes_on_is_held_until_the_longest_interval_is_over() -> None:
    trial = LinkTrial(INTERVAL_S)
    now_s = begun(trial)
    verdicts = list[Verdict]()
    for _ in range(4):
        now_s += INTERVAL_S
        verdicts.append(trial.look(round(RATE * INTERVAL_S * (len(verdicts) + 1)), now_s))
        assert trial.is_held is (verdicts[-1] is Verdict.GOES_ON)
    assert verdicts == [Verdict.GOES_ON] * 3 + [Verdict.NOBODY_WAITS]
    assert not trial.is_on


@pytest.mark.parametrize("first_bytes", [1000, 30_000])
def test_producers_that_wait_are_let_go_after_two_intervals_and_left_alone_for_longer_and_longer(
    first_bytes: int,
) -> None:
    trial, now_s, pauses_s = LinkTrial(INTERVAL_S), 0.0, list[float]()
    for _ in range(9):
        begun_s = begun(trial, now_s)
        pauses_s.append(begun_s - now_s)
        verdict, now_s = trial.look(first_bytes, begun_s + INTERVAL_S), begun_s + 2 * INTERVAL_S
        if first_bytes > RATE * INTERVAL_S:
            assert verdict is Verdict.GOES_ON
            verdict = trial.look(first_bytes + 1000, now_s)
        assert verdict is Verdict.SOMEBODY_WAITS
        assert not trial.is_on
        assert not trial.is_held
    assert pauses_s[2] < pauses_s[4] < pauses_s[6] < pauses_s[7]
    assert 10 < pauses_s[-1] < 15


@pytest.fixture
def held() -> Driven:
    """A core that holds three batches, as more may come."""
    commit = replace(LIMITS.commit, upload_bytes=8 * BATCH_BYTES)
    driven = Driven(8 * BATCH_BYTES, commit=commit, queue_bytes=40 * BATCH_BYTES, read_bytes=40 * BATCH_BYTES)
    driven.assign(0, policy=LinkPolicy.COST, is_kept=False)
    trial = driven.decider.trial
    assert trial is not None
    driven.now_s = begun(trial, driven.now_s, 6 * BATCH_BYTES / INTERVAL_S, driven.decider.break_even_bytes)
    driven.append(0, 3)
    for _ in range(6):
        go_on(driven)
        driven.now_s += INTERVAL_S / 5
    assert (len(driven.uploads), len(driven.core.queue), trial.is_held) == (0, 1, True)
    return driven


def go_on(driven: Driven) -> None:
    """As the product's loop, until it would wait."""
    for _ in range(10):
        if not isinstance(driven.core.pacing.next_step(driven.now_s), UploadNow):
            return
        driven.read()
        driven.core.unwanted.let_go(driven.now_s)
        driven.begin_upload()
    raise AssertionError("it turns without end")


def test_what_is_held_is_uploaded_at_once_where_somebody_wants_it(held: Driven) -> None:
    held.core.pacing.hurry(partition(0), held.now_s, hurried=True)
    go_on(held)
    assert (len(held.uploads), len(held.core.queue)) == (1, 0)


def test_what_is_held_is_uploaded_once_it_is_as_much_as_an_object_takes(held: Driven) -> None:
    held.append(0, 6)
    held.now_s += INTERVAL_S
    go_on(held)
    assert len(held.uploads) == 1
