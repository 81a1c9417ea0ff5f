"""What objects cost and links save, for the followers and the lives that there are; against sums made by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.prices import NEVER_PAYS, Prices
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.cadence import Cadence, Load
from rlm.write_path.commit.link_policy import LinkDecider, LinkMode
from rlm.write_path.commit.price import Price
from rlm.write_path.link_costs import LinkCosts
from tests.rlm.driven_core import LIMITS

PRICES = Prices.load()
COSTS = LinkCosts(PRICES, PRICES.s3_express)
HOUR_S, DAY_S = 3600.0, 86_400.0


def led(number: int, *followers: int, life_s: float = HOUR_S, policy: LinkPolicy = LinkPolicy.COST) -> Assignment:
    partition = TopicIdPartition(TopicId(b"l" * 16), number)
    return Assignment(partition, "t", Path(), policy, 20, False, frozenset(followers), False, life_s)


def break_even(*assignments: Assignment, costs: LinkCosts = COSTS, entries: float = 1) -> int:
    return costs.judge(assignments).break_even_bytes(entries)


@pytest.mark.parametrize("followers", [(2,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("life_s", [HOUR_S, 3 * DAY_S])
def test_at_the_break_even_size_all_of_an_object_costs_what_its_bytes_cost_inline(
    followers: tuple[int, ...], life_s: float
) -> None:
    size = break_even(led(0, *followers, life_s=life_s))
    count = len(followers)
    metadata = 2 * (110 + 11) / 1e9 * PRICES.zone_crossing_gb
    stored = size / 1e9 * PRICES.s3_express.storage_gb_month * life_s / (30 * DAY_S)
    linked = PRICES.s3_express.requests_usd(1, count, size, count * size) + metadata + stored
    assert linked == pytest.approx(count * size / 1e9 * PRICES.zone_crossing_gb, rel=1e-3)


def test_an_object_is_read_by_every_broker_that_follows_one_of_its_partitions() -> None:
    few = [led(number, 2, 3) for number in range(40)]
    many = [led(number, 2 + number, 50 + number) for number in range(40)]  # who reads what it is, reads one range
    gets = 78 * PRICES.s3_express.get_per_1000 / 1000
    saved = 2 * (0.02 - 0.0006) - 0.0032 - 0.11 / 720
    assert break_even(*many) - break_even(*few) == pytest.approx(gets / saved * 1e9, rel=1e-3)


def test_who_reads_it_in_several_ranges_pays_for_each() -> None:
    pairs = [led(number, number % 2, 10 + number // 2 % 10) for number in range(40)]
    alone = [led(number, number % 2) for number in range(40)]
    in_ranges = replace(COSTS, reads_for=lambda brokers: {one: "az2" if one < 10 else one for one in brokers})
    # In order of 0 and 1, and then of 10 to 19: each of these reads two ranges.
    get = PRICES.s3_express.get_per_1000 / 1000
    costs, shared = (costs.judge(pairs) for costs in (COSTS, in_ranges))
    assert costs.object_usd - shared.object_usd == pytest.approx(get), "12 readers for 11"
    assert costs.entry_usd == pytest.approx(COSTS.judge(alone).entry_usd + 10 * get / 40)
    assert shared.entry_usd == pytest.approx(costs.entry_usd)


def test_objects_that_live_for_longer_than_their_links_save_never_pay() -> None:
    assert break_even(led(0, 2, 3, life_s=9 * DAY_S)) < NEVER_PAYS
    assert break_even(led(0, 2, 3, life_s=10 * DAY_S)) == NEVER_PAYS
    assert break_even(led(0, 2, life_s=5 * DAY_S)) == NEVER_PAYS
    assert break_even(led(0, 2, 3, life_s=float("inf"))) == NEVER_PAYS


def test_what_is_stored_in_any_case_costs_its_links_neither_upload_nor_storage() -> None:
    kept = replace(led(0, 2, 3, life_s=300 * DAY_S), is_kept=True)
    saved = 2 * (0.02 - 0.0006)
    assert break_even(kept) == pytest.approx((0.00113 + 2 * 0.00003) / 1000 / saved * 1e9, rel=0.01)


def decider(costs: LinkCosts = COSTS) -> LinkDecider:
    return LinkDecider(Price(costs.judge, 0.1), Cadence(LIMITS.commit))


def linked(one: LinkDecider, *led: Assignment) -> list[bool]:
    """Which of them are linked where each has 5 MB/s."""
    one.set_led(led)
    for assignment in led:
        one.appended(assignment, 5_000_000, 0.0, 1.0)
    return [one.mode_of(assignment, 1.0) is LinkMode.LINK for assignment in led]


def test_where_no_follower_is_in_another_zone_nothing_pays_and_no_upload_is_for_links() -> None:
    here, always, one = led(0), led(1, policy=LinkPolicy.ALWAYS), decider()
    assert linked(one, here, always) == [False, False]
    assert one.price.break_even_bytes == NEVER_PAYS
    one.cadence.left_out(1.0)
    assert one.decide(1.0, Load((here, always), 1)).start_at == 1.0 + LIMITS.commit.archive_interval_s


def test_what_never_pays_goes_inline_beside_what_does() -> None:
    near, far, dear = led(0), led(1, 2, 3), led(2, 2, 3, life_s=20 * DAY_S)
    assert linked(decider(), near, far, dear) == [False, True, False]


def test_followers_that_move_to_another_zone_count_from_then_on() -> None:
    price = decider().price
    sizes = []
    for followers in ((2,), (2, 3), ()):
        price.set_led([led(0, *followers)])
        sizes.append(price.break_even_bytes)
    assert sizes[1] < sizes[0] < sizes[2] == NEVER_PAYS


def test_crossing_zones_at_no_cost_means_inline_by_cost_and_links_where_they_are_wanted_whatever_they_cost() -> None:
    free = LinkCosts(replace(PRICES, zone_crossing_gb=0.0), PRICES.s3_express)
    assert linked(decider(free), led(0, 2, 3), led(1, 2, 3, policy=LinkPolicy.ALWAYS)) == [False, True]


def test_sizes_follow_followers_entries_and_how_well_inline_bytes_are_packed() -> None:
    plain = break_even(led(0, 2, 3))
    assert plain == pytest.approx(33_700, rel=0.01)
    assert break_even(replace(led(0), remote_followers=None)) == plain, "while none are known, two are reckoned with"
    assert break_even(led(0, 2, 3), entries=1000) > 1.3 * plain
    for ratio, at_least in ((2.0, 1.9 * plain), (20.0, NEVER_PAYS)):
        packed = replace(COSTS, pack_ratio=lambda _topic, ratio=ratio: ratio)  # type: ignore[misc]
        assert break_even(led(0, 2, 3), costs=packed) >= at_least
