"""Whatever stood in the settings topic survives its loss, and what was removed does not come back."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.lease_watch import LeasesInTopic
from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.topic_partition import TopicId
from metadata_topic.settings.settings_memory import FILE_NAME, SettingsMemory
from metadata_topic.settings.settings_table import KINDS, LEASES, PATTERNS, PAUSES, TOPICS, Kind, SettingsTable
from metadata_topic.settings.settings_topic import SettingsReader
from metadata_topic.settings.topic_settings import FILE, TopicSettings
from metadata_topic.topic.topic_follower import TopicRecord
from tests.metadata_topic.settings_samples import BY_KIND, DURABLE, PAUSE


class Topic:
    def __init__(self) -> None:
        self.topic_id, self.records = TopicId(b"1" * 16), list[tuple[bytes, bytes | None]]()
        self.epochs = [0]
        """Where each leader epoch begins."""

    def put(self, kind: Kind[Any, Any], name: Any, value: Any) -> None:
        self.records.append((kind.key(name), None if value is None else kind.encode(value)))

    def make_again(self) -> None:
        self.topic_id, self.records = TopicId(bytes([self.topic_id[0] + 1]) * 16), []

    def elect(self, end: int) -> None:
        """Elect a replica that has no more than this."""
        del self.records[end:]
        self.epochs = [*(min(begin, end) for begin in self.epochs), end]

    def compact(self) -> None:
        """Remove all records but each key's last, and tombstones, from all but the active segment."""
        last = {key: at for at, (key, _) in enumerate(self.records)}
        self.records = [
            (key, value if last[key] == at and value is not None else b"compacted")
            for at, (key, value) in enumerate(self.records[:-1])
        ] + self.records[-1:]


class Agent:
    def __init__(self, state_directory: Path | None) -> None:
        self._directory = state_directory
        self.start()

    def start(self) -> None:
        self.memory, self._position = SettingsMemory(self._directory), 0

    def read(self, topic: Topic) -> SettingsTable:
        ends = [*topic.epochs[1:], len(topic.records)]
        epoch_ends = {(0, epoch): end for epoch, end in enumerate(ends)}
        if not self.memory.reads(topic.topic_id, {0: ends[-1]}, epoch_ends):
            self._position = 0
        if self._position > len(topic.records):
            self._position = 0
        self.memory.epochs_read = {0: len(topic.epochs) - 1}
        there = enumerate(topic.records[self._position :], self._position)
        self.memory.apply_all(TopicRecord(0, at, *record) for at, record in there if record[1] != b"compacted")
        self._position = len(topic.records)
        self.memory.save()
        return self.table

    @property
    def table(self) -> SettingsTable:
        return without_notes(self.memory.table(is_read=True))

    def restore(self, topic: Topic) -> None:
        self.read(topic)
        for _ in range(4):
            if not (due := self.memory.restorations()):
                return
            topic.records += due.items()
            self.read(topic)
        raise AssertionError(f"it writes for ever: {due}")


def without_notes(table: SettingsTable) -> SettingsTable:
    return replace(table, restored={})


def _cut(topic: Topic) -> None:
    topic.elect(1)


def _cut_and_grown(topic: Topic) -> None:
    topic.elect(1)
    for _ in range(5):
        topic.put(PAUSES, "broker:9", PAUSE)


@pytest.mark.parametrize("lose", [Topic.make_again, _cut, _cut_and_grown], ids=["made again", "end cut off", "grown"])
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.prefix)
def test_every_kind_of_value_survives_the_topics_loss(
    tmp_path: Path, kind: Kind[Any, Any], restarts: bool, lose: Callable[[Topic], None]
) -> None:
    topic, agent = Topic(), Agent(tmp_path)
    name, value, other = BY_KIND[kind]
    topic.put(PAUSES, "all", PAUSE)
    topic.put(kind, name, other)
    topic.put(kind, name, value)
    agent.read(topic)
    lose(topic)
    if restarts:
        agent.start()
    else:
        agent.read(topic)
    assert getattr(agent.memory.table(is_read=False), kind.field)[name] == value
    agent.read(topic)
    assert agent.memory.is_lost
    assert getattr(agent.memory.table(is_read=True), kind.field)[name] == value
    agent.restore(topic)
    assert not agent.memory.restorations()
    topic.compact()
    for reader in (Agent(None), agent, Agent(tmp_path)):
        reader.read(topic)
        table = reader.memory.table(is_read=True)
        assert getattr(table, kind.field)[name] == value
        assert table.pauses["all"] == PAUSE
        assert not reader.memory.is_lost


