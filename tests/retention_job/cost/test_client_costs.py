"""What clients of gateways cost by zone and day, held against plain Python."""

from collections.abc import Iterable, Mapping

import pytest
from pyspark.sql import SparkSession

from kafka_log.topic_partition import TopicId
from metadata_topic.records.client_usage_record import ClientUsageRecord, ClientZoneUsage, RouterUsage
from metadata_topic.records.usage_record import StoreUsage, TopicUsage, UsageRecord
from plugin.prices import Prices, PriceTable
from retention_job.cost.client_costs import CLIENT_AMOUNTS, CLIENT_PARTS, client_costs
from retention_job.cost.cost_tables import cost_by_topic
from retention_job.cost.counted_usage import CountedUsage
from retention_job.cost.usage_table import latest
from tests.retention_job.cost.cost_history import (
    DAY_MS,
    FIRST_DAY,
    CostHistory,
    PlainCosts,
    plain_costs,
    random_history,
)

# Each of the sums is a job of Spark's; on a busy machine they take their time.
pytestmark = pytest.mark.timeout(300)

PRICES = PriceTable.load()
GB = 10**9
Rows = dict[tuple[str, int], Mapping[str, float]]


@pytest.fixture(scope="module")
def history() -> CostHistory:
    return random_history(seed=11)


@pytest.fixture(scope="module")
def plain(history: CostHistory) -> PlainCosts:
    return plain_costs(history)


def rows_of(spark: SparkSession, history: CostHistory) -> Rows:
    costs = client_costs(CountedUsage.of(history.sources(spark).counters), PRICES)
    return {(row.zone, row.day): row.asDict() for row in costs.collect()}


@pytest.fixture(scope="module")
def found(spark: SparkSession, history: CostHistory) -> Rows:
    return rows_of(spark, history)


@pytest.mark.gate
def test_amounts_are_those_of_an_independent_computation(found: Rows, plain: PlainCosts) -> None:
    assert {zone for zone, _ in found} == {"a", "b"}
    assert found.keys() == plain.clients.keys()
    for key, row in found.items():
        for name in CLIENT_AMOUNTS:
            assert row[name] == pytest.approx(plain.clients[key][name], rel=1e-9, abs=1e-6), (key, name)


def test_dollars_are_amounts_times_prices(found: Rows) -> None:
    prices = Prices.load()
    express, crossing = prices.s3_express, prices.zone_crossing_gb / GB
    for row in found.values():
        paid = (
            row["puts"] * express.put_per_1000 / 1000
            + row["upload_bytes"] / GB * express.upload_gb
            + (row["gets"] + row["consumer_gets"]) * express.get_per_1000 / 1000
            + (row["retrieval_bytes"] + row["consumer_retrieval_bytes"]) / GB * express.retrieval_gb
            + (row["sent_crossed_bytes"] + row["given_crossed_bytes"]) * crossing
        )
        direct = (row["sent_bytes"] + row["given_bytes"]) * crossing
        assert row["gateway_usd"] == pytest.approx(paid)
        assert row["gateway_usd"] == pytest.approx(sum(row[name] for names in CLIENT_PARTS.values() for name in names))
        assert row["direct_usd"] == pytest.approx(direct)
        assert row["saved_usd"] == pytest.approx(direct - paid)
        assert row["follower_fetching_usd"] == pytest.approx(direct - row["near_bytes"] * crossing)
        assert row["follower_fetching_least_usd"] == pytest.approx(
            direct - (row["near_bytes"] + row["untold_bytes"]) * crossing
        )


def agent(
    broker_id: int, sequence: int, store: StoreUsage, topics: Iterable[TopicUsage] = (), rack: str = "az1"
) -> UsageRecord:
    at_ms = FIRST_DAY * DAY_MS + sequence * 600_000
    return UsageRecord(broker_id, 1, sequence, at_ms, 0, rack, (store,), (), tuple(topics))


def beside(record: UsageRecord, router: RouterUsage, *zones: ClientZoneUsage) -> ClientUsageRecord:
    return ClientUsageRecord(
        record.broker_id, record.incarnation, record.sequence, record.event_timestamp_ms, record.rack or "",
        "s3_express", router, zones,
    )  # fmt: skip


