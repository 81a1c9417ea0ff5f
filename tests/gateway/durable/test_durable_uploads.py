"""What those who hold answers know of the write path, and learn from it."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.durable.durable_logs import DurableLogs, Verdict
from gateway.durable.durable_uploads import DurableUploads
from kafka_log.tail_events import Gap
from kafka_log.topic_partition import TopicId, TopicIdPartition, topic_id_to_text
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from rlm.write_path.assignment import Assignment

LOG = TopicIdPartition(TopicId(b"t" * 16), 0)
TABLE = SettingsTable({"orders": TopicSettings(True, durable=True)})


class WritePath:
    def __init__(self) -> None:
        self.uploaded: int | None = -1
        self.hurried: list[TopicIdPartition] = []

    def hurry(self, partition: TopicIdPartition, *, hurried: bool = True) -> None:
        self.hurried.append(partition)

    def uploaded_offset(self, _partition: TopicIdPartition) -> int | None:
        return self.uploaded


def led(directory: Path, log: TopicIdPartition = LOG) -> Assignment:
    """The log of a broker that has just made it in `directory`."""
    path = directory / "orders-0"
    path.mkdir()
    (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id_to_text(log.topic_id)}\n")
    return Assignment(log, "orders", path, LinkPolicy.COST, 20, is_durable=True)


def made(directory: Path) -> tuple[WritePath, DurableLogs, DurableUploads, Assignment]:
    path, logs, assignment = WritePath(), DurableLogs(), led(directory)
    durable = DurableUploads(path, lambda _segment_id, tell: tell(), logs)
    logs.topics_known(TABLE, {LOG.topic_id: "orders"})
    durable.assigned([assignment])
    durable.arrived()
    return path, logs, durable, assignment


async def test_a_log_that_was_not_looked_at_yet_is_read_to_its_end_once_somebody_waits(tmp_path: Path) -> None:
    path, logs, durable, _ = made(tmp_path)
    held = logs.hold("orders", 0, 100, lambda: None)
    assert held is not None
    assert path.hurried == [LOG]
    path.uploaded = 100  # by the agent before this one: no upload tells of it
    durable.hurried_log_settled(LOG)
    assert held.verdict is Verdict.STORED


async def test_when_the_write_path_ends_nobody_waits_for_it(tmp_path: Path) -> None:
    path, logs, durable, assignment = made(tmp_path)
    path.uploaded = 50
    held = logs.hold(LOG.topic_id, 0, 100, lambda: None)
    assert held is not None
    durable.left([assignment])
    assert held.verdict is Verdict.NOT_LED


async def test_what_cannot_be_read_does_not_count_as_stored_and_what_retention_took_does(tmp_path: Path) -> None:
    path, logs, durable, assignment = made(tmp_path)
    path.uploaded = 300
    durable.gaps_found(assignment, [Gap(0, 50), Gap(100, 200, is_unreadable=True)])
    assert logs.hold("orders", 0, 50, lambda: None) is None
    assert logs.hold("orders", 0, 150, lambda: None) is not None
    assert logs.hold("orders", 0, 201, lambda: None) is None


async def test_topics_that_are_known_before_what_is_led_keep_others_from_waiting() -> None:
    logs = DurableLogs()
    assert logs.hold("others", 0, 1, lambda: None) is not None
    logs.topics_known(TABLE, {LOG.topic_id: "orders"})
    assert logs.hold("others", 0, 1, lambda: None) is None


async def test_a_new_topic_is_durable_by_its_pattern_before_its_settings_are_a_record() -> None:
    durable, old, new = TopicSettings(True, durable=True), TopicId(b"o" * 16), TopicId(b"n" * 16)
    on = TopicSettings(True, topic_id=old)
    table = SettingsTable(
        {"payments-old": on, "payments-on": replace(on, topic_id=None)}, {"pay.*": durable, "x.*": on}
    )
    logs = DurableLogs()
    logs.topics_known(table, {new: "payments-new", old: "payments-old"})
    for topic, waits in (
        (new, True), ("payments-new", True), ("payments-unseen", True), ("payments-on", False), (old, False),
        ("x-1", False), ("orders", False), (TopicId(b"?" * 16), True),
    ):  # fmt: skip
        assert (logs.hold(topic, 0, 10, lambda: None) is not None) is waits, topic


@pytest.mark.parametrize(
    ("topics", "pattern_is_durable"),
    [
        ({"orders": TopicSettings(True, topic_id=LOG.topic_id)}, True),
        ({"orders": TopicSettings(True, durable=True, topic_id=TopicId(b"n" * 16))}, False),
        ({"orders": TopicSettings(True, topic_id=TopicId(b"g" * 16))}, True),
    ],
    ids=["by its pattern", "by its own settings", "by its pattern, after a third one"],
)
@pytest.mark.parametrize("was_known", [True, False])
async def test_a_topic_made_anew_as_a_durable_one_waits_until_it_is_known(
    topics: dict[str, TopicSettings], pattern_is_durable: bool, was_known: bool
) -> None:
    table, logs = SettingsTable(topics, {"ord.*": TopicSettings(True, durable=pattern_is_durable)}), DurableLogs()
    here = {LOG}
    logs.topics_known(table, {LOG.topic_id: "orders"} if was_known else {}, here.__contains__)
    here.clear()
    held = logs.hold("orders", 0, 10, lambda: None)
    assert held is not None, "the broker has just made it"
    here.add(LOG)  # no other one was made
    logs.topics_known(table, {LOG.topic_id: "orders"}, here.__contains__)
    settings = table.of("orders", LOG.topic_id)
    assert settings is not None
    assert held.verdict is (None if settings.is_durable else Verdict.STORED)


@pytest.mark.parametrize("by_id", [False, True])
async def test_a_topic_made_anew_under_its_name_is_not_stored_because_the_old_one_was(
    tmp_path: Path, by_id: bool
) -> None:
    path, logs, durable, old = made(tmp_path)
    path.uploaded = 3000
    assert logs.hold("orders", 0, 100, lambda: None) is None
    old.directory.rename(tmp_path / "orders-0.0a1b-delete")
    new = TopicIdPartition(TopicId(b"n" * 16), 0)
    assignment = led(tmp_path, new)

    told: list[Verdict | None] = []
    held = logs.hold(new.topic_id if by_id else "orders", 0, 1, lambda: told.append(held.verdict if held else None))
    assert held is not None
    path.uploaded = -1
    logs.topics_known(TABLE, {new.topic_id: "orders"})
    durable.assigned([assignment])
    assert (held.log, held.verdict) == (new, None)
    path.uploaded = 1
    durable.hurried_log_settled(new)
    assert told == [Verdict.STORED]


async def test_a_log_that_was_moved_to_another_directory_is_waited_for_until_it_is_found(tmp_path: Path) -> None:
    path, logs, durable, old = made(tmp_path)
    path.uploaded = 10
    moved = tmp_path / "disk2"
    old.directory.rename(moved)
    held = logs.hold("orders", 0, 1, lambda: None)
    assert held is not None
    durable.assigned([replace(old, directory=moved)])
    assert held.verdict is Verdict.STORED