def test_a_topic_that_is_whole_counts_alone(tmp_path: Path) -> None:
    topic, agent = Topic(), Agent(tmp_path)
    topic.put(TOPICS, "orders", DURABLE)
    agent.read(topic)
    topic.put(TOPICS, "orders", None)  # while the agent was away
    agent.start()
    assert not agent.read(topic).topics
    assert not agent.memory.restorations()


def test_no_value_is_missing_while_a_restored_topic_is_read_batch_by_batch(tmp_path: Path) -> None:
    topic, agent, away = Topic(), Agent(None), Agent(tmp_path)
    topic.put(TOPICS, "orders", DURABLE)
    for one in (agent, away):
        one.read(topic)
    topic.make_again()
    agent.restore(topic)
    topic.put(TOPICS, "orders", replace(DURABLE, archive=True))
    topic.compact()
    away.start()
    away.memory.reads(topic.topic_id, {0: len(topic.records)})
    for at, record in enumerate(topic.records):
        assert away.memory.is_lost
        if record[1] != b"compacted":
            away.memory.apply_all([TopicRecord(0, at, *record)])
        assert away.table.topics["orders"].is_durable
    assert not away.memory.is_lost


def test_what_is_set_after_the_loss_is_newer_than_what_is_restored(tmp_path: Path) -> None:
    topic, agent = Topic(), Agent(tmp_path)
    for name in ("orders", "clicks", "payments"):
        topic.put(TOPICS, name, DURABLE)
    agent.read(topic)
    topic.make_again()
    agent.read(topic)
    due = agent.memory.restorations()
    on = TopicSettings(enable=True)
    topic.put(TOPICS, "orders", on)  # the operator is faster than the agent's own records
    topic.put(TOPICS, "clicks", None)
    topic.records += due.items()
    for _ in range(2):
        assert agent.read(topic).topics == {"orders": on, "payments": DURABLE}
        agent.restore(topic)
        topic.compact()
        assert Agent(None).read(topic).topics == {"orders": on, "payments": DURABLE}


def test_own_settings_are_restored_over_what_an_agent_without_memory_let_the_topic_inherit(tmp_path: Path) -> None:
    topic, agent = Topic(), Agent(tmp_path)
    topic.put(TOPICS, "orders", DURABLE)
    agent.read(topic)
    topic.make_again()
    topic.put(TOPICS, "orders", replace(DURABLE, durable=False, origin=FILE))
    agent.restore(topic)
    topic.compact()
    for reader in (agent, Agent(None)):
        assert reader.read(topic).topics == {"orders": DURABLE}


def test_a_record_that_cannot_be_read_counts_the_same_before_and_after_compaction() -> None:
    topic = Topic()
    topic.put(TOPICS, "orders", DURABLE)
    topic.put(TOPICS, "orders", None)
    topic.records.append((TOPICS.key("orders"), b'{"version":2}'))
    before = Agent(None).read(topic)
    topic.compact()
    assert Agent(None).read(topic) == before == SettingsTable({"orders": cast(TopicSettings, TOPICS.unreadable)})


@pytest.mark.parametrize("first", ["who could read it", "who could not"])
@pytest.mark.parametrize("was_known", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.prefix)
def test_a_record_that_only_some_agents_could_read_is_restored_as_it_was(
    tmp_path: Path, kind: Kind[Any, Any], was_known: bool, first: str
) -> None:
    name, value, other = BY_KIND[kind]
    topic, reads = Topic(), Agent(None)
    cannot = Agent(tmp_path)
    topic.put(PAUSES, "zone:b", PAUSE)
    if was_known:
        topic.put(kind, name, other)
    topic.records.append((kind.key(name), b'{"version":2}'))
    cannot.read(topic)
    assert cannot.memory.unread == [kind.key(name).decode()]
    topic.records.pop()
    topic.put(kind, name, value)
    wanted = reads.read(topic)
    topic.make_again()
    cannot.start()
    for agent in 2 * ([reads, cannot] if first == "who could read it" else [cannot, reads]):
        agent.restore(topic)
    topic.compact()
    for agent in (reads, cannot, Agent(None)):
        assert agent.read(topic) == wanted


