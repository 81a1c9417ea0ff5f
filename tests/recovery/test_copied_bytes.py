"""What a plan says beforehand of bytes that cross zones inline."""

import pytest

from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.settings.wal_retention import NO_LIMIT, AgentsRetention, WalRetention
from recovery.reassignment.plan import TopicStorage

HOUR_MS = 3_600_000
AGENTS = AgentsRetention((WalRetention(HOUR_MS), WalRetention(2 * HOUR_MS)))
ON = TopicSettings(enable=True)


@pytest.mark.parametrize(
    ("settings", "local_ms", "replicas", "expected"),
    [
        pytest.param(ON, 10 * HOUR_MS, 3, 900, id="an hour of ten is in objects"),
        pytest.param(ON, HOUR_MS, 3, 0, id="the log holds no more than objects do"),
        pytest.param(ON, 10 * HOUR_MS, 1, 0, id="of a single replica objects hold all"),
        pytest.param(ON, NO_LIMIT, 3, 1000, id="an endless log is mostly older"),
        pytest.param(ON, None, 3, 1000, id="nobody knows how old the log is"),
        pytest.param(TopicSettings(enable=True, wal_retention_ms=-2), NO_LIMIT, 3, 0, id="all of it is in objects"),
        pytest.param(TopicSettings(enable=True, archive=True), 10 * HOUR_MS, 3, 0, id="the archive has the rest"),
        pytest.param(TopicSettings(), HOUR_MS, 3, 1000, id="switched off"),
        pytest.param(None, HOUR_MS, 3, 1000, id="never switched on"),
    ],
)
def test_what_goes_inline_of_a_log_of_1000_bytes(
    settings: TopicSettings | None, local_ms: int | None, replicas: int, expected: int
) -> None:
    assert TopicStorage(settings, local_ms).inline_bytes(1000, replicas, AGENTS) == expected
