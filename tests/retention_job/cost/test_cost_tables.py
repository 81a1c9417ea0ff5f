"""Costs by topic, broker and day, and of gateways' clients by zone and day, held against plain Python."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from kafka_log.topic_partition import TopicId
from metadata_topic.records.usage_record import (
    ClientUsage,
    ClientZoneUsage,
    RouterUsage,
    StoreUsage,
    TopicUsage,
    UsageRecord,
)
from plugin.prices import PriceError, Prices, PriceTable
from retention_job import schemas
from retention_job.cost.cost_tables import (
    AMOUNTS,
    CLIENT_AMOUNTS,
    CLIENT_PARTS,
    DOLLARS,
    client_costs,
    cost_by_topic,
)
from retention_job.cost.stored_objects import tiered_cost
from retention_job.cost.usage_table import CountedUsage, amounts_by_day, latest
from retention_job.settings import StoreSections
from tests.retention_job.cost.cost_history import (
    DAY_MS,
    FIRST_DAY,
    NOW_MS,
    TOPICS,
    CostHistory,
    PlainCosts,
    plain_costs,
    random_history,
)

# Each of the sums is a job of Spark's; on a busy machine they take their time.
pytestmark = pytest.mark.timeout(300)

PRICES = PriceTable.load()
GB = 10**9
Rows = dict[tuple[TopicId | None, int, int], Mapping[str, float]]


def rows_of(costs: DataFrame) -> Rows:
    return {
        (None if row.topic_id is None else TopicId(bytes(row.topic_id)), row.broker_id, row.day): row.asDict()
        for row in costs.collect()
    }


@pytest.fixture(scope="module")
def history() -> CostHistory:
    return random_history(seed=7)


@pytest.fixture(scope="module")
def plain(history: CostHistory) -> PlainCosts:
    return plain_costs(history)


@pytest.fixture(scope="module")
def found(spark: SparkSession, history: CostHistory) -> Rows:
    return rows_of(cost_by_topic(history.sources(spark), PRICES))


@pytest.mark.gate
def test_amounts_are_those_of_an_independent_computation(found: Rows, plain: PlainCosts) -> None:
    nothing: dict[str, float] = {}
    for key in found.keys() | plain.amounts.keys():
        row, expected = found.get(key), plain.amounts.get(key, nothing)
        if row is None:
            assert not any(expected.get(name) for name in AMOUNTS), key
            continue
        for name in AMOUNTS:
            if row[name] is None:
                assert key[1:] not in plain.days_known
            else:
                assert row[name] == pytest.approx(expected.get(name, 0), rel=1e-9, abs=1e-6), (key, name)


def test_dollars_are_amounts_times_prices(found: Rows, plain: PlainCosts) -> None:
    prices = Prices.load()
    express, standard, gb_month = prices.s3_express, prices.s3_standard, 1e9 * 720 * 3_600_000
    unknown = {key for key, row in found.items() if row["remote_wal_usd"] is None}
    assert unknown == {key for key in found if key[1:] not in plain.days_known}
    for key in found.keys() - unknown:
        row, amounts = found[key], plain.amounts[key]
        paid = (
            amounts["puts"] * express.put_per_1000 / 1000
            + amounts["gets"] * express.get_per_1000 / 1000
            + amounts["upload_bytes"] / 1e9 * express.upload_gb
            + amounts["retrieval_bytes"] / 1e9 * express.retrieval_gb
            + amounts["stored_byte_ms"] / gb_month * express.storage_gb_month
            + (amounts["inline_remote_bytes"] + amounts["protocol_bytes"]) / 1e9 * prices.zone_crossing_gb
            + amounts["archive_puts"] * standard.put_per_1000 / 1000
            + amounts["archive_gets"] * standard.get_per_1000 / 1000
            + amounts["archive_stored_byte_ms"] / gb_month * standard.storage_gb_month
        )
        records = amounts["linked_remote_bytes"] + amounts["plain_remote_bytes"]
        stock = (records + amounts["protocol_stock_bytes"]) / 1e9 * prices.zone_crossing_gb
        assert row["remote_wal_usd"] == pytest.approx(paid, rel=1e-9, abs=1e-15)
        assert row["remote_wal_usd"] == pytest.approx(sum(row[name] for name in DOLLARS))
        assert row["saved_usd"] == pytest.approx(stock - paid, rel=1e-6, abs=1e-12)


def test_an_archive_in_the_same_store_is_no_request_beside_the_objects(
    spark: SparkSession, history: CostHistory, found: Rows
) -> None:
    both = StoreSections(archive="s3_express")
    records = [replace(record, stores=record.stores[:1]) for record in history.records]
    one_store = CostHistory(history.segments, history.archived, records)
    priced = rows_of(cost_by_topic(one_store.sources(spark), PRICES, both))
    prices, gb_month = PRICES.store("s3_express"), 1e9 * 720 * 3_600_000
    compared = 0
    for (topic_id, broker_id, day), row in found.items():
        if topic_id is not None:
            same = priced[topic_id, broker_id, day]
            assert same["archive_puts"] == row["archive_puts"]
            assert same["archive_storage_usd"] == pytest.approx(
                row["archive_stored_byte_ms"] / gb_month * prices.storage_gb_month
            )
            continue
        made = sum(r["archive_puts"] for (t, b, d), r in found.items() if t is not None and (b, d) == (broker_id, day))
        beside = priced[None, broker_id, day]
        assert beside["archive_puts"] == 0
        if beside["puts"] > made:  # not all that was counted is told of
            assert beside["puts"] == pytest.approx(row["puts"] - made)
            compared += made > 0
    assert compared


def test_all_gets_are_shared_out(found: Rows, history: CostHistory, plain: PlainCosts) -> None:
    last = {(r.broker_id, r.incarnation): r for r in sorted(history.records, key=lambda r: r.sequence)}
    made = sum(record.stores[0].get + record.stores[0].head for record in last.values())
    of_clients = sum(row["gets"] + row["consumer_gets"] for row in plain.clients.values())
    assert sum(row["gets"] or 0 for row in found.values()) == pytest.approx(made - of_clients)


def test_without_usage_what_it_would_tell_is_unknown_and_not_nothing(found: Rows) -> None:
    rows = [row for (topic_id, broker_id, _), row in found.items() if broker_id == 4 and topic_id is not None]
    assert any(row["puts"] > 0 and row["put_usd"] > 0 for row in rows)
    assert {row[name] for row in rows for name in ("linked_bytes", "crossing_usd", "remote_wal_usd", "saved_usd")} == {
        None
    }


def test_amounts_are_differences_whatever_was_lost(spark: SparkSession) -> None:
    def record(broker_id: int, sequence: int, puts: int) -> UsageRecord:
        at_ms = FIRST_DAY * DAY_MS + sequence * 600_000
        return UsageRecord(broker_id, 1, sequence, at_ms, 0, "a", (StoreUsage("s3_express", puts, *[0] * 6),), (), ())

    baseline_cut_off = [record(1, 5, 1000), record(1, 6, 1003), record(1, 8, 1010)]
    counter_begun_anew = [record(2, 0, 0), record(2, 1, 50), record(2, 2, 20)]
    history = CostHistory(records=[*baseline_cut_off, *counter_begun_anew])
    amounts = amounts_by_day(history.sources(spark).counters).where("kind = 'store'").collect()
    assert {(row.broker_id, row.day): row.a1 for row in amounts} == {(1, FIRST_DAY): 10, (2, FIRST_DAY): 70}


def test_a_record_of_which_only_a_later_part_is_left_is_unknown(spark: SparkSession) -> None:
    whole = [
        agent(1, one, StoreUsage("s3_express", 990 + one, *[0] * 6), [TopicUsage(TOPICS[0], 2, 900 + one, 0, 0)])
        for one in (3, 4, 5)
    ]
    records = [replace(whole[0], stores=(), is_rest=True), *whole[1:]]
    amounts = amounts_by_day(CostHistory(records=records).sources(spark).counters).collect()
    assert {(row.kind, row.a1) for row in amounts} == {("agent", 0), ("store", 1), ("topic", 1)}


def test_an_archive_with_the_wal_stores_prices_may_stop_first(spark: SparkSession) -> None:
    """The last record of an agent has no archive store."""
    counted = [((100, 10), 0), ((26_000, 40), 1), ((26_100,), 2)]
    records = [
        UsageRecord(
            1, 1, sequence, FIRST_DAY * DAY_MS + sequence, 0, "a",
            tuple(StoreUsage("s3_standard", puts, *[0] * 6) for puts in stores), (), (),
        )
        for stores, sequence in counted
    ]  # fmt: skip
    usage = CountedUsage.of(CostHistory(records=records).sources(spark).counters)
    assert [row.a1 for row in usage.store_by_day("s3_standard").collect()] == [26_140]


@pytest.mark.gate
def test_an_incremental_run_counts_what_the_runs_before_it_did_not(
    spark: SparkSession, history: CostHistory, found: Rows
) -> None:
    middle_ms = (FIRST_DAY + 1) * DAY_MS + DAY_MS // 2 + 1
    early = CostHistory(
        [
            replace(s, deleted_ms=s.deleted_ms if s.deleted_ms and s.deleted_ms < middle_ms else None)
            for s in history.segments
            if s.finished_ms < middle_ms
        ],
        [],
        [r for r in history.records if r.event_timestamp_ms < middle_ms],
    )
    late = CostHistory(
        [
            replace(s, is_new=s.finished_ms >= middle_ms)
            for s in history.segments
            if s.deleted_ms is None or s.deleted_ms >= middle_ms
        ],
        [],
        [r for r in history.records if r.event_timestamp_ms >= middle_ms],
    )
    carried = latest(early.sources(spark).counters)
    second = late.sources(spark, counted_until_ms=middle_ms)
    second = replace(second, counters=second.counters.unionByName(carried))
    names = ("objects", "upload_bytes", "stored_byte_ms", "linked_bytes", "inline_remote_bytes", "protocol_bytes")

    def total(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
        rows = list(rows)
        return {name: sum(row.get(name) or 0 for row in rows) for name in names}

    before = total(plain_costs(early, middle_ms).amounts.values())
    now = total(rows_of(cost_by_topic(second, PRICES)).values())
    assert {name: before[name] + now[name] for name in names} == pytest.approx(total(found.values()))


def test_tiered_storage_is_paid_by_the_byte_hour(spark: SparkSession) -> None:
    day = FIRST_DAY * DAY_MS
    row = (bytearray(TOPICS[0]), 0, bytearray(16), 1, 0, 9, 10**9, None, day + DAY_MS // 2, None, None)
    tiered = spark.createDataFrame([row], schemas.TIERED)
    found = {r.day: r.storage_usd for r in tiered_cost(tiered, PRICES, NOW_MS).collect()}
    assert found[FIRST_DAY] == pytest.approx(0.023 / 60)
    assert found[FIRST_DAY + 1] == pytest.approx(0.023 / 30)
    assert sorted(found) == [FIRST_DAY, FIRST_DAY + 1, FIRST_DAY + 2, FIRST_DAY + 3]


@pytest.mark.gate
def test_a_missing_price_stops_the_computation(spark: SparkSession, tmp_path: Path) -> None:
    text = Path("plugin/prices.toml").read_text().replace("retrieval_gb = 0.0006", "")
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(PriceError, match=r"s3_express\.retrieval_gb"):
        cost_by_topic(random_history(1, 3).sources(spark), PriceTable.load(file))


# Gateways' clients.


ByZone = dict[tuple[str, int], Mapping[str, float]]


def clients_of(spark: SparkSession, history: CostHistory) -> ByZone:
    costs = client_costs(CountedUsage.of(history.sources(spark).counters), PRICES)
    return {(row.zone, row.day): row.asDict() for row in costs.collect()}


@pytest.fixture(scope="module")
def by_zone(spark: SparkSession, history: CostHistory) -> ByZone:
    return clients_of(spark, history)


@pytest.mark.gate
def test_clients_amounts_are_those_of_an_independent_computation(by_zone: ByZone, plain: PlainCosts) -> None:
    assert {zone for zone, _ in by_zone} == {"a", "b"}
    assert by_zone.keys() == plain.clients.keys()
    for key, row in by_zone.items():
        for name in CLIENT_AMOUNTS:
            assert row[name] == pytest.approx(plain.clients[key][name], rel=1e-9, abs=1e-6), (key, name)


def test_clients_dollars_are_amounts_times_prices(by_zone: ByZone) -> None:
    prices = Prices.load()
    express, crossing = prices.s3_express, prices.zone_crossing_gb / GB
    for row in by_zone.values():
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


def with_clients(record: UsageRecord, router: RouterUsage, *zones: ClientZoneUsage) -> UsageRecord:
    return replace(record, clients=ClientUsage(record.rack or "", "s3_express", router, zones))


def test_what_went_by_the_gateway_is_saved_and_is_no_topics_cost(spark: SparkSession) -> None:
    """A gigabyte of zone az1's producers in a thousand objects, another to its consumers out of what followers read."""
    topic, nothing = TopicId(b"t".ljust(16)), StoreUsage("s3_express", *[0] * 7)
    gateway = [agent(1, 0, nothing), agent(1, 1, StoreUsage("s3_express", 1000, 500, 0, 0, 0, GB, 2 * GB))]
    leader = [
        agent(2, 0, nothing, rack="az2"),
        agent(2, 1, StoreUsage("s3_express", 0, 1000, 0, 0, 0, 0, GB), [TopicUsage(topic, 3, GB, 0, 0)], "az2"),
    ]
    records = [
        with_clients(gateway[0], RouterUsage()),
        with_clients(gateway[1], RouterUsage(1000, 0, GB, 0), ClientZoneUsage("az1", GB, 0, GB, 0)),
        with_clients(leader[0], RouterUsage()),
        with_clients(leader[1], RouterUsage(0, 1000, 0, GB), ClientZoneUsage("az1", near_bytes=GB // 4)),
    ]
    sources = CostHistory(records=records).sources(spark)
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


def test_without_gateways_clients_cost_nothing(spark: SparkSession, history: CostHistory) -> None:
    records = [replace(record, clients=None) for record in history.records]
    assert clients_of(spark, CostHistory(records=records)) == {}


def test_an_incremental_run_goes_on_with_clients_where_the_one_before_stopped(spark: SparkSession) -> None:
    nothing = StoreUsage("s3_express", *[0] * 7)
    records = [
        with_clients(
            agent(1, sequence, nothing), RouterUsage(sequence), ClientZoneUsage("az1", 1000 * sequence, 100 * sequence)
        )
        for sequence in range(4)
    ]
    first, second = (CostHistory(records=some).sources(spark) for some in (records[:2], records[2:]))
    carried = second.counters.unionByName(latest(first.counters))
    [before] = client_costs(CountedUsage.of(first.counters), PRICES).collect()
    [now] = client_costs(CountedUsage.of(carried), PRICES).collect()
    assert before.sent_bytes + now.sent_bytes == 3000
    assert before.puts + now.puts == 3