def test_what_went_by_the_gateway_is_saved_and_is_no_topics_cost(spark: SparkSession) -> None:
    """A gigabyte of zone az1's producers in a thousand objects, another to its consumers out of what followers read."""
    topic, nothing = TopicId(b"t".ljust(16)), StoreUsage("s3_express", *[0] * 7)
    gateway = [agent(1, 0, nothing), agent(1, 1, StoreUsage("s3_express", 1000, 500, 0, 0, 0, GB, 2 * GB))]
    leader = [
        agent(2, 0, nothing, rack="az2"),
        agent(2, 1, StoreUsage("s3_express", 0, 1000, 0, 0, 0, 0, GB), [TopicUsage(topic, 3, GB, 0)], "az2"),
    ]
    clients = [
        beside(gateway[0], RouterUsage()),
        beside(gateway[1], RouterUsage(1000, 0, GB, 0), ClientZoneUsage("az1", GB, 0, GB, 0)),
        beside(leader[0], RouterUsage()),
        beside(leader[1], RouterUsage(0, 1000, 0, GB), ClientZoneUsage("az1", near_bytes=GB // 4)),
    ]
    with_gateway = CostHistory(records=[*gateway, *leader], clients=clients)
    sources = with_gateway.sources(spark)
    counted = CountedUsage.of(sources.counters)
    [row] = client_costs(counted, PRICES).collect()
    assert (row.zone, row.puts, row.upload_bytes, row.gets, row.retrieval_bytes) == ("az1", 1000, GB, 1000, GB)
    assert (row.consumer_gets, row.consumer_retrieval_bytes) == (250, GB), "half of all that was linked is theirs"
    assert row.direct_usd == pytest.approx(0.04)
    assert row.follower_fetching_usd == row.follower_fetching_least_usd == pytest.approx(0.035)
    assert row.saved_usd > 0.03
    topics = {None if row.topic_id is None else bytes(row.topic_id): row for row in
              cost_by_topic(sources, PRICES, counted=counted).collect()}  # fmt: skip
    assert (topics[topic].gets, topics[topic].retrieval_bytes) == (250, GB)
    assert topics[topic].saved_usd > 0
    assert None not in topics or topics[None].remote_wal_usd == 0

    # Agents that do not tell of clients, as of a release before: the router's requests stand without a topic.
    older = CostHistory(records=with_gateway.records)
    beside_topics = {
        row.broker_id: row for row in cost_by_topic(older.sources(spark), PRICES).collect() if not row.topic_id
    }
    assert beside_topics[1].puts == 1000
    assert rows_of(spark, older) == {}


def test_days_without_any_record_beside_cost_clients_nothing(spark: SparkSession, history: CostHistory) -> None:
    assert rows_of(spark, CostHistory(records=history.records)) == {}


@pytest.mark.parametrize("read_with_the_first", [True, False], ids=["with its usage record", "after it"])
def test_an_incremental_run_goes_on_wherever_the_one_before_stopped(
    spark: SparkSession, read_with_the_first: bool
) -> None:
    nothing = StoreUsage("s3_express", *[0] * 7)
    records = [agent(1, sequence, nothing) for sequence in range(4)]
    clients = [
        beside(record, RouterUsage(sequence), ClientZoneUsage("az1", 1000 * sequence, 100 * sequence))
        for sequence, record in enumerate(records)
    ]
    at = 2 if read_with_the_first else 1
    first = CostHistory(records=records[:2], clients=clients[:at]).sources(spark)
    second = CostHistory(records=records[2:], clients=clients[at:]).sources(spark)
    carried = second.counters.unionByName(latest(first.counters))
    [before] = client_costs(CountedUsage.of(first.counters), PRICES).collect() or [None]
    [now] = client_costs(CountedUsage.of(carried), PRICES).collect()
    assert (before.sent_bytes if before else 0) + now.sent_bytes == 3000
    assert (before.puts if before else 0) + now.puts == 3
