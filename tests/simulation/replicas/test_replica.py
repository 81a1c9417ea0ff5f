"""A model replica does what Kafka's does."""

from pathlib import Path

import pytest

from kafka_log.topic_partition import TopicId, TopicIdPartition
from tests.simulation.led_log import LedLog
from tests.simulation.replicas.replica import Replica

BEGIN = 65


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    """A follower that begins where its leader's log began, and that has nothing yet."""
    made = Replica(LedLog(TopicIdPartition(TopicId(b"t" * 16), 0), tmp_path / "t-0", 1))
    made.restart_at(BEGIN)
    return made


@pytest.mark.parametrize(("base", "last", "expected"), [(63, 65, True), (63, 64, False), (65, 66, False)])
def test_an_empty_log_may_begin_in_the_midst_of_its_leaders_batch(
    replica: Replica, base: int, last: int, expected: bool
) -> None:
    assert replica.begins_within(base, last) is expected


def test_a_log_that_has_records_is_never_begun_anew_for_a_batch(replica: Replica) -> None:
    replica.files.append(2, b"x")
    assert not replica.begins_within(BEGIN, replica.end)
