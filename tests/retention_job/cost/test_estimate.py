"""The estimate of a cluster's costs: of made samples, beside the agents' own code on a virtual clock."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from perf.cost.load import Load
from perf.cost.sweep import price
from plugin.prices import Prices, PriceTable
from retention_job.cost.cost_model import Rules, Where
from retention_job.cost.estimate import KAFKA_TOPICS, WAYS, Log, Sample, estimate, estimate_json
from rlm.write_path.commit.constants import PAYS_TIMES

PRICES = PriceTable.load()
MONTH_S = 30 * 86_400
RACKS: dict[int, str | None] = {1: "az1", 2: "az2", 3: "az3"}
RULES = Rules(0.025, 0.1, 1.0, 4 * 1024 * 1024, 3600.0, True)
FREE = replace(RULES, producers_wait=False)


def logs(rate: float, at_s: float, topic: str = "orders", replicas: tuple[int, ...] = (1, 2, 3)) -> dict[Where, Log]:
    """Twelve partitions of 1,000-byte records that the first replica leads."""
    records = round(rate / 12 / 1000 * at_s) + 10
    return {(topic, one): Log(replicas[0], replicas, 0, records, records * 1000) for one in range(12)}


def two(rate: float, racks: Mapping[int, str | None] = RACKS, **placed: object) -> list[Sample]:
    return [Sample(at_s, racks, logs(rate, at_s, **placed), {}) for at_s in (0.0, 12.0)]  # type: ignore[arg-type]


def test_today_each_byte_pays_both_sides_for_each_follower_elsewhere() -> None:
    found = estimate(two(1e6), PRICES, "s3_express", RULES).total
    gb = 1e6 * MONTH_S / 1e9
    assert found.produced_bytes == pytest.approx(gb * 1e9)
    assert found.replication["today"] == pytest.approx(gb * 2 * 0.02)
    assert found.clients["today"] == pytest.approx(gb * 2 / 3 * 0.02)


@pytest.mark.parametrize(
    ("rate", "acks_all", "least", "most"),
    [
        (0.6e6, False, 1.0, 1.15),
        (5e6, False, 0.95, 1.05),
        (0.3e6, True, 1.0, 1.0),
        (2e6, True, 1.0, 1.4),  # the agents find that larger objects hold nobody up either
        (5e6, True, 0.95, 1.05),
    ],
)
def test_with_links_it_comes_to_what_the_agents_own_decisions_cost(
    rate: float, acks_all: bool, least: float, most: float
) -> None:
    found = estimate(two(rate), PRICES, "s3_express", RULES if acks_all else FREE).total
    usd_gb = found.replication["links"] / (found.produced_bytes / 1e9)
    counted = price(Load(rate, "steady", acks_all), 10.0, Prices.load(), after_s=18.0).linked_usd_gb
    assert least - 1e-6 < usd_gb / counted < most + 1e-6


def test_small_loads_stay_inline_and_cost_what_they_cost() -> None:
    found = estimate(two(100e3), PRICES, "s3_express", FREE)
    assert found.total.replication["links"] == pytest.approx(found.total.replication["today"])
    assert found.total.linked_share == 0
    assert list(found.total.inline) == ["load"]
    assert found.break_even_bytes is not None
    assert found.break_even_mb_s == pytest.approx(PAYS_TIMES * found.break_even_bytes / 0.1 / 1e6)
    waiting = estimate(two(100e3), PRICES, "s3_express", RULES)
    assert waiting.break_even_mb_s == pytest.approx(PAYS_TIMES * found.break_even_bytes / 0.04 / 1e6)


def test_packing_alone_saves_what_does_not_cross_and_raises_the_size_from_which_links_pay() -> None:
    plain = estimate(two(0.6e6), PRICES, "s3_express", FREE)
    packed = estimate(two(0.6e6), PRICES, "s3_express", FREE, pack_ratios={"orders": 0.2, "other": 0.1})
    assert plain.total.replication["packing"] == plain.total.replication["today"]
    assert packed.total.replication["packing"] == pytest.approx(0.2 * packed.total.replication["today"])
    assert packed.break_even_bytes is None or packed.break_even_bytes > 4 * (plain.break_even_bytes or 0)


def test_what_producers_wait_for_is_linked_where_answers_are_held() -> None:
    found = estimate(two(0.6e6), PRICES, "s3_express", RULES).total
    assert found.replication["links"] == pytest.approx(found.replication["today"])
    assert found.replication["gateway"] < 0.7 * found.replication["today"]
    assert (found.linked_share, found.held_linked_share) == (0, 1)


@pytest.mark.parametrize(
    ("racks", "replicas", "why", "usd"),
    [
        ({1: "az1", 2: "az1", 3: "az1"}, (1, 2, 3), "no_follower_elsewhere", 0.0),
        (RACKS, (1,), "no_follower_elsewhere", 0.0),
        ({1: None, 2: None, 3: None}, (1, 2, 3), None, 2.0),
        ({1: "az1", 2: "az1", 3: "az2"}, (1, 2, 3), None, 1.0),
    ],
)
def test_only_followers_in_other_zones_count(
    racks: dict[int, str | None], replicas: tuple[int, ...], why: str | None, usd: float
) -> None:
    found = estimate(two(5e6, racks, replicas=replicas), PRICES, "s3_express", FREE).total
    assert found.replication["today"] == pytest.approx(usd * 0.02 * found.produced_bytes / 1e9)
    assert list(found.inline) == ([] if why is None else [why])


def test_where_crossing_is_free_links_never_pay() -> None:
    azure = PRICES.with_network("network_azure")
    found = estimate(two(5e6), azure, "azure_premium_block_blob", FREE)
    assert (found.break_even_bytes, found.break_even_mb_s, list(found.total.inline)) == (None, None, ["never_pays"])
    assert found.total.ways == dict.fromkeys(WAYS, 0.0)


def test_what_has_few_replicas_is_stored_as_long_as_its_log() -> None:
    found = estimate(two(100e3, replicas=(1, 2)), PRICES, "s3_express", FREE).total
    log_gb = sum(one.size for one in logs(100e3, 12.0).values()) / 1e9
    assert found.usd["wal_storage"] == pytest.approx(log_gb * 0.11)
    assert found.usd["put_requests"] == pytest.approx(MONTH_S * 0.00113 / 1000)  # an object a second


def test_a_log_whose_beginning_was_deleted_counts_by_its_records() -> None:
    before, after = two(1e6)
    cut = {where: replace(log, start=log.end - 5, size=5000) for where, log in after.logs.items()}
    found = estimate([before, replace(after, logs=cut)], PRICES, "s3_express", RULES).total
    assert found.produced_bytes == pytest.approx(1e6 * MONTH_S)


def test_a_broker_that_went_away_meanwhile_keeps_its_zone() -> None:
    before, after = two(5e6)
    away = {one: rack for one, rack in RACKS.items() if one != 3}
    assert estimate([before, replace(after, racks=away)], PRICES, "s3_express", RULES) == estimate(
        [before, after], PRICES, "s3_express", RULES
    )


def test_a_broker_that_nobody_has_seen_counts_as_a_zone_of_its_own_and_is_told() -> None:
    seen: dict[int, str | None] = {1: "az1", 2: "az2"}
    found = estimate(two(5e6, seen), PRICES, "s3_express", RULES)
    assert found.total.usd["consume_client_rack"] == 0
    assert replace(found, notes=()) == replace(estimate(two(5e6), PRICES, "s3_express", RULES), notes=())
    assert found.notes[0] == "brokers 3 have replicas but were away: each counts as a zone of its own"


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(0.01, id="compacted"),
        pytest.param(0.05, id="most is in another tier, and offsets begin at 0"),
    ],
)
def test_records_count_with_the_size_that_they_were_appended_with(kept: float) -> None:
    """Offsets go on where records went, so the bytes that are left tell nothing of a record's size."""
    before, after = two(1e6)
    old = 1_000_000

    def shrunk(sample: Sample) -> Sample:
        logs = {
            where: replace(log, end=log.end + old, size=log.size + round(old * 1000 * kept))
            for where, log in sample.logs.items()
        }
        return replace(sample, logs=logs, committed={"g": {where: log.end for where, log in logs.items()}})

    samples = [shrunk(before), shrunk(after)]
    # Then the local log is cut once more, which leaves no bytes to compare.
    cut = {where: replace(log, end=log.end + 100, size=1000) for where, log in samples[1].logs.items()}
    committed = {"g": {where: log.end for where, log in cut.items()}}
    samples.append(Sample(24.0, RACKS, cut, committed))
    found = estimate(samples, PRICES, "s3_express", RULES).total
    expected = (1e6 * 12 + 12 * 100 * 1000) / 24 * MONTH_S
    assert found.produced_bytes == pytest.approx(expected)
    assert found.read_bytes == pytest.approx(expected)


