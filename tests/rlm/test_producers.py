"""Links end where they cost producers their rate, and nowhere else; in virtual time."""

import pytest

from metadata_topic.settings.topic_settings import LinkPolicy
from rlm.write_path.commit.link_policy import CostLimits, LinkDecider, LinkMode
from rlm.write_path.commit.producers import Producers
from tests.rlm.plain_log import partition

UPLOAD_S, PAYING = 0.010, 40_000.0


class Rounds:
    """What comes inline, and rounds of links: appends, an upload, a read."""

    def __init__(self) -> None:
        self.producers = Producers()
        self.now_s = 100.0

    def inline(self, seconds: float, bytes_per_s: float) -> None:
        for _ in range(round(seconds / 0.01)):
            self.now_s += 0.01
            self.producers.append_seen(self.now_s)
            self.producers.appended(round(bytes_per_s * 0.01), self.now_s - 0.01, self.now_s)
            self.producers.may_link(self.now_s)

    def round(self, size: int, *, every_s: float = 0.03, meanwhile: int = 0) -> bool:
        """One round: appends, an upload; whether links have ended."""
        one = self.producers
        begun_s = self.now_s
        one.may_link(begun_s)
        one.append_seen(begun_s + 0.005)
        self.now_s = begun_s + every_s - UPLOAD_S
        one.appended(size, begun_s, self.now_s)
        if one.are_held_up(size, PAYING, self.now_s):
            return True
        one.uploading(size, PAYING, self.now_s)
        self.now_s += UPLOAD_S
        one.stored(UPLOAD_S, meanwhile, size * UPLOAD_S / every_s, self.now_s)
        return not one.may_link(self.now_s)

    def begin(self) -> None:
        assert self.producers.may_link(self.now_s)
        self.producers.linking(self.now_s)

    def look(self, bytes_per_s: float, **more: float) -> bool:
        """So much comes inline for a look, and a round of links after it; whether links have ended by that."""
        while not self.producers.may_link(self.now_s):
            self.inline(0.01, bytes_per_s)
        self.begin()
        return self.round(64_000, **more)  # type: ignore[arg-type]

    def rounds(self, count: int, size: int, **more: float) -> int:
        """So many, or until links end: how many there were."""
        for number in range(count):
            if self.round(size, **more):  # type: ignore[arg-type]
                return number + 1
        return count


def after_inline(bytes_per_s: float) -> Rounds:
    rounds = Rounds()
    rounds.inline(2.0, bytes_per_s)
    rounds.begin()
    return rounds


def test_a_load_that_begins_is_looked_at_inline_before_links_begin() -> None:
    rounds = Rounds()
    assert not rounds.producers.may_link(rounds.now_s)
    rounds.inline(0.3, 1e6)
    assert not rounds.producers.may_link(rounds.now_s)
    rounds.inline(0.2, 1e6)
    assert rounds.producers.may_link(rounds.now_s)
    rounds.producers.going_inline(rounds.now_s, do_pay=False)
    assert rounds.producers.may_link(rounds.now_s + 1.0), "a short pause"
    assert not rounds.producers.may_link(rounds.now_s + 7.0), "another load"


def test_producers_in_lock_step_that_keep_their_rate_keep_links() -> None:
    rounds = after_inline(1.4e6)
    assert rounds.rounds(90, 42_000) == 90
    assert "producers wait" in str(rounds.producers)


def test_producers_that_lose_their_rate_end_links_within_half_a_second_and_a_look_confirms_it() -> None:
    rounds = after_inline(3.3e6)
    assert 15 <= rounds.rounds(100, 64_000) <= 20
    assert not rounds.producers.why
    assert rounds.look(3.3e6)
    assert rounds.producers.why.startswith("2.13 MB/s came through where 3.")
    held_up_s = rounds.producers.held_up_s or 0.0
    assert not rounds.producers.may_link(held_up_s + 0.9)
    assert rounds.producers.may_link(held_up_s + 1.1)


def test_a_load_that_fell_costs_links_one_look() -> None:
    rounds = after_inline(3.3e6)
    rounds.rounds(100, 64_000)
    assert not rounds.look(2.1e6)
    assert rounds.rounds(60, 64_000) == 60
    assert rounds.producers.held_up_s is None


def test_a_lower_rate_of_producers_that_go_on_meanwhile_ends_nothing() -> None:
    rounds = after_inline(3.3e6)
    assert rounds.rounds(100, 60_000, meanwhile=20_000) == 100


def test_requests_that_are_far_too_small_end_links_before_the_first_upload() -> None:
    rounds = after_inline(0.7e6)
    assert rounds.rounds(1, 1_000, every_s=0.07) == 1
    assert rounds.producers.why.startswith("1000 bytes came where ")


def test_rounds_that_pay_together_may_be_too_small_one_by_one_and_those_that_never_pay_may_not() -> None:
    rounds = after_inline(1.4e6)
    for size in (16_000, 64_000, 24_000, 60_000) * 20:
        assert not rounds.round(size)
    assert rounds.producers.held_up_s is None
    poor = after_inline(0.6e6)
    assert poor.rounds(100, 20_000) < 12


