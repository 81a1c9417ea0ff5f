"""Many runs in one command, and one run again: `python -m tests.simulation --help`."""

import argparse
import re
import sys
import time
from collections.abc import Sequence

from tests.simulation.faults import FAULTS
from tests.simulation.many_runs import Outcome, run_in_processes, seeds_of, today
from tests.simulation.plan import EVENTS, Event, plan, shortened
from tests.simulation.simulation import FailedRunError, simulate

_TOLD_EVERY_S = 10.0


def main() -> int:
    """0 when all runs held, and met every kind of fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many runs")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="SEED", help="the first run's seed")
    parser.add_argument("--today", action="store_true", help="seeds that nobody has run before, others each day")
    parser.add_argument("--processes", type=int, default=2, help="how many of them at a time")
    parser.add_argument("--events", type=int, default=EVENTS, help="how many events a run has")
    parser.add_argument("--seed", type=int, help="run this one alone; if it fails, with fewer events, and tell all")
    given = parser.parse_args()
    if given.seed is not None:
        return _replay(given.seed, given.events)
    seeds = range(given.first, given.first + given.seeds)
    if given.today:
        seeds = seeds_of(today(), given.first, given.seeds)
        _tell(f"seeds {seeds.start} to {seeds.stop - 1}")
    return _run_many(seeds, given.events, given.processes)


def _run_many(seeds: Sequence[int], events: int, processes: int) -> int:
    began_s = told_s = time.monotonic()
    told: set[int] = set()

    def tell(outcome: Outcome) -> None:
        nonlocal told_s
        now_s = time.monotonic()
        for seed in sorted(outcome.failed.keys() - told):
            told.add(seed)
            _tell(f"seed {seed} failed: {outcome.failed[seed]}")
        if now_s - told_s > _TOLD_EVERY_S or outcome.done == len(seeds):
            told_s, spent_s = now_s, now_s - began_s
            left_s = spent_s / outcome.done * (len(seeds) - outcome.done)
            _tell(f"{outcome.done} of {len(seeds)} runs in {spent_s:.0f} s, {len(outcome.failed)} failed")
            _tell(f"  {left_s:.0f} s to go")

    outcome = run_in_processes(seeds, processes, events, tell)
    _tell("\n".join(f"{outcome.hits[fault]:>10}  {fault}" for fault in FAULTS))
    missed = [fault for fault in FAULTS if not outcome.hits[fault]]
    if missed:
        _tell(f"never met: {', '.join(missed)}")
    return 1 if outcome.failed or missed else 0


def _replay(seed: int, events: int) -> int:
    whole = plan(seed, events)
    failure = _failure(seed, whole)
    if failure is None:
        _tell(f"seed {seed} holds")
        return 0
    fewer = shortened(whole, lambda tried: _kind(_failure(seed, tried)) == _kind(failure))
    shown = _failure(seed, fewer)
    assert shown is not None
    _tell("\n".join(shown.trace))
    _tell(f"{failure}\nas well with {len(fewer)} of {len(whole)} events:")
    _tell("\n".join(f"    {event!r}," for event in fewer))
    return 1


def _failure(seed: int, events: Sequence[Event]) -> FailedRunError | None:
    try:
        simulate(seed, events)
    except FailedRunError as failure:
        return failure
    return None


def _kind(failure: FailedRunError | None) -> str:
    return "" if failure is None else re.sub(r"[0-9a-f]*[0-9]+|,? without.*|: .*", "", str(failure))


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
