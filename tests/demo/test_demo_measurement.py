import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from demo.measurement import AgentAccounts
from local_cluster.agent_metrics import Counters, parse_metrics


def counted(value: float, **labels: str) -> Counters:
    return Counters({("bytes_total", tuple(sorted(labels.items()))): value})


def test_metrics_text_becomes_counters_and_gauges_by_label() -> None:
    registry = CollectorRegistry()
    Counter("remote_wal_faults", "f", ["reason"], registry=registry).labels("slow").inc(3)
    Gauge("remote_wal_upload_lag_bytes", "g", registry=registry).set(7)
    Histogram("remote_wal_stage_seconds", "h", ["stage"], registry=registry).labels("uploaded").observe(0.2)
    totals = parse_metrics(generate_latest(registry).decode())
    assert totals.sum_by("remote_wal_faults_total", "reason") == {"slow": 3.0}
    assert totals.of("remote_wal_stage_seconds_count", stage="uploaded") == 1.0
    assert totals.of("remote_wal_upload_lag_bytes") == 7.0
    assert not any(name.endswith("_created") for name, _ in totals.values)


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.integers(0, 1000)), max_size=40))
def test_totals_are_what_was_counted_however_often_agents_restart(events: list[tuple[int, bool, int]]) -> None:
    accounts = AgentAccounts()
    counters: dict[int, tuple[int, int]] = {}
    truth = 0
    for broker, restarts, growth in events:
        process, value = counters.get(broker, (broker * 1000, 0))
        if restarts:
            process, value = process + 1, 0
        counters[broker] = (process, value + growth)
        truth += growth
        accounts.observe(broker, process, counted(value + growth))
    assert accounts.totals().of("bytes_total") == truth


def test_sums_go_over_the_labels_that_are_not_asked_for() -> None:
    totals = Counters(
        {
            ("peer_bytes_total", (("direction", "sent"), ("role", "leader"))): 5.0,
            ("peer_bytes_total", (("direction", "received"), ("role", "leader"))): 2.0,
            ("peer_bytes_total", (("direction", "sent"), ("role", "follower"))): 100.0,
        }
    )
    assert totals.of("peer_bytes_total", role="leader") == 7.0
    assert totals.subtract(totals).of("peer_bytes_total") == 0.0


def test_a_series_that_appears_later_counts_from_zero() -> None:
    later = Counters({("faults_total", (("reason", "new"),)): 4.0})
    assert later.subtract(Counters({})).sum_by("faults_total", "reason") == {"new": 4.0}


def buckets(**counts: float) -> Counters:
    return Counters({("s_bucket", (("le", bound.replace("_", ".")[1:]),)): count for bound, count in counts.items()})


def test_a_quantile_lies_inside_its_bucket_by_its_rank() -> None:
    totals = buckets(b0_1=10, b0_2=20, bInf=20)
    assert totals.quantile_ms("s", 0.5) == pytest.approx(100)
    assert totals.quantile_ms("s", 0.75) == pytest.approx(150)


def test_beyond_the_last_bound_a_quantile_is_that_bound_and_without_observations_there_is_none() -> None:
    assert buckets(b0_1=1, bInf=10).quantile_ms("s", 0.99) == pytest.approx(100)
    assert buckets(b0_1=0, bInf=0).quantile_ms("s", 0.99) is None
    assert buckets().quantile_ms("s", 0.5) is None


def test_a_topics_share_is_of_its_own_bytes() -> None:
    name = "remote_wal_topic_record_bytes_total"
    grown = {("held", "inline"): 30.0, ("free", "inline"): 1.0, ("free", "linked"): 9.0, ("idle", "linked"): 0.0}
    totals = Counters({(name, (("path", path), ("topic", topic))): size for (topic, path), size in grown.items()})
    assert totals.linked_share_by_topic == {"held": 0.0, "free": 0.9}
