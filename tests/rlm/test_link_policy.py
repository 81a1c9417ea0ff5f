"""Link or inline, in virtual time."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.inline_reason import InlineReason
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.bandwidth import RateMeter
from rlm.write_path.commit.cadence import Cadence, Load
from rlm.write_path.commit.constants import HOLD_OFF_S, PERIOD_S
from rlm.write_path.commit.link_policy import LinkDecider, LinkMode
from rlm.write_path.commit.trial import Found, Sample
from rlm.write_path.explanation import explain
from tests.rlm.driven_core import LIMITS, price

PARTITION = TopicIdPartition(TopicId(bytes(16)), 0)
COST = Assignment(PARTITION, "t", Path(), LinkPolicy.COST, 250)
ALWAYS = replace(COST, link_policy=LinkPolicy.ALWAYS)
INTERVAL_S, ARCHIVE_S = LIMITS.commit.interval_s, LIMITS.commit.archive_interval_s


def decider(break_even_bytes: int = 10_000, **changes: Any) -> LinkDecider:
    """Links pay from 1.2 MB/s on: 15,000 bytes in 12.5 ms."""
    one = LinkDecider(price(break_even_bytes, 0.0125), Cadence(LIMITS.commit), **changes)
    one.set_led([COST])
    return one


def steady(one: LinkDecider, bytes_per_s: float, now_s: float = 1.0, *, of: Assignment = COST) -> float:
    """Two seconds of a load. Returns the time then."""
    for _ in range(200):
        now_s += 0.01
        one.appended(of, int(bytes_per_s * 0.01), now_s - 0.01, now_s)
    return now_s


def tried(one: LinkDecider, inline_bytes_per_s: float, *, is_over: Callable[[float], bool]) -> float:
    """1 MB/s by links, and so much in each look. Returns the time when it is over."""
    now_s, size = steady(one, 2e6), 0
    while not is_over(now_s):
        now_s += 0.01
        size += int(0.01 * (1e6 if one.mode_of(COST, now_s) is LinkMode.LINK else inline_bytes_per_s))
        one.appended(COST, 20_000, now_s - 0.01, now_s)
        if one.look_s(now_s) <= now_s:
            sizes = {topic: size if topic == "t" else 0 for topic in one.trials.wanted(now_s)}
            one.look({topic: Sample(now_s, size, size // 1000) for topic, size in sizes.items()}, now_s)
        assert now_s < 30
    return now_s


@given(rate=st.floats(1.0, 1e9), step_s=st.sampled_from([0.001, 0.01, 0.05]))
def test_a_steady_rate_is_measured_and_time_that_stands_still_or_goes_back_does_not_blow_it_up(
    rate: float, step_s: float
) -> None:
    meter, now_s = RateMeter(time_constant_s=0.5), 100.0
    for _ in range(round(5 / step_s)):
        now_s += step_s
        meter.add(rate * step_s, now_s)
    assert (measured := meter.bytes_per_second(now_s)) == pytest.approx(rate, rel=0.06)
    assert meter.bytes_per_second(now_s + 5.0) < rate * 0.0001 + 1e-9
    for at_s in (now_s, now_s - 1.0):
        meter.add(100, at_s)
    assert meter.bytes_per_second(now_s) == pytest.approx(measured + 400.0)


def test_small_loads_go_inline_and_large_ones_as_links_until_they_do_not_pay_any_more() -> None:
    one = decider()
    now_s = 1.0
    # Once there are links, 0.9 MB/s still pay.
    for rate, is_linked in ((1.1e6, False), (1.3e6, True), (0.9e6, True), (0.7e6, False)):
        now_s = steady(one, rate, now_s)
        assert (one.mode_of(COST, now_s) is LinkMode.LINK) is is_linked
    now_s = steady(one, 5e6, now_s)
    assert one.mode_of(COST, now_s + 0.4) is LinkMode.LINK, "a machine that stands still for a moment"
    assert one.mode_of(COST, now_s + 1) is LinkMode.INLINE


def test_logs_that_are_read_seldom_show_the_same_rate_as_logs_that_are_read_often() -> None:
    for rate, mode in ((1_000_000, LinkMode.INLINE), (1_400_000, LinkMode.LINK)):
        one = decider()
        for read in range(27):  # three partitions, each read once a second
            one.appended(COST, rate // 3, read // 3, read // 3 + 1.0)
        assert one.mode_of(COST, 9.0) is mode


def test_a_load_that_begins_is_known_by_what_its_followers_fetch() -> None:
    # 2 MB/s to each of two followers, in responses of 4 KB; nothing of it has been read from the logs yet
    one, now_s = decider(), 1.0
    while one.mode_of(COST, now_s) is LinkMode.INLINE:
        now_s += 0.002
        one.fetched(COST, 2, 4_000, now_s)
        one.fetched(COST, 3, 4_000, now_s)
        assert now_s < 1.4, "it takes too long"
    assert now_s > 1.2, "the followers' rates are not to be added up: an object serves both"


def test_a_topic_that_sets_the_bound_goes_inline_while_upload_and_read_take_longer_or_are_further_apart() -> None:
    one = decider()
    now_s = steady(one, 5e6)
    bounded = replace(COST, latency_bound_ms=20, is_bounded=True)
    one.price.uploaded(0.009)
    assert one.mode_of(bounded, now_s) is LinkMode.LINK
    one.space_uploads(0.02)
    assert one.mode_of(bounded, now_s) is LinkMode.INLINE
    one.space_uploads(0.0)
    for _ in range(20):
        one.price.uploaded(0.1)
    assert one.mode_of(bounded, now_s) is LinkMode.INLINE
    assert one.mode_of(replace(bounded, is_bounded=False), now_s) is LinkMode.LINK, "a default bounds producers alone"
    for _ in range(60):
        one.price.uploaded(0.002)
    assert one.mode_of(bounded, now_s) is LinkMode.LINK
    assert one.decide(now_s, Load((bounded,), 1, since_s=now_s)).start_at <= now_s + INTERVAL_S


def test_a_decision_says_how_when_and_why_and_changes_nothing() -> None:
    is_off = False
    one = decider(is_off=lambda: is_off)
    now_s = steady(one, 1.3e6)

    def decided(*of: Assignment) -> tuple[LinkMode, float, InlineReason | None]:
        decision = one.decide(now_s, Load(of, 1, since_s=now_s))
        assert one.decide(now_s, Load(of, 1, since_s=now_s)) == decision
        return decision.mode, round(decision.start_at - now_s, 3), decision.reason

    one.cadence.left_out(now_s)
    assert decided(COST) == (LinkMode.LINK, INTERVAL_S, None)
    assert decided(COST, ALWAYS) == decided(ALWAYS), "the most urgent counts"
    now_s += 1
    one.cadence.left_out(now_s)
    assert decided(COST) == (LinkMode.INLINE, ARCHIVE_S, InlineReason.LOAD)
    assert decided(replace(COST, is_durable=True))[1] < 0, "producers wait for it"
    is_off = True
    assert decided(ALWAYS) == (LinkMode.OFF, ARCHIVE_S, InlineReason.UPLOADS_STOPPED)
    assert decided(COST, replace(COST, is_durable=True))[1] < 0


def test_a_decision_measures_the_rate_as_often_however_many_partitions_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    one, asked = decider(), Counter[int]()
    now_s = steady(one, 5e6)
    for partitions in (1, 100):
        monkeypatch.setattr(one.price, "bytes_per_s", lambda _now_s, of=partitions: asked.update([of]) or 5e6)
        one.decide(now_s, Load([COST] * partitions, 1, since_s=now_s))
    assert asked[1] == asked[100]


def test_links_are_held_off_where_many_objects_were_too_small_and_not_after_two_of_a_busy_machine() -> None:
    one, only_for_links = decider(), [replace(COST, is_kept=False)]
    now_s = tried(one, 1e6, is_over=lambda _now_s: one.trials.is_looking)
    for _ in range(50):
        one.uploading(only_for_links, 20_000, now_s)
    for _ in range(3):
        one.uploading(only_for_links, 100, now_s)
    assert not one.price.rests(now_s), "earlier objects lend them what they saved"
    for _ in range(25):
        one.uploading(only_for_links, 100, now_s)
    assert one.price.rests(now_s), "however much earlier ones saved"
    one.look(dict.fromkeys(one.trials.wanted(now_s + 2), Sample(now_s + 2, 10**9, 10**6)), now_s + 2)
    assert not one.trials.is_looking
    assert one.trials.found() == {"t": None}, "inline is not compared with inline"


def test_a_paused_topic_is_not_linked_and_what_must_be_stored_is_still_uploaded() -> None:
    paused, other = replace(ALWAYS, topic="paused"), replace(ALWAYS, topic="other")
    pauses = {"paused": "paused by anna"}
    one = decider(paused_because=pauses.get)
    assert (one.mode_of(paused, 1.0), one.mode_of(other, 1.0)) == (LinkMode.OFF, LinkMode.LINK)
    assert one.mode_of(replace(paused, remote_followers=frozenset()), 1.0) is LinkMode.OFF
    assert one.why_inline(paused, 1.0) is InlineReason.PAUSED_BY_OPERATOR
    assert explain(one, paused, 1.0, 0).plain == "paused by anna"
    pauses.clear()
    assert one.mode_of(paused, 1.0) is LinkMode.LINK


def test_what_a_trial_found_is_told_and_another_topic_stays_where_its_own_bytes_pay() -> None:
    one, other = decider(), replace(COST, topic="other")
    one.set_led([COST, other])
    now_s = tried(one, 4e6, is_over=lambda now_s: one.why_inline(COST, now_s) is InlineReason.HELD_UP)
    told = explain(one, COST, now_s, 1_700_000_000_000)
    assert told.plain.startswith("links hold its producers back, so it goes inline for a while: use larger batches, or")
    looks = "3 looks at 22:13:20 UTC; inline until 22:13:40 UTC"
    assert told.numbers == f"links hold records back 1.3 s here, 0.25 s allowed: {looks}"
    steady(one, 5e6, now_s)
    assert one.mode_of(other, now_s + 1) is LinkMode.INLINE, "what the first has counts no more"
    later_s = steady(one, 5e6, now_s + 1, of=other)
    assert [one.mode_of(topic, later_s) for topic in (other, COST)] == [LinkMode.LINK, LinkMode.INLINE]


def test_a_load_after_a_pause_is_looked_at_soon() -> None:
    one = decider()
    now_s = steady(one, 2e6)
    assert now_s < one.look_s(now_s) <= now_s + PERIOD_S[0]
    for _ in range(1000):
        now_s += 0.1
        one.appended(COST, 200_000, now_s - 0.1, now_s)
        size = int(now_s * 2e6)
        if one.look_s(now_s) <= now_s:
            one.look({topic: Sample(now_s, size, size // 1000) for topic in one.trials.wanted(now_s)}, now_s)
    assert one.look_s(now_s) > now_s + 10
    later_s = steady(one, 2e6, now_s + 1.1 * HOLD_OFF_S[0])
    assert one.look_s(later_s) <= later_s + PERIOD_S[0]


def test_how_a_topic_travels_is_told_plainly_with_what_to_do_and_in_numbers() -> None:
    is_off = False
    one = decider(is_off=lambda: is_off)
    now_s = steady(one, 0.1e6)

    def told(assignment: Assignment = COST) -> tuple[str | None, str, str]:
        found = explain(one, assignment, now_s, 0)
        return found.reason, found.plain, found.numbers

    assert told() == (
        "load",
        "too little comes here now for links to begin, so new records go inline: nothing to do",
        "an object here would carry 1 KB; it pays from 10 KB, and links begin at 15 KB, 1.5 times that, so that they "
        "do not begin and end all the time",
    )
    one.price.rests_until_s = now_s + 20
    assert told()[2].endswith("; objects came out too small, so links rest until 00:00:20 UTC")
    one.price.rests_until_s = 0.0
    assert told(replace(COST, remote_followers=frozenset()))[0] == "no_follower_elsewhere"
    assert told(ALWAYS)[1:] == ("it is linked, as the policy is always: nothing to do", "no looks are taken")
    now_s = steady(one, 5e6, now_s)
    assert told() == (
        None,
        "it is linked; whether links hold its producers back is not known yet: nothing to do",
        "no look yet, 0.25 s allowed; next look at 00:00:00 UTC",
    )
    assert told(replace(COST, topic="without trial"))[2] == "no looks are taken here"
    one.price.uploaded(0.09)
    bounded = replace(COST, latency_bound_ms=20, is_bounded=True)
    assert told(bounded)[::2] == ("latency_bound", "upload and read take 0.18 s, 0.02 s allowed")
    is_off = True
    assert told()[0] == "uploads_stopped"


def test_of_a_topic_that_is_linked_the_last_look_is_told_and_the_next_one() -> None:
    one = decider()
    trial = one.trials.of("t")
    now_s = tried(one, 1e6, is_over=lambda _now_s: trial.found is not None)
    told = explain(one, COST, now_s, 0)
    assert told.plain == "it is linked; the last look found its producers not held back for too long: nothing to do"
    last = "the last look at 00:00:00 UTC found records held back 0 s here, 0.25 s allowed; "
    assert told.numbers == f"{last}a look is under way"
    trial.end_round(now_s)
    assert explain(one, COST, now_s, 0).numbers == f"{last}next look at 00:00:10 UTC"


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (Found(0.0, 0.2, 0.5, 0, False, -1.0), "the last look found its producers not held back for too long"),
        (Found(0.0, 0.73, 0.5, 0, False, -1.0), "the last look found no more records held back than may be by chance"),
        (Found(0.0, 0.73, 0.5, 1, False, -1.0), "1 of 3 looks in a row, which would stop links, found its"),
        (Found(0.0, 0.73, 0.5, 3, False, 20.0), "links held its producers back, have rested, and are tried again"),
    ],
)
def test_what_the_last_look_found_does_not_contradict_its_figures(found: Found, told: str) -> None:
    one = decider()
    one.trials.of("t").found = found
    assert explain(one, COST, steady(one, 5e6), 0).plain.startswith(f"it is linked; {told}")
