"""What a trial finds, in virtual time, with producers that obey Little's law."""

import math
from collections import Counter
from collections.abc import Callable

import pytest

from rlm.write_path.commit.constants import HOLD_OFF_S, LOOK_S, PERIOD_S
from rlm.write_path.commit.trial import Finding, Sample, State, Trials
from tests.rlm.produced_topics import Fleet, Produced

INF = math.inf
FLEETS: dict[str, Callable[[], Fleet]] = {
    "as fast as it goes": lambda: Fleet(INF),
    "as fast as it goes, slow store": lambda: Fleet(INF, link_s=0.3),
    "3.3 MB/s": lambda: Fleet(3.3e6),
    "128 KB batches": lambda: Fleet(3.3e6, request_bytes=512_000),
    "40 producers": lambda: Fleet(2e6, 40, link_s=0.12, inline_s=0.06),
    "acks=1": lambda: Fleet(3.3e6, link_s=0),
    "few large batches": lambda: Fleet(0.2e6, link_s=0, request_bytes=100_000, batch_bytes=100_000),
    "bursts of 0.4 s": lambda: Fleet(10e6, link_s=0, is_active=lambda now_s: now_s % 1.4 < 0.4),
    "bursts of 0.1 s": lambda: Fleet(30e6, link_s=0, is_active=lambda now_s: now_s % 1 < 0.1),
}


@pytest.mark.parametrize("stalls", [0.0, 0.3], ids=["quiet", "busy"])
@pytest.mark.parametrize("name", ["as fast as it goes", "as fast as it goes, slow store", "3.3 MB/s"])
def test_producers_that_links_hold_up_go_inline_and_keep_their_rate(name: str, stalls: float) -> None:
    produced, inline = Produced([FLEETS[name]()], stalls=stalls), Produced([FLEETS[name]()], stalls=stalls)
    inline.fleets[0].link_s = inline.fleets[0].inline_s
    assert produced.run(60).rate() >= 0.84 * inline.run(60, trials=False).rate()
    assert produced.linked_share() <= 0.1
    found = produced.trials.of("t").found
    assert found is not None
    assert found.costs_throughput or found.held_back_s > found.limit_s
    assert found.until_s - found.at_s >= 2 * HOLD_OFF_S[0], "tries become rare"


@pytest.mark.parametrize(
    ("name", "share", "busy_share"),
    [
        ("128 KB batches", 0.9, 0.8),
        ("40 producers", 0.95, 0.9),
        ("acks=1", 0.95, 0.9),
        *((name, 0.9, None) for name in ("few large batches", "bursts of 0.4 s", "bursts of 0.1 s")),
    ],
)
def test_producers_that_links_do_not_hold_up_stay_linked(name: str, share: float, busy_share: float | None) -> None:
    def shares(stalls: float) -> list[float]:
        return sorted(Produced([FLEETS[name]()], seed=seed, stalls=stalls).run(60).linked_share() for seed in range(3))

    assert shares(0.0)[0] >= share
    if busy_share is not None:  # such a machine may mislead three looks in a row once
        assert shares(0.3)[1] >= busy_share


def test_a_load_that_begins_is_no_verdict_and_one_that_ends_neither() -> None:
    for begins_s in (1.0, 1.1, 1.2, 1.3):
        grows = Fleet(3e6, link_s=0, is_active=lambda now_s, begins_s=begins_s: now_s > 1000 + begins_s)  # type: ignore[misc]
        ends = Fleet(3e6, link_s=0, is_active=lambda now_s, begins_s=begins_s: now_s < 1000 + begins_s)  # type: ignore[misc]
        for second in (grows, ends):
            produced = Produced([Fleet(1e6, link_s=0), second])
            produced.run(20)
            assert State.INLINE not in produced.states


def test_one_producer_of_two_topics_is_seen_and_the_verdict_names_both() -> None:
    produced = Produced([Fleet(INF, topics=("a", "b"))]).run(20)
    for topic in ("a", "b"):
        found = produced.trials.of(topic).found
        assert found is not None
        assert found.topics == ("a", "b")
        assert produced.trials.of(topic).state is State.INLINE


def test_a_topic_that_joins_later_is_seen_with_the_one_that_shares_its_producer() -> None:
    """By then looks at the first are rare: alone, neither shows anything."""
    shared = Fleet(INF, topics=("a", "b"), is_active=lambda now_s: now_s > 1030)
    shared.request_bytes = 32_000
    produced = Produced([Fleet(1e6, link_s=0, topics=("a",)), shared]).run(120)
    assert produced.trials.of("b").state is State.INLINE


