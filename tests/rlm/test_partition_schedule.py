"""The partition list: who is due when, against a model that recomputes everything."""

import pickle
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from kafka_log.topic_partition import TopicId, TopicIdPartition
from rlm.write_path.core.partition_schedule import PartitionSchedule, ScheduleIntervals

INTERVALS = ScheduleIntervals(process_s=60.0, retry_s=1.0, retry_max_s=8.0)
TOPIC = TopicId(b"t" * 16)


def partition(number: int) -> TopicIdPartition:
    return TopicIdPartition(TOPIC, number)


@dataclass
class Modelled:
    due_s: float
    failures: int = 0
    processing: bool = False
    woken: bool = False
    removed: bool = False


class Model:
    """The same rules without a heap: every question looks at every partition."""

    def __init__(self) -> None:
        self.known: dict[TopicIdPartition, Modelled] = {}

    def add(self, p: TopicIdPartition) -> None:
        if p not in self.known:
            self.known[p] = Modelled(0.0)
        elif self.known[p].removed:
            self.known[p].removed = False
            self.known[p].woken = True

    def remove(self, p: TopicIdPartition) -> None:
        if p in self.known and self.known[p].processing:
            self.known[p].removed = True
        else:
            self.known.pop(p, None)

    def wake(self, p: TopicIdPartition, now_s: float) -> None:
        if p in self.known and self.known[p].processing:
            self.known[p].woken = True
        elif p in self.known and not self.known[p].failures:
            self.known[p].due_s = min(self.known[p].due_s, now_s)

    def due(self, now_s: float) -> set[TopicIdPartition]:
        return {p for p, m in self.known.items() if not m.processing and m.due_s <= now_s}

    def end(self, p: TopicIdPartition, now_s: float, outcome: str) -> None:
        m = self.known[p]
        m.processing = False
        if m.removed:
            del self.known[p]
        elif outcome == "fail":
            m.failures += 1
            m.due_s = now_s + min(1.0 * 2 ** (m.failures - 1), 8.0)
        else:
            m.failures = 0
            m.due_s = now_s if m.woken or outcome == "more" else now_s + 60.0
        m.woken = False


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "wake", "take", "ok", "more", "fail"]),
        st.integers(0, 3),
        st.sampled_from([0.0, 0.5, 3.0, 70.0]),
    ),
    max_size=60,
)


@given(steps)
def test_the_schedule_agrees_with_a_model_that_looks_at_every_partition(script: list[tuple[str, int, float]]) -> None:
    schedule, model, now_s = PartitionSchedule(INTERVALS), Model(), 1.0
    processing: list[TopicIdPartition] = []
    for action, number, delay_s in script:
        now_s += delay_s
        p = partition(number)
        if action == "add":
            schedule.add(p)
            model.add(p)
        elif action == "remove":
            schedule.remove(p)
            model.remove(p)
        elif action == "wake":
            schedule.wake(p, now_s)
            model.wake(p, now_s)
        elif action == "take":
            taken = schedule.take_due(now_s, number + 1)
            due = model.due(now_s)
            assert set(taken) <= due
            assert len(taken) == min(number + 1, len(due))
            assert len(set(taken)) == len(taken)
            for took in taken:
                model.known[took].processing = True
                model.known[took].woken = False
            processing += taken
        elif processing:
            ended = processing.pop(number % len(processing))
            if action == "fail":
                schedule.failed(ended, now_s)
            else:
                schedule.succeeded(ended, now_s, more=action == "more")
            model.end(ended, now_s, action)
        waiting = [m.due_s for m in model.known.values() if not m.processing]
        assert schedule.next_time_s() == (min(waiting) if waiting else None)
        assert all((known in schedule) == (not m.removed) for known, m in model.known.items())


def test_ten_thousand_idle_partitions_cost_one_look_per_interval_and_nothing_between() -> None:
    schedule = PartitionSchedule(INTERVALS)
    for number in range(10_000):
        schedule.add(partition(number))
    for taken in schedule.take_due(0.0, 10_000):
        schedule.succeeded(taken, 0.0)
    assert schedule.take_due(59.9, 10_000) == []
    assert schedule.next_time_s() == 60.0
    schedule.wake(partition(7), 30.0)
    assert schedule.take_due(30.0, 10_000) == [partition(7)]
    assert schedule.take_due(30.0, 10_000) == []


def test_a_busy_partition_leaves_no_trail_of_stale_entries() -> None:
    schedule = PartitionSchedule(INTERVALS)
    schedule.add(partition(0))
    for step in range(10_000):
        now_s = step / 100
        schedule.wake(partition(0), now_s)
        for taken in schedule.take_due(now_s, 1):
            schedule.succeeded(taken, now_s)
    assert len(pickle.dumps(schedule)) < 10_000, "what it holds, in bytes"