def test_each_hold_off_is_twice_as_long_until_links_were_good_for_a_minute() -> None:
    rounds, pauses_s = Rounds(), []
    rounds.inline(2.0, 3.3e6)
    for _ in range(12):
        rounds.begin()
        rounds.rounds(100, 64_000)
        assert rounds.look(3.3e6)
        begun_s = rounds.producers.held_up_s or 0.0
        while not rounds.producers.may_link(rounds.now_s):
            rounds.inline(0.1, 3.3e6)
        pauses_s.append(round(rounds.now_s - begun_s))
    assert pauses_s == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]
    rounds.begin()
    while rounds.now_s < begun_s + 680:
        rounds.rounds(3000, 100_000)
        rounds.look(3.3e6)
    assert rounds.rounds(100, 32_000) < 100
    assert rounds.producers.held_up_s is not None
    assert rounds.producers.may_link(rounds.now_s + 1.0)


def test_links_are_interrupted_to_see_whether_more_would_come_inline() -> None:
    rounds = after_inline(2.1e6)
    assert 100 <= rounds.rounds(400, 64_000) < 120, "a load that has grown to what rounds carry"
    assert not rounds.look(5e6), "what was sent meanwhile comes, or the load has grown just now"
    assert rounds.rounds(40, 64_000) < 20
    assert rounds.look(5e6)


def test_looks_that_find_nothing_become_rare() -> None:
    rounds, looks = after_inline(2.1e6), 0
    begun_s = rounds.now_s
    while rounds.now_s < begun_s + 300:
        rounds.rounds(10_000, 64_000)
        looks += 1
        rounds.look(2.1e6)
    assert looks <= 12
    assert rounds.producers.held_up_s is None


@pytest.mark.parametrize(("is_idle", "is_held"), [(True, False), (False, True)])
def test_links_that_do_not_pay_any_more_rest_unless_the_load_has_ended(is_idle: bool, is_held: bool) -> None:
    rounds = after_inline(1.4e6)
    for _ in range(3):
        rounds.round(30_000, every_s=0.02)
    rounds.now_s += 0.5
    if not is_idle:
        rounds.producers.append_seen(rounds.now_s)
    rounds.producers.going_inline(rounds.now_s, do_pay=False)
    assert (rounds.producers.held_up_s is not None) is is_held


def decider(**more: float) -> LinkDecider:
    return LinkDecider(CostLimits(34_000, 0.025, **more))


def test_a_hold_off_is_for_links_by_cost_of_producers_that_may_wait() -> None:
    one = decider(first_look_s=0.0)

    def mode(policy: LinkPolicy, *, is_free: bool = False) -> LinkMode:
        return one.mode(policy, 1000, 50_000, 100.1, is_free=is_free)

    assert mode(LinkPolicy.COST) is LinkMode.LINK
    one.producers.held_up(100.0, "a test")
    assert mode(LinkPolicy.COST) is mode(LinkPolicy.LATENCY) is LinkMode.INLINE
    assert mode(LinkPolicy.ALWAYS) is mode(LinkPolicy.COST, is_free=True) is LinkMode.LINK


def test_a_partition_is_free_while_almost_all_of_it_is_known_to_have_come_so() -> None:
    one, now_s = decider(), 100.0
    assert not one.is_free(partition(0), now_s)
    for _ in range(300):
        now_s += 0.01
        one.came_freely(partition(0), 1000, now_s)
        one.appended(1000, now_s - 0.01, now_s, partition(0))
    assert one.is_free(partition(0), now_s)
    assert not one.is_free(partition(1), now_s)
    for _ in range(100):
        now_s += 0.01
        one.came_freely(partition(0), 900, now_s)
        one.appended(1000, now_s - 0.01, now_s, partition(0))
    assert not one.is_free(partition(0), now_s), "a tenth came otherwise"
    one.led([])
    assert not one.is_free(partition(0), now_s)


def test_a_partition_is_free_a_second_after_the_last_other_bytes_however_seldom_its_log_is_read() -> None:
    one, now_s = decider(), 100.0
    one.came_freely(partition(0), 1, now_s)
    assert one.is_free(partition(0), now_s), "nothing else came"
    one.appended(100_000, now_s - 1, now_s, partition(0))
    assert not one.is_free(partition(0), now_s)
    for _ in range(3):
        for _ in range(10):
            one.came_freely(partition(0), 10_000, now_s)
            now_s += 0.04
        one.appended(100_000, now_s - 0.4, now_s, partition(0))
    assert one.is_free(partition(0), now_s)


def test_what_a_broker_refused_covers_no_other_bytes_later() -> None:
    one, now_s = decider(), 100.0
    one.came_freely(partition(0), 1_000_000, now_s)  # refused
    for _ in range(3):
        now_s += 0.1
        one.came_freely(partition(0), 10_000, now_s)
        one.appended(10_000, now_s - 0.1, now_s, partition(0))
    for _ in range(10):
        now_s += 0.1
        one.appended(10_000, now_s - 0.1, now_s, partition(0))
    assert not one.is_free(partition(0), now_s)
