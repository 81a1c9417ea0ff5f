"""How long a topic's records stay on the brokers' disks."""

import pytest

from agent.cluster_observer import local_retention_ms
from rlm.release import NEVER


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"local.retention.ms": "1000", "retention.ms": "9000"}, 1000),
        ({"local.retention.ms": "-2", "retention.ms": "9000"}, 9000),
        ({"retention.ms": "9000"}, 9000),
        ({"local.retention.ms": "-2", "retention.ms": "-1"}, NEVER),
        ({"local.retention.ms": "-1", "retention.ms": "9000"}, NEVER),
        ({"local.retention.ms": "-2"}, None),
        ({}, None),
        ({"retention.ms": None}, None),
        ({"retention.ms": "soon"}, None),
    ],
)
def test_local_retention(config: dict[str, str | None], expected: int | None) -> None:
    assert local_retention_ms(config) == expected
