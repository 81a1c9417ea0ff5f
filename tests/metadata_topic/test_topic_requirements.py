"""What is wrong with an existing metadata topic, and what mends it."""

import pytest

from metadata_topic.topic.topic import METADATA_TOPIC, MetadataTopicSettings
from metadata_topic.topic.topic_requirements import TopicNeeds, retention_needed_ms, topic_problems

KAFKAS_DEFAULTS = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "max.message.bytes": "1048588",
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "false",
}
"""What a topic has that was made without any wish."""
NEEDS = TopicNeeds(3, 2, retention_ms=1000)
ALTER = f"kafka-configs.sh --bootstrap-server b:9092 --alter --topic {METADATA_TOPIC} --add-config "


def as_made(**changes: str) -> dict[str, str]:
    made = {**KAFKAS_DEFAULTS, **MetadataTopicSettings().metadata_topic_config()}
    return {**made, **{key.replace("_", "."): value for key, value in changes.items()}}


def test_a_topic_as_agents_make_it_has_no_problem() -> None:
    assert topic_problems(METADATA_TOPIC, as_made(), 3, NEEDS, "b:9092") == []


@pytest.mark.parametrize(
    ("changes", "mended_by", "loses_records"),
    [
        ({"cleanup_policy": "compact"}, "cleanup.policy=delete", True),
        ({"cleanup_policy": "compact,delete"}, "cleanup.policy=delete", True),
        ({"max_message_bytes": "500000"}, "max.message.bytes=1048588", True),
        ({"retention_ms": "999"}, "retention.ms=1000", False),
        ({"retention_ms": "nonsense"}, "retention.ms=1000", False),
        ({"retention_bytes": "1000000"}, "retention.bytes=-1", False),
        ({"min_insync_replicas": "1"}, "min.insync.replicas=2", False),
        ({"unclean_leader_election_enable": "true"}, "unclean.leader.election.enable=false", False),
    ],
)
def test_a_problem_names_what_mends_it(changes: dict[str, str], mended_by: str, loses_records: bool) -> None:
    [problem] = topic_problems(METADATA_TOPIC, as_made(**changes), 3, NEEDS, "b:9092")
    assert problem.change == ALTER + mended_by
    assert problem.loses_records is loses_records
    assert problem.key in problem.found
    key, _, value = mended_by.partition("=")
    assert topic_problems(METADATA_TOPIC, as_made(**changes) | {key: value}, 3, NEEDS, "b:9092") == []


def test_too_few_replicas_are_told() -> None:
    [problem] = topic_problems(METADATA_TOPIC, as_made(), 1, NEEDS, "b:9092")
    assert "1 replicas, not 3" in str(problem)
    assert not problem.loses_records


def test_a_topic_that_brokers_made_by_themselves_may_be_published_to_and_is_complained_of() -> None:
    problems = topic_problems(METADATA_TOPIC, KAFKAS_DEFAULTS, 1, TopicNeeds(3, 2, 604_860_000), "b:9092")
    assert [problem.key for problem in problems] == ["retention.ms", "replication.factor", "min.insync.replicas"]
    assert not any(problem.loses_records for problem in problems)


def test_a_topic_without_end_is_asked_for_where_a_topic_is_kept_for_ever() -> None:
    needs = TopicNeeds(3, 2, retention_needed_ms(-1, 100))
    [problem] = topic_problems(METADATA_TOPIC, as_made(retention_ms="999999999999"), 3, needs, "b:9092")
    assert problem.change == ALTER + "retention.ms=-1"
    assert topic_problems(METADATA_TOPIC, as_made(retention_ms="-1"), 3, needs, "b:9092") == []


def test_while_the_longest_retention_is_not_known_none_is_asked_for() -> None:
    assert topic_problems(METADATA_TOPIC, as_made(retention_ms="1"), 3, TopicNeeds(3, 2), "b:9092") == []
