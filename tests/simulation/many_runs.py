"""Runs of many seeds, in one process or several, and which of them are the day's."""

import gc
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial

from tests.simulation.plan import EVENTS, plan
from tests.simulation.simulation import FailedRunError, simulate

SEEDS_OF_A_DAY = 100_000
_SEEDS_AT_ONCE = 10
_RUNS_OF_A_PROCESS = 500
"""Then another takes its place, so that what a run leaves behind does not add up."""


@dataclass(slots=True)
class Outcome:
    done: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)
    """By seed."""

    def add(self, other: "Outcome") -> None:
        self.done += other.done
        self.hits.update(other.hits)
        self.failed |= other.failed


def replay_command(seed: int, events: int = EVENTS) -> str:
    """Shows a failed run again, with fewer events."""
    return f"python -m tests.simulation --seed {seed}" + (f" --events {events}" if events != EVENTS else "")


def run_seeds(seeds: Sequence[int], events: int = EVENTS) -> Outcome:
    """One after the other, to the end, whatever fails."""
    outcome = Outcome()
    with few_collections():
        for seed in seeds:
            try:
                outcome.hits.update(simulate(seed, plan(seed, events)).hits)
            except FailedRunError as error:
                outcome.failed[seed] = f"{error}\n  {replay_command(seed, events)}"
            outcome.done += 1
    return outcome


def run_in_processes(
    seeds: Sequence[int], processes: int, events: int = EVENTS, tell: Callable[[Outcome], None] = lambda _outcome: None
) -> Outcome:
    """The same on several cores; `tell` is called with what is done so far, from time to time."""
    outcome = Outcome()
    parts = [seeds[at : at + _SEEDS_AT_ONCE] for at in range(0, len(seeds), _SEEDS_AT_ONCE)]
    with multiprocessing.get_context("spawn").Pool(
        processes, maxtasksperchild=_RUNS_OF_A_PROCESS // _SEEDS_AT_ONCE
    ) as pool:
        for part in pool.imap_unordered(partial(run_seeds, events=events), parts):
            outcome.add(part)
            tell(outcome)
    return outcome


@contextmanager
def few_collections() -> Iterator[None]:
    """The garbage collector looks at what runs make, and not at all modules again and again."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def today() -> date:
    """In UTC, so that it is the same day everywhere."""
    return datetime.now(UTC).date()


def seeds_of(day: date, first: int, count: int) -> range:
    """No two days have one in common, and no day has those that are always run."""
    begin = day.toordinal() * SEEDS_OF_A_DAY + first
    return range(begin, begin + count)
