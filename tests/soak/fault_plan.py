"""Which faults strike, in which order and for how long: all of it follows from a seed. Sans-IO.

Faults are dealt as from a deck of cards, so that each kind comes once before any comes again. At times a second one
strikes together with the first; never two of the store, nor two of brokers, of which a cluster of three that
acknowledges with two replicas bears one at a time.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """What strikes; the value is its name for people and programs."""

    AGENT_KILLED = "agent-killed"
    AGENT_STOPPED = "agent-stopped"
    """SIGTERM."""
    AGENT_PAUSED = "agent-paused"
    BROKER_KILLED = "broker-killed"
    BROKER_STOPPED = "broker-stopped"
    """A controlled shutdown."""
    BROKER_PAUSED = "broker-paused"
    LEADER_MOVED = "leader-moved"
    DISK_LOST = "disk-lost"
    """A broker and its agent die, their disk is empty, and `remote-wal recover` fills it."""
    RECORDS_DELETED = "records-deleted"
    """Those below an offset."""
    TOPIC_REMADE = "topic-remade"
    """Deleted, and made again under its name."""
    STORE_SILENT = "store-silent"
    """Requests are taken, and never answered."""
    STORE_REFUSING = "store-refusing"
    """503 to each request."""
    STORE_REFUSING_SOME = "store-refusing-some"
    """The same to some uploads, so that one fails while the next is stored."""
    STORE_SLOW = "store-slow"
    STORE_LOSING_ANSWERS = "store-losing-answers"
    """Uploads take effect, their answers do not come."""
    STORE_CUTTING_BODIES = "store-cutting-bodies"

    @property
    def part(self) -> str:
        """What it strikes: agent, broker, leader, disk, records, topic or store."""
        return self.value.partition("-")[0]


PROCESS_FAULTS = tuple(kind for kind in FaultKind if kind.part in ("agent", "broker") and kind.value[-7:] != "stopped")
"""Kills and pauses."""

_LONGEST_S = 15.0
_SHORTEST_S = 0.5
_LONGEST_CALM_S = 4.0
_SECOND_FAULT = 0.4
_ALONE = ("broker", "store", "records", "topic")
"""Parts of which two faults never strike together."""
_WHILE_NOTHING_ELSE_STRIKES = {"leader", "disk"}


@dataclass(frozen=True, slots=True)
class PlannedFault:
    kind: FaultKind
    broker_id: int
    """Whose agent, broker or disk; of a leader, who shall lead. Means nothing else."""
    seconds: float

    def __str__(self) -> str:
        whom = "" if self.kind.part in ("store", "records", "topic") else f" {self.broker_id}"
        return f"{self.kind.value}{whom} for {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Step:
    """Faults that strike together, and the calm behind them."""

    faults: tuple[PlannedFault, ...]
    calm_s: float


def plan_faults(
    seed: int, broker_ids: Sequence[int], kinds: Sequence[FaultKind] = tuple(FaultKind), longest_s: float = _LONGEST_S
) -> Iterator[Step]:
    rng = random.Random(seed)
    while True:
        deck = list(kinds)
        rng.shuffle(deck)
        while deck:
            chosen = [deck.pop()]
            if deck and rng.random() < _SECOND_FAULT and _strike_together(chosen[0], deck[-1]):
                chosen.append(deck.pop())
            victims = rng.sample(list(broker_ids), k=len(chosen))
            faults = tuple(
                PlannedFault(kind, victim, rng.uniform(_SHORTEST_S, longest_s))
                for kind, victim in zip(chosen, victims, strict=True)
            )
            yield Step(faults, rng.uniform(_SHORTEST_S, _LONGEST_CALM_S))


def _strike_together(one: FaultKind, other: FaultKind) -> bool:
    parts = {one.part, other.part}
    if parts & _WHILE_NOTHING_ELSE_STRIKES or parts == {"broker", "topic"}:
        return False
    return len(parts) > 1 or one.part not in _ALONE