def test_of_two_topics_the_one_that_is_held_up_goes_inline_and_the_other_stays() -> None:
    produced = Produced([Fleet(INF, topics=("a",)), Fleet(2e6, link_s=0, topics=("b",))]).run(60)
    assert produced.linked_share("a") <= 0.1
    assert produced.linked_share("b") >= 0.9


def test_looks_at_one_topic_that_go_on_take_links_from_no_topic_where_all_is_well() -> None:
    produced = Produced([Fleet(INF, topics=("held",)), Fleet(2e6, link_s=0, topics=("well",))])
    while produced.trials.of("held").state is not State.INLINE:
        produced.run(0.1)
    looks = Counter(topic for topic, _ in produced.found)
    assert looks == {"held": 3, "well": 2}, "one more, as its uploads wait for larger objects since the first"


def test_a_load_that_ends_inline_forgets_the_verdict_and_looks_are_rare_while_all_is_well() -> None:
    produced = Produced([Fleet(INF, is_active=lambda now_s: now_s < 1080)])
    assert produced.run(60).trials.of("t").state is State.INLINE
    produced.fleets[0].bytes_per_s, produced.fleets[0].wait_bytes = 0.0, [0.0]
    assert produced.run(25).trials.of("t").state is State.LINKS
    well = Produced([FLEETS["acks=1"]()]).run(240)
    assert Counter(found for _, found in well.found) == {Finding.FREE: 6}


def looked(limit_s: float, *rates: float) -> tuple[Trials, Finding, float]:
    """Trials of a topic with 1 MB/s by links, and so much in each 0.2 s of a look, with what it found and its time."""
    trials, now_s, size, left, begun_s = Trials(), 0.0, 0, list(rates), 0.0
    trials.set_led({"t": limit_s}, {"t": {0}})
    while True:
        found = trials.advance({"t": Sample(now_s, size, size // 1000)}, now_s, do_pay=True)
        if found:
            return trials, found[0][1], now_s - begun_s
        begun_s = begun_s if trials.is_looking and begun_s else now_s
        step_s = trials.due_s(do_pay=True) - now_s
        now_s, size = now_s + step_s, size + int(step_s * (left.pop(0) if trials.is_looking else 1e6))


def test_a_surplus_that_ends_is_a_latency_and_one_that_still_grows_costs_throughput_whatever_the_bound() -> None:
    trials, found, _ = looked(0.25, 3e6, 3e6)
    assert found is Finding.HELD
    assert [one.costs_throughput for one in trials.found().values() if one] == [False], "the bound decided"
    assert looked(0.5, 3e6, *[1e6] * 9)[1] is Finding.FREE
    trials, found, seconds = looked(100.0, *[2e6] * 20)
    assert found is Finding.HELD
    assert seconds >= 0.9 * LOOK_S[1]
    assert [one.costs_throughput for one in trials.found().values() if one] == [True]
    assert looked(0.25, 1.1e6, 1.1e6)[1] is Finding.FREE


def test_a_surplus_that_is_above_the_bound_by_chance_alone_is_looked_at_for_longer() -> None:
    _, found, seconds = looked(0.25, 2.3e6, *[1e6] * 10)
    assert (found, seconds >= 0.9 * LOOK_S[1]) == (Finding.HELD, True)
    _, found, seconds = looked(0.25, 2.3e6, 1e6, 0.2e6, *[1e6] * 8)
    assert (found, seconds < 0.9 * LOOK_S[1]) == (Finding.FREE, True)


def test_a_round_ends_where_links_do_not_come_or_partitions_change_and_the_next_one_begins_anew() -> None:
    trials, _, now_s = looked(0.25, 3e6, 3e6)
    assert trials.is_tried("t"), "another look follows at once"
    trials.abandon(now_s)
    assert not trials.is_tried("t")
    assert now_s < trials.due_s(do_pay=True) <= now_s + PERIOD_S[0]
    trials, _, now_s = looked(0.25, 3e6, 3e6)
    trials.set_led({"t": 0.25}, {"t": {0, 1}})
    assert not trials.is_tried("t")
    assert (trials.due_s(do_pay=True), trials.found()) == (-INF, {"t": None})
    assert trials.due_s(do_pay=False) == INF, "nothing is looked at while links do not pay"
