"""How long objects are kept for followers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.settings.wal_retention import (
    AS_BEFORE,
    AS_LOCAL,
    NO_LIMIT,
    KeptFor,
    WalRetention,
    local_retention_ms,
    why_not_as_local,
)

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
WEEK_MS = 7 * DAY_MS
ON = TopicSettings(enable=True)
DURABLE = TopicSettings(enable=True, durable=True, wal_retention_ms=5)


def chosen(retention_ms: int) -> TopicSettings:
    return TopicSettings(enable=True, wal_retention_ms=retention_ms)


@pytest.mark.parametrize(
    ("retention", "topic", "factor", "local_ms", "expected"),
    [
        pytest.param(WalRetention(), ON, 3, WEEK_MS, KeptFor(HOUR_MS, DAY_MS), id="an hour, and a day for who lags"),
        pytest.param(WalRetention(), ON, 3, NO_LIMIT, KeptFor(HOUR_MS, DAY_MS), id="of a log that is kept for ever"),
        pytest.param(WalRetention(), ON, 3, 1000, KeptFor(1000, 1000), id="never longer than Kafka keeps it"),
        pytest.param(WalRetention(), ON, 3, 2 * HOUR_MS, KeptFor(HOUR_MS, 2 * HOUR_MS), id="nor for who lags"),
        pytest.param(WalRetention(), ON, 1, WEEK_MS, KeptFor(WEEK_MS, WEEK_MS), id="the WAL is the only copy"),
        pytest.param(WalRetention(), ON, 2, WEEK_MS, KeptFor(WEEK_MS, WEEK_MS), id="or will be, once a move has ended"),
        pytest.param(WalRetention(), chosen(5), 1, WEEK_MS, KeptFor(5, DAY_MS), id="unless somebody says so"),
        pytest.param(
            WalRetention(), DURABLE, 1, NO_LIMIT, KeptFor(NO_LIMIT, NO_LIMIT), id="but not of a durable topic"
        ),
        pytest.param(WalRetention(), chosen(AS_LOCAL), 3, WEEK_MS, KeptFor(WEEK_MS, WEEK_MS), id="for recovery"),
        pytest.param(WalRetention(), chosen(NO_LIMIT), 3, WEEK_MS, KeptFor(WEEK_MS, WEEK_MS), id="Kafka's limit alone"),
        pytest.param(WalRetention(), chosen(2 * DAY_MS), 3, WEEK_MS, KeptFor(2 * DAY_MS, 2 * DAY_MS), id="not shorter"),
        pytest.param(WalRetention(AS_LOCAL), ON, 3, WEEK_MS, KeptFor(WEEK_MS, WEEK_MS), id="an agent for recovery"),
        pytest.param(WalRetention(5, 0), ON, 3, WEEK_MS, KeptFor(5, 5), id="nobody is waited for"),
        pytest.param(WalRetention(), None, 3, WEEK_MS, KeptFor(WEEK_MS, WEEK_MS), id="nobody knows the settings"),
        pytest.param(WalRetention(), TopicSettings(), 3, WEEK_MS, KeptFor(WEEK_MS, WEEK_MS), id="switched off"),
        pytest.param(WalRetention(), ON, 0, WEEK_MS, KeptFor(WEEK_MS, WEEK_MS), id="nobody knows the replicas"),
        pytest.param(AS_BEFORE, ON, 3, WEEK_MS, KeptFor(WEEK_MS, WEEK_MS), id="an agent that knows no such setting"),
    ],
)
def test_how_long_a_topics_entries_are_kept(
    retention: WalRetention, topic: TopicSettings | None, factor: int, local_ms: int, expected: KeptFor
) -> None:
    assert retention.of(topic, factor, local_ms) == expected


RETENTIONS = st.sampled_from([AS_LOCAL, NO_LIMIT, 0, 5, 10])


@given(RETENTIONS, st.integers(0, 12), st.none() | RETENTIONS, st.integers(0, 3), st.sampled_from([NO_LIMIT, 0, 7, 11]))
def test_who_lags_is_waited_for_and_nobody_longer_than_kafka_keeps_its_log(
    default_ms: int, lagging_max_ms: int, chosen_ms: int | None, factor: int, local_ms: int
) -> None:
    topic = TopicSettings(enable=True, wal_retention_ms=chosen_ms)
    kept = WalRetention(default_ms, lagging_max_ms).of(topic, factor, local_ms)
    in_ms = [float("inf") if ms == NO_LIMIT else ms for ms in (kept.retention_ms, kept.lagging_ms, local_ms)]
    assert in_ms == sorted(in_ms)


TIERED = {"remote.storage.enable": "true"}
LOCAL = {"local.retention.ms": "1000", "retention.ms": "9000"}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LOCAL | TIERED, 1000),
        pytest.param(LOCAL, 9000, id="nothing is tiered"),
        pytest.param(LOCAL | TIERED | {"remote.log.copy.disable": "true"}, 9000, id="nothing is copied any more"),
        (TIERED | {"local.retention.ms": "-2", "retention.ms": "9000"}, 9000),
        ({"retention.ms": "9000"}, 9000),
        (TIERED | {"local.retention.ms": "-2", "retention.ms": "-1"}, NO_LIMIT),
        (TIERED | {"local.retention.ms": "-1", "retention.ms": "9000"}, NO_LIMIT),
        pytest.param({"retention.ms": "9000", "cleanup.policy": "compact"}, NO_LIMIT, id="compacted alone"),
        pytest.param({"retention.ms": "9000", "cleanup.policy": ""}, NO_LIMIT, id="no policy"),
        pytest.param(LOCAL | TIERED | {"cleanup.policy": ""}, 1000, id="no policy, and tiered"),
        pytest.param({"retention.ms": "9000", "cleanup.policy": "compact,delete"}, 9000, id="deleted, too"),
        (TIERED | {"local.retention.ms": "-2"}, None),
        ({}, None),
        ({"retention.ms": None}, None),
        ({"retention.ms": "soon"}, None),
    ],
)
def test_the_local_retention_is_what_brokers_go_by(config: dict[str, str | None], expected: int | None) -> None:
    assert local_retention_ms(config) == expected


@pytest.mark.parametrize(
    ("policy", "is_refused"),
    [("compact", True), ("compact,delete", False), ("delete", False), ("", False), (None, False)],
)
def test_what_would_grow_without_bound_is_refused_with_the_reason(policy: str | None, is_refused: bool) -> None:
    reason = why_not_as_local({"cleanup.policy": policy})
    assert (reason is not None) == is_refused
    assert reason is None or "grow without bound" in reason
