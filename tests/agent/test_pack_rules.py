"""A topic that is off is never packed, and what is not known counts as off."""

import pytest

from agent.pack_rules import PackRules
from kafka_log.topic_partition import TopicId
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.topic_settings import TopicSettings

ONE, OTHER, NEW = (TopicId(bytes([number]) * 16) for number in (1, 2, 3))
NAMES = {ONE: "one", OTHER: "other"}
OFF, ON = TopicSettings(pack=False), TopicSettings()


@pytest.mark.parametrize(
    ("topics", "patterns", "off"),
    [
        ({}, {}, set()),
        ({"one": OFF}, {}, {"one", ONE, NEW}),
        ({"one": TopicSettings(pack=False, topic_id=ONE)}, {}, {"one", ONE}),
        ({"one": TopicSettings(pack=False, topic_id=OTHER)}, {}, {"one"}),
        ({"gone": TopicSettings(pack=False, topic_id=NEW)}, {}, {NEW}),
        ({}, {"o.*e": OFF, "one": ON}, {"one", ONE, NEW}),
        ({"one": ON}, {"o.*e": OFF}, {NEW}),
        ({"one": TopicSettings(topic_id=ONE)}, {"o.*e": OFF}, {NEW}),
        ({"one": TopicSettings(topic_id=NEW)}, {"o.*e": OFF}, {"one", ONE, NEW}),
    ],
)
def test_a_topic_is_packed_unless_it_may_be_off(
    topics: dict[str, TopicSettings], patterns: dict[str, TopicSettings], off: set[object]
) -> None:
    rules = PackRules()
    assert not any(map(rules.allows, ("one", "other", ONE, OTHER, NEW))), "nothing is known yet"
    rules.learned(SettingsTable(topics, patterns), NAMES)
    assert {one for one in ("one", "other", ONE, OTHER, NEW) if not rules.allows(one)} == off


def test_a_change_counts_at_once() -> None:
    rules = PackRules()
    rules.learned(SettingsTable(), NAMES)
    assert rules.allows(ONE)
    rules.learned(SettingsTable({"one": OFF}), NAMES)
    assert not rules.allows(ONE)
