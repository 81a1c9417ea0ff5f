"""Many runs in one command, and one run again: `python -m tests.simulation --help`."""

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.simulation.faults import FAULTS
from tests.simulation.plan import EVENTS, Event, plan, shortened
from tests.simulation.simulation import FailedRunError, simulate

_TOLD_EVERY_S = 10.0


def main() -> int:
    """0 when all runs held, and met every kind of fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many runs")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="SEED", help="the first run's seed")
    parser.add_argument("--events", type=int, default=EVENTS, help="how many events a run has")
    parser.add_argument("--seed", type=int, help="run this one alone; if it fails, with fewer events, and tell all")
    given = parser.parse_args()
    if given.seed is not None:
        return _replay(given.seed, given.events)
    return _run_many(range(given.first, given.first + given.seeds), given.events)


def _run_many(seeds: Sequence[int], events: int) -> int:
    hits, failed = Counter[str](), list[int]()
    began_s = told_s = time.monotonic()
    for done, seed in enumerate(seeds, 1):
        try:
            hits += simulate(seed, plan(seed, events)).hits
        except FailedRunError as error:
            failed.append(seed)
            _tell(f"seed {seed} failed: {error}\n  python -m tests.simulation --seed {seed} --events {events}")
        if time.monotonic() - told_s > _TOLD_EVERY_S or done == len(seeds):
            told_s = time.monotonic()
            _tell(f"{done} of {len(seeds)} runs in {told_s - began_s:.0f} s, {len(failed)} failed")
    _tell("\n".join(f"{hits[fault]:>10}  {fault}" for fault in FAULTS))
    missed = [fault for fault in FAULTS if not hits[fault]]
    if missed:
        _tell(f"never met: {', '.join(missed)}")
    return 1 if failed or missed else 0


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
    """Without its numbers."""
    return "" if failure is None else re.sub(r"[0-9a-f]*[0-9]+|,? without.*|: .*", "", str(failure))


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
