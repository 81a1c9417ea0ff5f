"""From the cost table to loads and verdicts: rates are of what was produced, and all who read count."""

import pytest
from pyspark.sql import SparkSession

from metadata_topic.records.usage_record import UsageRecord
from plugin.prices import PriceTable
from retention_job import schemas
from retention_job.cost.client_costs import CLIENT_PARTS, client_costs
from retention_job.cost.cost_tables import cost_by_topic, tiered_cost
from retention_job.cost.counted_usage import CountedUsage
from retention_job.cost.rates import DEFAULT_SECTIONS
from retention_job.page.cost_summary import CostFrames, group_reads, summarise
from retention_job.page.report_data import Costs
from tests.retention_job.cost.cost_history import (
    DAY_MS,
    FIRST_DAY,
    NOW_MS,
    TOPICS,
    CostHistory,
    Segment,
    random_history,
)

# Each of the sums is a job of Spark's; on a busy machine they take their time.
pytestmark = pytest.mark.timeout(300)

PRICES = PriceTable.load()
SECONDS = (NOW_MS - FIRST_DAY * DAY_MS) / 1000
FACTORS = {"orders": 4, "payments": 3, "clicks": 4}
RETENTION_MS = {"orders": 7_200_000, "payments": 3_600_000, "clicks": -1}
KEPT = {"clicks"}


@pytest.fixture(scope="module")
def history() -> CostHistory:
    """Of uploads that are not more than followers were given: else agents would have yet to tell of them."""
    found = random_history(5)
    for segment in found.segments:
        segment.entries = [(topic, partition, 1 + size // 100) for topic, partition, size in segment.entries]
        segment.elsewhere_bytes = (segment.elsewhere_bytes or 0) // 100
    return found


@pytest.fixture(scope="module")
def costs(spark: SparkSession, history: CostHistory) -> Costs:
    return _summarised(spark, history)


def _summarised(spark: SparkSession, history: CostHistory) -> Costs:
    sources = history.sources(spark)
    rows = [
        (
            bytearray(topic_id), name, 1, FACTORS[name], True, "cost", False, "delete", 1, 1, RETENTION_MS[name],
            name in KEPT, -1, -1, False,
        )
        for topic_id in TOPICS
        for name in [topic_id.decode().strip()]
    ]  # fmt: skip
    counted = CountedUsage.of(sources.counters)
    frames = CostFrames(
        cost_by_topic(sources, PRICES, counted=counted),
        tiered_cost(sources.tiered, PRICES, NOW_MS),
        SECONDS,
        client_costs(counted, PRICES),
    )
    return summarise(frames, PRICES, DEFAULT_SECTIONS, spark.createDataFrame(rows, schemas.TOPICS))


def test_rates_are_of_what_followers_were_given(costs: Costs) -> None:
    by_name = {topic.topic: topic for topic in costs.topics}
    assert set(by_name) == set(FACTORS)
    for name, topic in by_name.items():
        given = (topic.linked_bytes or 0) + (topic.inline_bytes or 0)
        assert topic.produced_bytes == pytest.approx(given / (FACTORS[name] - 1))
        assert topic.crossings is not None
        assert 0 < topic.crossings <= FACTORS[name] - 1
        assert topic.is_kept == (name in KEPT)
        assert topic.object_hours == (0 if name in KEPT else RETENTION_MS[name] / 3_600_000)
    rates = {verdict.topic: verdict.rate_mb_s for verdict in costs.verdicts}
    assert rates["orders"] == pytest.approx((by_name["orders"].produced_bytes or 0) / SECONDS / 1e6)


def test_a_group_that_reads_it_all_from_leaders_crosses_but_for_its_own_zones_part(costs: Costs) -> None:
    produced = sum(broker.amounts["produced_bytes"] or 0 for broker in costs.brokers)
    reads = group_reads(costs.brokers, PRICES)
    assert reads == costs.group
    assert reads is not None
    assert reads.zones > 1
    assert reads.crossed_bytes == pytest.approx(produced * (reads.zones - 1) / reads.zones)
    assert reads.crossed_usd == pytest.approx(reads.crossed_bytes * 0.02 / 1e9)
    assert group_reads([], PRICES) is None


def test_clients_stand_by_zone_and_in_the_days_sums(costs: Costs) -> None:
    assert [one.zone for one in costs.clients] == ["a", "b"]
    of = [one.dollars for one in costs.clients]
    assert sum(costs.parts[part] for part in CLIENT_PARTS) == pytest.approx(sum(one["gateway_usd"] for one in of))
    replication_usd = sum(broker.stock_usd or 0 for broker in costs.brokers)
    assert costs.stock_usd == pytest.approx(replication_usd + sum(one["direct_usd"] for one in of))


def test_a_brokers_load_has_all_who_read_and_the_longest_life(costs: Costs) -> None:
    """Brokers 1 and 3 share a zone, and broker 4 has none; it publishes no usage."""
    readers = {broker.broker_id: broker.amounts["remote_followers"] for broker in costs.brokers}
    assert {1: readers[1], 2: readers[2], 3: readers[3]} == {1: 2, 2: 3, 3: 2}
    zones = {broker.broker_id: broker.amounts["remote_zones"] for broker in costs.brokers}
    assert {1: zones[1], 2: zones[2], 3: zones[3]} == {1: 2, 2: 2, 3: 2}, "one of its own for broker 4"
    assert {topic.remote_zones for topic in costs.topics} == {2}
    assert {broker.amounts["object_hours"] for broker in costs.brokers} == {2}
    assert costs.choices is not None
    assert costs.choices.brokers == 3
    assert costs.choices.sharing is not None
    assert costs.choices.sharing.readers > costs.choices.sharing.zones == pytest.approx(2)
    assert costs.choices.inline_brokers == (1, 2, 3), "some bytes a second"


def test_what_agents_have_yet_to_tell_is_neither_a_loss_nor_advice(spark: SparkSession) -> None:
    """Each agent has told of itself, and of nothing that it moved: the load began after that."""
    uploads = [Segment(1, number, FIRST_DAY * DAY_MS + number, None, [(TOPICS[0], 0, 10**6)]) for number in range(3)]
    day_ms = FIRST_DAY * DAY_MS
    before = [UsageRecord(1, 7, number, day_ms + number, day_ms, "a", (), (), ()) for number in range(2)]
    costs = _summarised(spark, CostHistory(uploads, records=before))
    assert costs.saved_usd is None
    assert not costs.days[0].is_complete
    assert all(day.saved_usd is None for day in costs.days)
    (verdict,) = costs.verdicts
    assert verdict.saved_usd is None
    assert verdict.advice == "unknown: usage records of its leaders' agents do not tell, or not yet"
    assert costs.choices is None
