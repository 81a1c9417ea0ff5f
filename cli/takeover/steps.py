"""The steps of a takeover, and which of them are done.

What is done is kept in the directory of the takeover, so that a run that was killed, or whose host has restarted, is
continued by the same command. A step is written down when it is done; each may be done again.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final

from cli.takeover.place import HostPlace, TakeoverRefusedError
from plugin.durable_files import write_durably

STATE_FILE: Final = "takeover.json"
LOCK_FILE: Final = "takeover.lock"


class Step(StrEnum):
    """The steps of a takeover in their order; the values are shown to people."""

    RECOVER = "recover the logs"
    START = "start the agent and the broker"
    LEAD = "wait until its partitions have leaders, and it is in sync"
    DRAIN = "drain it"
    STOP = "stop the broker and the agent"
    HAND_OVER = "hand its objects over"


WHILE_IT_RUNS: Final = frozenset({Step.LEAD, Step.DRAIN})


def run_steps(directory: Path, broker_id: int, place: HostPlace, tell: Callable[[str], object]) -> None:
    """Carry out the steps that `directory` does not record as done. Raises TakeoverError, TakeoverRefusedError."""
    acts: dict[Step, Callable[[], None]] = {
        Step.RECOVER: place.recover,
        Step.START: place.start,
        Step.LEAD: place.wait_until_led,
        Step.DRAIN: place.drain,
        Step.STOP: place.stop,
        Step.HAND_OVER: place.hand_over,
    }
    with _held(directory):
        done = done_steps(directory, broker_id)
        if len(done) == len(acts):
            place.check_gone()
        for number, (step, act) in enumerate(acts.items(), 1):
            if step in done:
                continue
            if step not in (Step.STOP, Step.HAND_OVER):
                place.check()
            if step in WHILE_IT_RUNS:
                place.start()  # the host may have restarted since
            tell(f"{number} of {len(acts)}: {step}")
            act()
            done.append(step)
            document = {"broker_id": broker_id, "done": [one.name for one in done]}
            write_durably(directory / STATE_FILE, json.dumps(document) + "\n")


def done_steps(directory: Path, broker_id: int) -> list[Step]:
    """Return the steps that are done of this broker's takeover. Raises TakeoverRefusedError if the directory is
    another broker's."""
    path = directory / STATE_FILE
    try:
        document = json.loads(path.read_text())
        if document["broker_id"] != broker_id:
            reason = f"broker {document['broker_id']} is taken over there"
            raise TakeoverRefusedError("take over into", str(directory), reason, "name another --directory")
        return [Step[name] for name in document["done"]]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise TakeoverRefusedError("read", str(path), f"it was not written by this command: {error!r}") from error


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Let no second run into the directory."""
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise TakeoverRefusedError("take over into", str(directory), "another run is at work there") from None
    try:
        yield
    finally:
        os.close(descriptor)
