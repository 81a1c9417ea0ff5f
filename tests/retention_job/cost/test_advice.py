"""Advice: what follows from a topic's and the brokers' figures."""

import pytest

from plugin.prices import PriceTable
from retention_job.cost.advice import BrokerLoad, TopicTotals, choices, topic_verdict

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
    assert saved_usd == pytest.approx(requests_usd)
    assert verdict.break_even_mb_s == pytest.approx(3.3, rel=0.02)
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
    found = choices([BrokerLoad(30, 2, 1), BrokerLoad(2, 2, 1)], PRICES)
    assert found is not None
    assert found.cheapest.usd_per_month == min(choice.usd_per_month for choice in found.all)
    assert found.quickest_near.usd_per_month <= 1.1 * found.cheapest.usd_per_month
    quicker = [c for c in found.all if c.buckets == found.cheapest.buckets
               and c.interval_ms < found.quickest_near.interval_ms]  # fmt: skip
    assert quicker
    assert all(choice.usd_per_month > 1.1 * found.cheapest.usd_per_month for choice in quicker)
    assert found.cheapest.buckets == 1


def test_a_read_fee_can_make_more_buckets_the_cheapest() -> None:
    sections = {name: dict(section) for name, section in PRICES.sections.items()}
    sections["network"]["express_cross_zone_read_gb"] = 0.019
    found = choices([BrokerLoad(30, 2, 1)], PriceTable("test", "2026-01-01", sections))
    assert found is not None
    assert found.cheapest.buckets == 3


def test_without_followers_in_other_zones_there_is_nothing_to_choose() -> None:
    assert choices([BrokerLoad(30, 0, 1), BrokerLoad(0, 2, 1)], PRICES) is None


def test_advice_is_by_the_prices_of_the_store_in_use() -> None:
    topic, load = totals(30e6 * DAY_S, 100 * DAY_S, 1.0, 2.0), BrokerLoad(30, 2, 1)
    google, azure = PRICES.with_network("network_gcp"), PRICES.with_network("network_azure")
    alone = topic_verdict(topic, DAY_S, google, "gcs_standard").break_even_mb_s
    assert alone == pytest.approx(100 * (0.005 + 2 * 0.0004) / 1000 / (2 * 0.01) * 1e3)
    assert topic_verdict(topic, DAY_S, azure, "azure_hot").break_even_mb_s is None
    on_google, on_azure = choices([load], google, "gcs_standard"), choices([load], azure, "azure_hot")
    assert on_google is not None
    assert on_azure is not None
    assert on_google.stock_usd_per_month == pytest.approx(30 * 3.6 * 720 * 2 * 0.01)
    assert on_azure.stock_usd_per_month == 0
