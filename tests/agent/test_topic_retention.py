"""The metadata topic must not forget objects before they go."""

from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry

from agent.topic_retention import RetentionCheck, longest_retention_ms
from metadata_topic.errors import TopicSetupError
from metadata_topic.topic import Broker
from rlm.measures import LifecycleMeasures
from rlm.release import NEVER


class Admin:
    def __init__(self, retention_ms: int) -> None:
        self.config = {"retention.ms": str(retention_ms), "cleanup.policy": "delete"}
        self.is_down = False

    def brokers(self) -> list[Broker]:
        raise AssertionError("not asked for")

    def partition_counts(self) -> dict[str, int]:
        raise AssertionError("not asked for")

    def create(self, topic: str, assignment: list[list[int]], config: Mapping[str, str]) -> bool:
        raise AssertionError("nothing is made")

    def topic_config(self, topic: str) -> dict[str, str]:
        if self.is_down:
            raise TopicSetupError("describe topic", topic, "no answer")
        return self.config


def _check(admin: Admin) -> tuple[RetentionCheck, CollectorRegistry]:
    registry = CollectorRegistry()
    return RetentionCheck(lambda: admin, 100, LifecycleMeasures(registry).metadata_topic_problems), registry


@pytest.mark.parametrize(("retentions", "expected"), [([], None), ([5, 9, 7], 9), ([5, NEVER, 9], NEVER), ([0], 0)])
def test_the_longest_retention(retentions: list[int], expected: int | None) -> None:
    assert longest_retention_ms(retentions) == expected


def test_a_topic_that_forgets_too_soon_is_told_and_measured_until_it_is_mended() -> None:
    admin = Admin(1099)
    check, registry = _check(admin)
    assert check.check({}) == []
    [problem] = check.check({"orders": 500, "payments": 1000})
    assert "1100" in problem
    assert registry.get_sample_value("remote_wal_metadata_topic_problems") == 1
    admin.is_down = True
    assert check.check({"orders": 1000}) == [problem]
    assert registry.get_sample_value("remote_wal_metadata_topic_problems") == 1
    admin.is_down = False
    admin.config["retention.ms"] = "1100"
    assert check.check({"orders": 1000}) == []
    assert registry.get_sample_value("remote_wal_metadata_topic_problems") == 0


def test_a_topic_kept_for_ever_needs_metadata_for_ever() -> None:
    check, _ = _check(Admin(10**15))
    assert check.check({"orders": NEVER})