@pytest.mark.parametrize("first", ["the old one", "the new one"])
def test_of_two_values_that_took_one_place_the_stricter_one_is_restored(tmp_path: Path, first: str) -> None:
    topic, old, new = Topic(), Agent(tmp_path), Agent(None)
    topic.put(PAUSES, "all", PAUSE)
    topic.put(TOPICS, "orders", DURABLE)
    old.read(topic)
    topic.records.pop()  # lost with the topic's end
    topic.put(TOPICS, "orders", TopicSettings(enable=True))
    new.read(topic)
    topic.make_again()
    old.start()
    for agent in 2 * ([old, new] if first == "the old one" else [new, old]):
        agent.restore(topic)
    topic.compact()
    for agent in (old, new, Agent(None)):
        assert agent.read(topic).topics == {"orders": DURABLE}


def test_own_settings_before_what_is_inherited_outlive_compaction(tmp_path: Path) -> None:
    topic, agent = Topic(), Agent(tmp_path)
    topic.put(TOPICS, "orders", DURABLE)
    topic.put(TOPICS, "orders", replace(DURABLE, durable=False, origin=FILE))
    agent.restore(topic)
    whole, records = list(topic.records), len(topic.records)
    topic.compact()
    topic.records[1] = whole[1]  # the cleaner keeps it: what repairs it is in the active segment
    assert Agent(None).read(topic).topics == {"orders": DURABLE}
    agent.restore(topic)
    assert len(topic.records) == records


def test_leases_of_a_topic_made_again_may_lack_some_until_one_is_new(tmp_path: Path) -> None:
    topic, agent = Topic(), Agent(tmp_path)
    topic.put(LEASES, *BY_KIND[LEASES][:2])
    agent.read(topic)
    assert not agent.memory.was_remade()
    topic.make_again()
    agent.read(topic)
    assert agent.memory.was_remade()
    topic.records += agent.memory.restorations().items()
    new_host = Agent(None)
    new_host.read(topic)  # while the loss is not noted as restored
    agent.restore(topic)
    for memory in (new_host.memory, agent.memory):
        assert (memory.was_remade(), memory.has_new(LEASES)) == (True, False)
    topic.put(LEASES, 3, BY_KIND[LEASES][2])
    agent.read(topic)
    assert agent.memory.has_new(LEASES)


def test_a_lease_that_cannot_be_read_is_no_other_clusters() -> None:
    topic, agent = Topic(), Agent(None)
    topic.put(LEASES, *BY_KIND[LEASES][:2])
    agent.read(topic)
    reader = cast(SettingsReader, SimpleNamespace(memory=agent.memory, table=agent.table, read_to_end=lambda _s: True))
    leases = LeasesInTopic(KafkaClientConfig("nowhere:1", {}), reader, 1)
    assert (known := leases.read()) is not None
    assert not known.may_lack
    topic.records.append((LEASES.key(7), b"of the next release"))
    agent.read(topic)
    assert (known := leases.read()) is not None
    assert known.may_lack


def test_what_a_newer_release_remembered_in_one_row_hides_no_other(tmp_path: Path) -> None:
    topic, agent = Topic(), Agent(tmp_path)
    topic.put(TOPICS, "pay", DURABLE)
    topic.put(PATTERNS, "new.*", DURABLE)
    agent.read(topic)
    agent.memory.save()
    file = tmp_path / FILE_NAME
    fields = json.loads(file.read_text())
    for row in fields["rows"]:
        if row[0].startswith(PATTERNS.prefix):
            row[1] = row[1].replace('"value":', '"of_the_next_release": 1, "value":')
    fields["rows"].insert(0, ["kind_of_the_next_release:one", "{}"])
    file.write_text(json.dumps(fields))
    topic.make_again()
    older = Agent(tmp_path)
    older.restore(topic)
    assert older.table.topics["pay"].is_durable
    assert older.table.patterns["new.*"].is_durable, "the strictest stands for what nobody can read"