def test_consumers_count_by_what_they_commit_and_client_rack_saves_what_has_a_replica_in_their_zone() -> None:
    before, after = two(1e6)
    begun = {where: log.end for where, log in before.logs.items()}
    ended = {where: log.end - 7 for where, log in after.logs.items()}
    samples = [replace(before, committed={"g": begun}), replace(after, committed={"g": ended, "new": ended})]
    found = estimate(samples, PRICES, "s3_express", RULES).total
    read_gb = (1e6 - 12 * 7 * 1000 / 12) * MONTH_S / 1e9
    assert found.read_bytes == pytest.approx(read_gb * 1e9)
    assert found.lag_records == 12 * 7
    assert found.usd["consume_today"] == pytest.approx(read_gb * 2 / 3 * 0.02)
    assert found.usd["consume_client_rack"] == 0
    assert found.ways["client_rack"] == pytest.approx(found.ways["today"] - found.usd["consume_today"])
    assert found.ways["gateway"] < found.ways["links_and_client_rack"] < found.ways["links"]


def test_kafkas_own_topics_are_one_row_and_never_linked() -> None:
    samples = [replace(one, logs={**one.logs, **logs(9e6, one.at_s, topic="__consumer_offsets")}) for one in two(5e6)]
    found = estimate(samples, PRICES, "s3_express", FREE)
    own = next(one for one in found.topics if one.topic == KAFKA_TOPICS)
    assert list(own.inline) == ["not_enabled"]
    assert own.replication["links"] == pytest.approx(own.replication["today"])
    assert own.replication["gateway"] == pytest.approx(own.replication["today"])
    assert own.clients["today"] == 0
    assert found.total.ways["today"] == pytest.approx(sum(one.ways["today"] for one in found.topics))


def test_topics_that_come_and_go_meanwhile_count_from_what_was_seen_of_them() -> None:
    before, after = two(1e6)
    found = estimate([replace(before, logs=logs(1e6, 0.0, topic="gone")), after], PRICES, "s3_express", RULES)
    assert [(one.topic, one.produced_bytes) for one in found.topics] == [("orders", 0.0)]


def test_one_look_is_too_few_and_programs_get_json_without_infinities() -> None:
    with pytest.raises(ValueError, match="two samples"):
        estimate(two(1e6)[:1], PRICES, "s3_express", RULES)
    document = estimate_json(estimate(two(1e6), PRICES, "s3_express", RULES))
    assert math.isfinite(document["total"]["usd"]["today"])
