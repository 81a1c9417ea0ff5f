"""Advice: what follows from a topic's and the brokers' figures."""

from dataclasses import replace

import pytest

from plugin.prices import PriceTable
from retention_job.cost.advice import BrokerLoad, TopicTotals, choices, topic_verdict
from rlm.write_path.commit import group_commit

PRICES = PriceTable.load()
DAY_S = 86_400.0


def totals(upload_bytes: float, objects: float, paid: float | None, stock: float | None) -> TopicTotals:
    return TopicTotals("orders", upload_bytes, objects, upload_bytes, 0.0, 2, paid, stock, 0)


def test_a_topics_break_even_is_where_its_objects_cost_what_they_save() -> None:
    objects = 100 * DAY_S
    verdict = topic_verdict(totals(30e6 * DAY_S, objects, 1.0, 2.0), DAY_S, PRICES)
    assert verdict.break_even_mb_s is not None
    requests_usd = objects * (0.00113 + 2 * 0.00003) / 1000
    saved_usd = verdict.break_even_mb_s * DAY_S / 1000 * (2 * (0.02 - 0.0006) - 0.0032)
    assert saved_usd == pytest.approx(requests_usd, rel=0.005), "but for the metadata"
    assert verdict.break_even_mb_s == pytest.approx(3.35, rel=0.005)
    assert verdict.rate_mb_s == pytest.approx(30)


@pytest.mark.parametrize(
    ("topic", "advice"),
    [
        (totals(30e6 * DAY_S, 8e6, 1.0, 2.0), "pays"),
        (totals(1e5 * DAY_S, 8e6, 2.0, 1.0), "--link-policy cost"),
        (totals(30e6 * DAY_S, 8e6, 2.0, 1.0), "longer interval"),
        (totals(30e6 * DAY_S, 8e6, None, 1.0), "unknown"),
        (totals(0.0, 0.0, 0.0, 0.0), "no traffic"),
    ],
)
def test_a_topic_that_loses_money_is_told_what_to_do(topic: TopicTotals, advice: str) -> None:
    assert advice in topic_verdict(topic, DAY_S, PRICES).advice


def test_the_quickest_choice_costs_at_most_a_tenth_more_than_the_cheapest() -> None:
    found = choices([load(30, 1), load(2, 2)], PRICES)
    assert found is not None
    assert found.cheapest.usd_per_month == min(choice.usd_per_month for choice in found.all)
    assert found.quickest_near.usd_per_month <= 1.1 * found.cheapest.usd_per_month
    quicker = [choice for choice in found.all if choice.interval_ms < found.quickest_near.interval_ms]
    assert quicker
    assert all(choice.usd_per_month > 1.1 * found.cheapest.usd_per_month for choice in quicker)
    assert found.default.interval_ms == 25
    assert (found.links_pay, found.inline_brokers) == (True, ())


def load(rate_mb_s: float, broker_id: int = 1, readers: float = 2, object_hours: float = 1) -> BrokerLoad:
    return BrokerLoad(broker_id, rate_mb_s, 2, readers, object_hours)


def test_advice_keeps_within_what_group_commit_does() -> None:
    found = choices([load(30)], PRICES)
    assert found is not None
    longest_ms = 1000 * group_commit.PAYING_STRETCH_S
    assert max(choice.interval_ms for choice in found.all) == longest_ms
    by_interval = {choice.interval_ms: choice for choice in found.all}
    assert by_interval[5].unwaited_usd_per_month == pytest.approx(by_interval[100].usd_per_month, rel=0.05)
    assert all(choice.unwaited_usd_per_month <= choice.usd_per_month for choice in found.all)


def test_brokers_to_whose_loads_links_do_not_pay_are_named() -> None:
    found = choices([load(30, 1), load(0.2, 2), load(0.5, 3, readers=60), load(5, 4, object_hours=14 * 24)], PRICES)
    assert found is not None
    assert found.inline_brokers == (2, 3, 4)
    assert found.links_pay
    none_pays = choices([load(0.2, 2)], PRICES)
    assert none_pays is not None
    assert not none_pays.links_pay
    assert {choice.usd_per_month for choice in none_pays.all} == {none_pays.stock_usd_per_month}


def test_all_who_read_an_object_and_its_life_count() -> None:
    few, many, long = (choices([one], PRICES) for one in (load(30), load(30, readers=60), load(30, object_hours=49)))
    assert few is not None
    assert many is not None
    assert long is not None
    objects = 30 * 86_400 * 40
    assert many.default.usd_per_month - few.default.usd_per_month == pytest.approx(objects * 58 * 0.00003 / 1000)
    assert long.default.usd_per_month - few.default.usd_per_month == pytest.approx(30 * 3.6 * 48 * 0.11)


