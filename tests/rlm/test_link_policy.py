"""Link or inline, in virtual time."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.inline_reason import InlineReason
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.bandwidth import RateMeter
from rlm.write_path.commit.group_commit import Urgency
from rlm.write_path.commit.link_policy import CostLimits, LinkDecider, LinkMode

LIMITS = CostLimits(break_even_bytes=10_000, upload_interval_s=0.01, hold_s=0.5, upload_wait_max_s=0.0125)


@given(rate=st.floats(1.0, 1e9), step_s=st.sampled_from([0.001, 0.01, 0.05]))
def test_a_steady_rate_is_measured_within_a_few_per_cent_of_what_it_is(rate: float, step_s: float) -> None:
    meter, now_s = RateMeter(time_constant_s=0.5), 100.0
    for _ in range(round(5 / step_s)):
        now_s += step_s
        meter.add(rate * step_s, now_s)  # type: ignore[arg-type]
    assert meter.bytes_per_second(now_s) == pytest.approx(rate, rel=0.06)
    assert meter.bytes_per_second(now_s + 5.0) < rate * 0.0001 + 1e-9


def test_time_that_stands_still_or_goes_back_adds_up_and_does_not_blow_up() -> None:
    meter = RateMeter(time_constant_s=0.5)
    meter.add(100, 10.0)
    meter.add(100, 10.0)
    meter.add(100, 9.0)
    assert meter.bytes_per_second(10.0) == pytest.approx(600.0)


def test_small_loads_go_inline_large_ones_as_links_and_the_mode_is_held_for_a_while() -> None:
    decider = LinkDecider(LIMITS)

    def mode(pending: int, now_s: float) -> LinkMode:
        return decider.choose_mode(LinkPolicy.COST, 20, pending, now_s)

    assert mode(9_999, 1.0) is LinkMode.INLINE
    assert mode(10_000, 1.0) is LinkMode.LINK
    assert mode(1, 1.4) is LinkMode.LINK
    assert mode(1, 1.5) is LinkMode.INLINE


def test_a_rate_that_fills_objects_above_break_even_makes_links() -> None:
    decider, now_s = LinkDecider(LIMITS), 1.0
    for _ in range(200):  # 2 MB/s: 20 KB in an interval
        now_s += 0.01
        decider.appended(20_000, now_s - 0.01, now_s)
    assert decider.choose_mode(LinkPolicy.COST, 20, 1, now_s) is LinkMode.LINK
    assert decider.choose_mode(LinkPolicy.COST, 20, 1, now_s + 10) is LinkMode.INLINE


@pytest.mark.parametrize(("rate", "mode"), [(900_000, LinkMode.INLINE), (1_200_000, LinkMode.LINK)])
def test_logs_that_are_read_seldom_show_the_same_rate_as_logs_that_are_read_often(rate: int, mode: LinkMode) -> None:
    # 10,000 bytes in an interval of 10 ms pay, which is 1 MB/s; three partitions, each read once a second
    decider = LinkDecider(LIMITS)
    for now_s in range(1, 10):
        for _ in range(3):
            decider.appended(rate // 3, now_s - 1.0, float(now_s))
    assert decider.choose_mode(LinkPolicy.COST, 20, 1, 9.0) is mode


def test_a_load_that_begins_is_known_by_what_its_followers_fetch() -> None:
    # 2 MB/s to each of two followers, in responses of 4 KB; nothing of it has been read from the logs yet
    decider, now_s = LinkDecider(LIMITS), 1.0
    while decider.choose_mode(LinkPolicy.COST, 20, 4_000, now_s) is LinkMode.INLINE:
        now_s += 0.002
        decider.fetched(2, 4_000, now_s)
        decider.fetched(3, 4_000, now_s)
        assert now_s < 1.1, "it takes too long"
    assert now_s > 1.05, "the followers' rates are not to be added up: an object serves both"


def test_the_policy_always_links_whatever_it_costs() -> None:
    assert LinkDecider(LIMITS).choose_mode(LinkPolicy.ALWAYS, 1, 1, 1.0) is LinkMode.LINK


def test_the_policy_latency_gives_links_up_while_uploads_are_slower_than_its_bound() -> None:
    decider = LinkDecider(LIMITS)
    decider.uploaded(0.009)
    assert decider.choose_mode(LinkPolicy.LATENCY, 20, 50_000, 1.0) is LinkMode.LINK
    for _ in range(20):
        decider.uploaded(0.1)
    assert decider.choose_mode(LinkPolicy.LATENCY, 20, 50_000, 1.0) is LinkMode.INLINE
    assert decider.choose_mode(LinkPolicy.COST, 20, 50_000, 1.0) is LinkMode.LINK
    for _ in range(60):
        decider.uploaded(0.002)
    assert decider.choose_mode(LinkPolicy.LATENCY, 20, 50_000, 1.0) is LinkMode.LINK


def test_the_policy_latency_gives_links_up_while_uploads_are_further_apart_than_its_bound() -> None:
    decider = LinkDecider(LIMITS)
    decider.uploaded(0.002)
    decider.spacing_s = 0.02
    assert decider.choose_mode(LinkPolicy.LATENCY, 20, 50_000, 1.0) is LinkMode.INLINE
    assert decider.choose_mode(LinkPolicy.LATENCY, 30, 50_000, 1.0) is LinkMode.LINK


def test_an_upload_is_wanted_as_by_the_most_urgent_of_its_partitions() -> None:
    partition = TopicIdPartition(TopicId(bytes(16)), 0)
    always, cost = (Assignment(partition, "t", Path(), policy, 0) for policy in (LinkPolicy.ALWAYS, LinkPolicy.COST))
    decider = LinkDecider(LIMITS)
    assert decider.judge_urgency([], 10.0) is Urgency.ARCHIVE
    assert decider.judge_urgency([cost], 10.0) is Urgency.ARCHIVE
    assert decider.judge_urgency([cost, always], 10.0) is Urgency.LINKS
    decider.choose_mode(LinkPolicy.COST, 0, LIMITS.break_even_bytes, 10.0)  # links pay for a while
    assert decider.judge_urgency([cost], 10.1) is Urgency.PAYING_LINKS
    decider.is_off = lambda: True
    assert decider.judge_urgency([cost, always], 10.1) is Urgency.ARCHIVE
    assert decider.judge_urgency([cost, replace(cost, is_durable=True)], 10.1) is Urgency.LINKS, "producers wait for it"


def test_a_paused_topic_is_not_linked_and_what_must_be_stored_is_still_uploaded() -> None:
    partition = TopicIdPartition(TopicId(bytes(16)), 0)
    paused, other = (Assignment(partition, name, Path(), LinkPolicy.ALWAYS, 0) for name in ("paused", "other"))
    decider = LinkDecider(LIMITS)
    decider.paused_because = {"paused": "paused by anna"}.get
    assert (decider.mode_of(paused, 0, 1.0), decider.mode_of(other, 0, 1.0)) == (LinkMode.OFF, LinkMode.LINK)
    assert decider.mode_of(replace(paused, remote_followers=frozenset()), 0, 1.0) is LinkMode.OFF
    assert decider.why_inline(paused, 1.0) is InlineReason.PAUSED_BY_OPERATOR
    assert decider.told_why(paused, 1.0) == "paused by anna"
    assert decider.judge_urgency([paused], 1.0) is Urgency.ARCHIVE
    assert decider.judge_urgency([replace(paused, is_durable=True)], 1.0) is Urgency.LINKS, (
        "its acknowledgements stay true"
    )
    decider.paused_because = lambda _topic: None
    assert decider.mode_of(paused, 0, 1.0) is LinkMode.LINK


def test_why_bytes_go_inline_is_told_in_words_and_numbers() -> None:
    partition = TopicIdPartition(TopicId(bytes(16)), 0)
    one = Assignment(partition, "t", Path(), LinkPolicy.COST, 20)
    decider, now_s = LinkDecider(LIMITS), 1.0

    def why(assignment: Assignment = one) -> tuple[str, str]:
        return decider.why_inline(assignment, now_s).value, decider.told_why(assignment, now_s)

    for _ in range(100):
        now_s += 0.01
        decider.appended(1_000, now_s - 0.01, now_s)
    assert why() == ("load", "0.10 MB/s here bring 1 KB in 12 ms; links start at 12 KB")
    decider.producers.held_up(now_s, "1.00 MB/s came through where 3.00 did inline")
    now_s += 0.25
    assert why() == (
        "held_up",
        "links held producers up 0 s ago (1.00 MB/s came through where 3.00 did inline), next try in 1 s; see held "
        "acknowledgements",
    )
    assert why(replace(one, remote_followers=frozenset()))[0] == "no_follower_elsewhere"
    now_s += 1.0
    decider.appended(1_000_000, now_s - 0.1, now_s)
    assert why()[1] == "all is linked now"
    decider.uploaded(0.09)
    bounded = replace(one, link_policy=LinkPolicy.LATENCY)
    assert why(bounded) == ("latency_bound", "upload and read take 180 ms, the topic allows 20")
    decider.is_off = lambda: True
    assert why()[0] == "uploads_stopped"
