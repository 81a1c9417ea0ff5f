"""Producers that wait for rounds are told from others by when appends come."""

import pytest

from metadata_topic.settings.topic_settings import LinkPolicy
from rlm.write_path.commit.link_policy import CostLimits, LinkDecider, LinkMode
from rlm.write_path.commit.lock_step import LockStep
from tests.rlm.driven_core import Driven
from tests.rlm.plain_log import BATCH_BYTES, partition

UPLOAD_S = 0.010


class Rounds:
    """Appends, uploads, and reads that take as long."""

    def __init__(self) -> None:
        self.lock_step = LockStep()
        self.now_s = 100.0

    def round(self, *, after_s: float = 0.007, apart_s: float = 0.0, meanwhile: bool = False) -> bool | None:
        """Two appends, the first so long after the object before, so far apart, and more during the upload."""
        self.now_s += after_s
        self.lock_step.appended(self.now_s)
        self.now_s += apart_s
        self.lock_step.appended(self.now_s)
        self.now_s += 0.02
        self.lock_step.started()
        if meanwhile:
            self.lock_step.appended(self.now_s + UPLOAD_S / 2)
        self.now_s += UPLOAD_S
        return self.lock_step.stored(UPLOAD_S, alone=True, now_s=self.now_s)


def test_appends_that_each_wait_for_the_round_before_are_noticed_within_a_few_rounds() -> None:
    rounds = Rounds()
    assert [rounds.round() for _ in range(5)] == [None, None, None, None, True]


def test_where_it_was_so_before_one_round_more_than_the_first_tells() -> None:
    rounds = Rounds()
    while not rounds.round():
        pass
    rounds.round()  # what was under way
    rounds.now_s += 5.0
    assert [rounds.round() for _ in range(2)] == [None, True]


@pytest.mark.parametrize(
    "other", [{"after_s": 0.05}, {"apart_s": 0.01}, {"meanwhile": True}], ids=["pauses", "out of step", "goes on"]
)
def test_appends_that_come_at_other_times_hold_nobody_up(other: dict[str, float]) -> None:
    rounds = Rounds()
    for _ in range(4):
        assert rounds.round() is None
    told = [rounds.round(**other) for _ in range(16)]  # type: ignore[arg-type]
    assert told == [None] * 15 + [False]
    again = [rounds.round() for _ in range(5)]
    assert again.index(True) >= 3, "it takes as many as at first"


def test_what_was_appended_beside_and_not_told_of_in_time_counts() -> None:
    rounds = Rounds()
    for _ in range(12):
        rounds.now_s += 0.03
        rounds.lock_step.appended(rounds.now_s - 0.025)
        rounds.lock_step.started()
        assert rounds.lock_step.stored(UPLOAD_S, alone=False, now_s=rounds.now_s) is None


def mode(decider: LinkDecider, now_s: float, policy: LinkPolicy = LinkPolicy.COST) -> LinkMode:
    return decider.mode(policy, 1000, 50_000, now_s)


@pytest.mark.parametrize("policy", [LinkPolicy.COST, LinkPolicy.LATENCY])
def test_who_is_held_up_is_let_go_for_longer_and_longer_and_anew_once_nobody_is(policy: LinkPolicy) -> None:
    decider = LinkDecider(CostLimits(34_000, 0.025))
    now_s, pauses_s = 100.0, []
    for _ in range(5):
        assert mode(decider, now_s, policy) is LinkMode.LINK
        decider.holds_up(now_s)
        assert mode(decider, now_s, LinkPolicy.ALWAYS) is LinkMode.LINK
        begun_s = now_s
        while mode(decider, now_s, policy) is LinkMode.INLINE:
            now_s += 0.1
        pauses_s.append(now_s - begun_s)
    assert pauses_s == pytest.approx([6.4, 12.8, 25.6, 51.2, 51.2], abs=0.15)
    decider.pauses.holds_nobody_up()
    decider.holds_up(now_s)
    assert mode(decider, now_s + 6.3, policy) is LinkMode.INLINE
    assert mode(decider, now_s + 6.5, policy) is LinkMode.LINK


def test_the_first_that_pays_after_some_that_did_not_makes_no_pause_short() -> None:
    """What the first interval of a stretch brought came inline in part, where nothing is held up."""
    decider = LinkDecider(CostLimits(34_000, 0.025))
    now_s, pauses_s = 100.0, []
    for paid in (0, 1, 1, 2):
        for _ in range(paid):
            decider.pauses.paid()
        decider.did_not_pay(now_s)
        begun_s = now_s
        while mode(decider, now_s) is LinkMode.INLINE:
            now_s += 0.01
        pauses_s.append(now_s - begun_s)
    assert pauses_s == pytest.approx([0.2, 0.4, 0.8, 0.2], abs=0.02)


@pytest.mark.parametrize(("break_even", "is_held_up"), [(BATCH_BYTES, True), (BATCH_BYTES // 4, False)])
def test_a_round_that_is_waited_for_goes_inline_unless_it_is_worth_the_wait(break_even: int, is_held_up: bool) -> None:
    driven = Driven(break_even)
    driven.assign(0, policy=LinkPolicy.COST)
    for _ in range(6):
        driven.append(0)
        driven.now_s += 0.012
        driven.core.pacing.links_wanted([partition(0)], driven.now_s)  # is no append, however late it comes
        driven.now_s += 0.008
        driven.read()
        driven.begin_upload()
        driven.now_s += UPLOAD_S
        (upload,) = driven.uploads
        driven.end_upload()
        driven.core.pacing.stored(upload, 0, driven.now_s)
        driven.now_s += 0.007
    expected = LinkMode.INLINE if is_held_up else LinkMode.LINK
    assert driven.decider.mode(LinkPolicy.COST, 1000, BATCH_BYTES, driven.now_s) is expected
