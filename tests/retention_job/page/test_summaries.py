"""From the cost table to sums by topic, broker and day; all who read count."""

import pytest
from pyspark.sql import SparkSession

from metadata_topic.records.usage_record import FollowerUsage, TopicUsage, UsageRecord
from plugin.prices import PriceTable
from retention_job import schemas
from retention_job.cost.cost_tables import CLIENT_PARTS, client_costs, cost_by_topic
from retention_job.cost.stored_objects import tiered_cost
from retention_job.cost.usage_table import CountedUsage
from retention_job.page.report_data import Costs
from retention_job.page.summaries import group_reads, summarise_costs
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
        (bytearray(topic_id), name, FACTORS[name], True, False, "delete", RETENTION_MS[name])
        for topic_id in TOPICS
        for name in [topic_id.decode().strip()]
    ]
    counted = CountedUsage.of(sources.counters)
    return summarise_costs(
        cost_by_topic(sources, PRICES, counted=counted),
        tiered_cost(sources.tiered, PRICES, NOW_MS),
        client_costs(counted, PRICES),
        SECONDS,
        PRICES,
        spark.createDataFrame(rows, schemas.TOPICS),
    )


def test_topics_have_what_their_days_add_up_to(costs: Costs) -> None:
    assert {topic.topic for topic in costs.topics} == set(FACTORS)
    known = [topic for topic in costs.topics if topic.saved_usd is not None]
    for topic in known:
        assert topic.unknown_days == 0
        assert topic.saved_usd == pytest.approx((topic.stock_usd or 0) - (topic.remote_wal_usd or 0))


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


def test_a_broker_has_all_who_read(costs: Costs) -> None:
    """Brokers 1 and 3 share a zone, and broker 4 has none; it publishes no usage."""
    readers = {broker.broker_id: broker.amounts["remote_followers"] for broker in costs.brokers}
    assert {1: readers[1], 2: readers[2], 3: readers[3]} == {1: 2, 2: 3, 3: 2}
    zones = {broker.broker_id: broker.amounts["remote_zones"] for broker in costs.brokers}
    assert {1: zones[1], 2: zones[2], 3: zones[3]} == {1: 2, 2: 2, 3: 2}, "one of its own for broker 4"


def test_what_packing_saves_is_the_topics_own_and_no_sign_of_missing_records(spark: SparkSession) -> None:
    """All is stored as long as the log, and goes inline to three followers, packed ten times."""
    uploads = [Segment(1, number, FIRST_DAY * DAY_MS + number, None, [(TOPICS[0], 0, 10**6)]) for number in range(3)]
    day_ms = FIRST_DAY * DAY_MS
    followers = tuple(FollowerUsage(one, 3 * 10**5, 3 * 10**6) for one in (2, 3, 4))
    topics = tuple(TopicUsage(TOPICS[0], one, 0, 3 * 10**5, 3 * 10**6) for one in (2, 3, 4))
    told = [
        UsageRecord(1, 7, 0, day_ms, day_ms, "a", (), (), ()),
        UsageRecord(1, 7, 1, day_ms + DAY_MS // 2, day_ms, "a", (), followers, topics),
    ]
    costs = _summarised(spark, CostHistory(uploads, records=told))
    assert costs.days[0].is_complete
    (topic,) = costs.topics
    stock_usd = 9 * 10**6 * 0.02 / 1e9
    assert topic.stock_usd == pytest.approx(stock_usd)
    assert topic.saved_usd is not None
    assert topic.saved_usd > stock_usd / 2
    assert [broker.amounts["produced_bytes"] for broker in costs.brokers] == [3 * 10**6]


def test_what_agents_have_yet_to_tell_is_no_loss(spark: SparkSession) -> None:
    """Each agent has told of itself, and of nothing that it moved: the load began after that."""
    uploads = [Segment(1, number, FIRST_DAY * DAY_MS + number, None, [(TOPICS[0], 0, 10**6)]) for number in range(3)]
    day_ms = FIRST_DAY * DAY_MS
    before = [UsageRecord(1, 7, number, day_ms + number, day_ms, "a", (), (), ()) for number in range(2)]
    costs = _summarised(spark, CostHistory(uploads, records=before))
    assert costs.saved_usd is None
    assert all(day.saved_usd is None for day in costs.days)
    assert not costs.days[0].is_complete, "on the others the objects are only kept"
    assert [dict(day.has_usage) for day in costs.days] == [{1: False}, {}, {}, {}]
    (topic,) = costs.topics
    assert topic.saved_usd is None