def test_a_zone_that_reads_once_counts_once_and_what_that_saves_is_told() -> None:
    many = BrokerLoad(1, 30, 2, 60, 1, zones=2)
    shared, alone = choices([many], PRICES), choices([replace(many, zone_reads=False)], PRICES)
    assert shared is not None
    assert alone is not None
    assert shared.default == (choices([load(30)], PRICES) or alone).default, "as two readers do"
    assert alone.default == (choices([load(30, readers=60)], PRICES) or shared).default
    assert shared.sharing is not None
    assert alone.sharing is not None
    assert (shared.sharing.is_on, alone.sharing.is_on) == (True, False)
    assert (shared.sharing.readers, shared.sharing.zones) == (60, 2)
    objects = 30 * 86_400_000 / shared.quickest_near.interval_ms
    assert shared.sharing.saved_usd == pytest.approx(objects * 58 * 0.00003 / 1000)
    assert shared.sharing.shared_usd == shared.quickest_near.usd_per_month
    assert alone.sharing.alone_usd == alone.quickest_near.usd_per_month
    low, high = shared.sharing.shared_break_even_mb_s, shared.sharing.alone_break_even_mb_s
    assert low is not None
    assert high is not None
    assert high > 2 * low


def test_where_each_zone_has_one_broker_there_is_nothing_to_share() -> None:
    found = choices([BrokerLoad(1, 30, 2, 2, 1, zones=2), load(30, 2)], PRICES)
    assert found is not None
    assert found.sharing is None


def test_a_topics_break_even_is_by_who_reads_its_objects() -> None:
    topic = replace(totals(30e6 * DAY_S, 100 * DAY_S, 1.0, 2.0), remote_followers=60, crossings=2, remote_zones=2)
    two = replace(topic, remote_followers=2)
    by_zone, each = (topic_verdict(topic, DAY_S, PRICES, zone_reads=shared) for shared in (True, False))
    assert by_zone.break_even_mb_s == topic_verdict(two, DAY_S, PRICES).break_even_mb_s
    assert each.break_even_mb_s is not None
    assert each.break_even_mb_s > 2 * (by_zone.break_even_mb_s or 0)


def test_curves_are_the_choices_for_each_gigabyte() -> None:
    loads = [load(30, 1), load(0.2, 2)]
    found = choices(loads, PRICES)
    assert found is not None
    gb = 30.2 * 3.6 * 720
    by_interval = {point.at: point for point in found.curves.over_interval_ms}
    assert all(by_interval[one.interval_ms].usd_gb * gb == pytest.approx(one.usd_per_month) for one in found.all)
    by_hours = {point.at: point for point in found.curves.over_retention_hours}
    assert by_hours[1] == replace(by_interval[25], at=1)
    assert by_hours[336].usd_gb == pytest.approx(found.curves.stock_usd_gb) == pytest.approx(0.04)
    assert by_hours[336].always_usd_gb > 0.05
    assert found.curves.over_rate_mb_s[0].usd_gb == pytest.approx(0.04), "a small load goes inline"
    assert found.curves.over_rate_mb_s[-1].usd_gb < 0.006


def test_without_followers_in_other_zones_there_is_nothing_to_choose() -> None:
    assert choices([BrokerLoad(1, 30, 0, 0, 1), BrokerLoad(2, 0, 2, 2, 1)], PRICES) is None


def test_advice_is_by_the_prices_of_the_store_in_use() -> None:
    topic = totals(30e6 * DAY_S, 100 * DAY_S, 1.0, 2.0)
    google, azure = PRICES.with_network("network_gcp"), PRICES.with_network("network_azure")
    alone = topic_verdict(topic, DAY_S, google, "gcs_standard").break_even_mb_s
    assert alone == pytest.approx(100 * (0.005 + 2 * 0.0004) / 1000 / (2 * 0.01) * 1e3, rel=0.005)
    assert topic_verdict(topic, DAY_S, azure, "azure_hot").break_even_mb_s is None
    on_google, on_azure = choices([load(30)], google, "gcs_standard"), choices([load(30)], azure, "azure_hot")
    assert on_google is not None
    assert on_azure is not None
    assert on_google.stock_usd_per_month == pytest.approx(30 * 3.6 * 720 * 2 * 0.01)
    assert on_azure.stock_usd_per_month == 0
    assert not on_azure.links_pay
    assert {choice.usd_per_month for choice in on_azure.all} == {0}, "nothing is uploaded"


def test_a_topics_break_even_counts_its_readers_crossings_and_storage() -> None:
    many = replace(totals(30e6 * DAY_S, 100 * DAY_S, 1.0, 2.0), remote_followers=60, crossings=2.0)
    found = topic_verdict(many, DAY_S, PRICES).break_even_mb_s
    assert found == pytest.approx(100 * (0.00113 + 60 * 0.00003) / 1000 / (2 * 0.0194 - 0.0032) * 1e3, rel=0.005)
    long_kept = topic_verdict(replace(many, object_hours=14 * 24), DAY_S, PRICES)
    assert long_kept.break_even_mb_s is None
    losing = replace(many, object_hours=14 * 24, remote_wal_usd=3.0)
    assert "links do not pay here" in topic_verdict(losing, DAY_S, PRICES).advice


def test_a_topics_rate_is_what_was_produced_and_not_what_was_uploaded() -> None:
    inline = replace(totals(0.0, 0.0, 0.99, 1.0), linked_bytes=0.0, inline_bytes=4e6, produced_bytes=2e6 * DAY_S)
    verdict = topic_verdict(inline, DAY_S, PRICES)
    assert verdict.rate_mb_s == 2
    assert "inline" in verdict.advice
