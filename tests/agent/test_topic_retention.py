"""How long topics keep records."""

import pytest

from agent.topic_retention import longest_retention_ms
from rlm.lifecycle.release import NEVER


@pytest.mark.parametrize(("retentions", "expected"), [([], None), ([5, 9, 7], 9), ([5, NEVER, 9], NEVER), ([0], 0)])
def test_the_longest_retention(retentions: list[int], expected: int | None) -> None:
    assert longest_retention_ms(retentions) == expected