def test_a_topic_that_loses_its_end_twice_is_restored_twice() -> None:
    topic, agent = Topic(), Agent(None)
    for number in range(30):
        topic.put(TOPICS, f"clicks-{number % 2}", TopicSettings(enable=number > 0))
    agent.read(topic)
    topic.elect(1)
    agent.restore(topic)
    end = len(topic.records)
    assert end < 30
    topic.put(TOPICS, "orders", DURABLE)
    agent.read(topic)
    topic.elect(end)
    agent.restore(topic)
    assert Agent(None).read(topic) == agent.table
    assert agent.table.topics["orders"] == DURABLE


def test_who_remembers_a_row_that_it_cannot_read_restores_what_others_had_not_read(tmp_path: Path) -> None:
    topic, behind, newest = Topic(), Agent(None), Agent(tmp_path)
    topic.put(PATTERNS, "new.*", DURABLE)
    behind.read(topic)
    topic.put(TOPICS, "pay", DURABLE)
    newest.read(topic)
    file = tmp_path / FILE_NAME
    file.write_text(file.read_text().replace('\\"enable\\"', '\\"next\\"', 1))
    newest.start()
    topic.make_again()
    behind.restore(topic)
    newest.restore(topic)
    assert newest.table.topics["pay"].is_durable
    assert not newest.memory.is_lost
    assert behind.read(topic) == newest.table


def test_a_file_of_another_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("[", "{}", '{"version": 2}'):
        (tmp_path / FILE_NAME).write_text(text)
        assert SettingsMemory(tmp_path).table(is_read=False) == SettingsTable()
        assert "settings_memory_unreadable" in capsys.readouterr().out


NAMES = ("all", "broker:1", "zone:a")
_CHANGES = st.tuples(st.sampled_from(NAMES), st.none() | st.integers(1, 9))
_READS = st.integers(0, 2)
_LOSS = st.frozensets(st.sampled_from((1, 2)))
"""The agents that are away, and learn of it after the next loss."""


_NONE_AWAY: frozenset[int] = frozenset()


@given(st.lists(_CHANGES | _READS | _LOSS, max_size=30), st.permutations(range(3)), st.booleans())
@example([("all", 1), _NONE_AWAY, ("all", None)], (1, 0, 2), False)
@example([("all", 1), 1, frozenset([1]), ("all", 2)], (1, 0, 2), False)
@example([1, ("all", 1), frozenset([1]), _NONE_AWAY, ("all", None)], (1, 0, 2), False)
@example([("all", 1), _NONE_AWAY], (0, 1, 2), True)
def test_agents_agree_on_what_one_of_them_had_read_last(
    steps: Sequence[object], order: Sequence[int], is_lost_twice: bool
) -> None:
    """Agents read from time to time; the topic is lost when one of them has read it all, and all that are there restore
    it, in any order. Or it is lost again before that, when a new agent has read it that knows of nothing."""
    topic, agents, wanted = Topic(), [Agent(None) for _ in range(3)], dict[str, object]()
    away = _NONE_AWAY
    for step in (*steps, _NONE_AWAY):
        if isinstance(step, int):
            if step not in away:
                agents[step].read(topic)
        elif isinstance(step, tuple):
            name, since = cast(tuple[str, int | None], step)
            value = None if since is None else replace(PAUSE, since_ms=since)
            topic.put(PAUSES, name, value)
            wanted.pop(name, None) if value is None else wanted.update({name: value})
        else:
            agents[0].read(topic)
            topic.make_again()
            away = cast(frozenset[int], step)
            there = [agents[one] for one in order if one not in away]
            if is_lost_twice:
                new = Agent(None)
                for agent in (*there, new):
                    agent.read(topic)
                topic.make_again()
                new.restore(topic)
            for agent in there:
                agent.restore(topic)
            for agent in there:
                agent.restore(topic)
                topic.compact()
            assert [agent.table.pauses for agent in there] == [wanted] * len(there)
            assert Agent(None).read(topic).pauses == wanted
