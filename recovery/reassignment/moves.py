"""The moves of a reassignment, step by step. Sans-IO: it takes what the cluster shows, and returns what to do.

Each move goes through the states of TRANSITIONS: the tail is uploaded, the reassignment is submitted to Kafka's
controller, Kafka makes the new replicas and removes the old ones once all new ones are in sync, and the preferred
leader is elected. Only Kafka's controller decides when a replica is in sync. Nothing here speeds that up or is needed
for it to end: the run may stop at any time, and the moves under way continue.

- The limits say how many moves may be under way; there is no other throttle.
- A move is over when the controller does not list it any more and the brokers show its new replicas. Brokers learn of
  it some moments after the controller, so old replicas mean "somebody cancelled it" only after `stale_s`.
- A cancelled move that was over first is done.
- Moves of partitions that have nothing in the leader's local log (all of it is on KIP-405's tier) come last, together:
  see `Phase.TIERED`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from recovery.reassignment.plan import Move, PartitionReplicas, TopicPartition


class MoveState(Enum):
    """The states of a move, from waiting to its end."""

    WAITING = "waiting"
    UPLOADING = "uploading the tail"
    SUBMITTING = "submitting"
    """The controller has not answered yet."""
    CATCHING_UP = "catching up"
    ELECTING = "electing the leader"
    CANCELLING = "cancelling"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


TRANSITIONS: Final[Mapping[MoveState, frozenset[MoveState]]] = MappingProxyType(
    {
        MoveState.WAITING: frozenset({MoveState.UPLOADING, MoveState.SUBMITTING, MoveState.CANCELLED}),
        MoveState.UPLOADING: frozenset({MoveState.SUBMITTING, MoveState.CANCELLED, MoveState.FAILED}),
        MoveState.SUBMITTING: frozenset({MoveState.CATCHING_UP, MoveState.FAILED, MoveState.CANCELLING}),
        MoveState.CATCHING_UP: frozenset(
            {MoveState.ELECTING, MoveState.DONE, MoveState.CANCELLING, MoveState.CANCELLED, MoveState.FAILED}
        ),
        MoveState.ELECTING: frozenset({MoveState.DONE, MoveState.FAILED}),
        MoveState.CANCELLING: frozenset({MoveState.CANCELLED, MoveState.ELECTING, MoveState.DONE, MoveState.FAILED}),
        MoveState.DONE: frozenset(),
        MoveState.CANCELLED: frozenset(),
        MoveState.FAILED: frozenset(),
    }
)
"""From each state, the possible next ones. DONE, CANCELLED and FAILED are ends."""

ENDS: Final = frozenset(state for state, following in TRANSITIONS.items() if not following)
_UNDER_WAY: Final = frozenset(MoveState) - ENDS - {MoveState.WAITING}


class Phase(Enum):
    """Which moves come first: a later phase begins when the earlier one is over."""

    USUAL = "usual"
    TIERED = "tiered"
    """Nothing is in the leader's local log. In Kafka 4.3 a replica that begins at the last tiered offset never gets in
    sync then: the leader does not give the earliest offset that is pending upload when that is its log's end. So these
    move while the receiving brokers begin at the leader's local log instead, where nothing needs copying either."""


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """A move to make, and what is known of its partition."""

    move: Move
    uploads_tail: bool = False
    """Whether an agent uploads this topic's records, so that it must be asked for the tail."""
    phase: Phase = Phase.USUAL


@dataclass(frozen=True, slots=True)
class ReassignmentLimits:
    """Time limits in seconds, and how many moves run at once."""

    max_moves: int = 8
    """How many partitions may be under way at a time."""
    upload_timeout_s: float = 10.0
    retry_s: float = 1.0
    elect_timeout_s: float = 30.0
    stale_s: float = 3.0
    """How long a broker may show the earlier state."""
    unshown_s: float = 30.0
    """How long brokers may show nothing of a partition, which says nothing of the move."""


@dataclass(slots=True)
class MoveProgress:
    """The progress of one move. Only `Reassignment` changes it."""

    request: MoveRequest
    state: MoveState = MoveState.WAITING
    reason: str = ""
    """Why it failed or was cancelled."""
    started_s: float | None = None
    ended_s: float | None = None
    since_s: float = 0.0
    """When its state began."""
    told_s: float | None = None
    """When the action of its state was last requested."""
    unlisted_s: float | None = None
    """Since when the controller does not list it any more."""

    @property
    def move(self) -> Move:
        """The move of one partition whose progress this is."""
        return self.request.move

    @property
    def seconds(self) -> float | None:
        """How long the move took; None while it is not over, or was never begun."""
        return None if self.started_s is None or self.ended_s is None else self.ended_s - self.started_s


@dataclass(frozen=True, slots=True)
class UploadTails:
    """An action: ask the leaders' agents to upload these partitions' present tails."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Submit:
    """An action: submit these moves to the controller."""

    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class ElectPreferred:
    """An action: make each partition's first replica its leader."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class CancelMoves:
    """An action: tell the controller to go back to the old replicas."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class BeginAtLocalLog:
    """An action: make new replicas on these brokers begin at the leader's local log, until `BeginAtTier`."""

    brokers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BeginAtTier:
    """An action: undo `BeginAtLocalLog`."""


Action = UploadTails | Submit | ElectPreferred | CancelMoves | BeginAtLocalLog | BeginAtTier


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The moved partitions as the cluster shows them at one time."""

    listed: frozenset[TopicPartition]
    """Partitions that the controller lists as being reassigned."""
    partitions: Mapping[TopicPartition, PartitionReplicas] = field(default_factory=dict)


class Reassignment:
    """All moves of one run: takes what the cluster shows, returns actions. Monotonic seconds; for one thread."""

    def __init__(self, requests: Sequence[MoveRequest], limits: ReassignmentLimits) -> None:
        self._limits = limits
        ordered = sorted(requests, key=lambda request: request.phase is Phase.TIERED)
        self.progress = {request.move.topic_partition: MoveProgress(request) for request in ordered}
        """In the order in which they are begun."""
        self._begun_at_local_log = False

    @property
    def is_over(self) -> bool:
        """Whether every move has ended, and nothing is left to undo."""
        return not self._begun_at_local_log and all(one.state in ENDS for one in self.progress.values())

    def count(self, *states: MoveState) -> int:
        """Count the moves in these states."""
        return sum(one.state in states for one in self.progress.values())

    # What happened.

    def tail_uploaded(self, where: TopicPartition, now_s: float) -> None:
        """Record the leader's agent's response that the partition's tail is uploaded."""
        self._advance(where, MoveState.UPLOADING, MoveState.SUBMITTING, now_s)

    def submitted(self, where: TopicPartition, refused: str | None, now_s: float) -> None:
        """Record the controller's response to a submitted move: None, or why it was refused."""
        if refused is None:
            self._advance(where, MoveState.SUBMITTING, MoveState.CATCHING_UP, now_s)
        elif self.progress[where].state in (MoveState.SUBMITTING, MoveState.CANCELLING):
            self._go(self.progress[where], MoveState.FAILED, now_s, refused)

    def begun_at_local_log(self) -> None:
        """Record that BeginAtLocalLog was done; without it, moves of partitions on the tier would not end."""
        self._begun_at_local_log = True

    def cancel(self, now_s: float) -> None:
        """Begin no more moves, and cancel those under way."""
        for one in self.progress.values():
            if one.state in (MoveState.WAITING, MoveState.UPLOADING):
                self._go(one, MoveState.CANCELLED, now_s, "cancelled before it began")
            elif one.state in (MoveState.SUBMITTING, MoveState.CATCHING_UP):
                self._go(one, MoveState.CANCELLING, now_s, "cancelled")

    def note_view(self, view: ClusterView, now_s: float) -> None:
        """Record what the cluster shows of the moved partitions."""
        for where, one in self.progress.items():
            if one.state not in (MoveState.CATCHING_UP, MoveState.ELECTING, MoveState.CANCELLING):
                continue
            shown = view.partitions.get(where)
            if where in view.listed:
                one.unlisted_s = None
                continue
            one.unlisted_s = now_s if one.unlisted_s is None else one.unlisted_s
            if shown is not None and shown.replicas == one.move.after:
                self._moved(one, shown, now_s)
            elif one.state is not MoveState.ELECTING and shown is None:
                if now_s - one.unlisted_s >= self._limits.unshown_s:
                    self._go(one, MoveState.FAILED, now_s, "brokers do not show the partition any more")
            elif one.state is not MoveState.ELECTING and now_s - one.unlisted_s >= self._limits.stale_s:
                self._taken_back(one, now_s)

    def _moved(self, one: MoveProgress, shown: PartitionReplicas, now_s: float) -> None:
        if shown.leader == one.move.after[0]:
            self._go(one, MoveState.DONE, now_s)
        elif one.state is not MoveState.ELECTING:
            self._go(one, MoveState.ELECTING, now_s)

    def _taken_back(self, one: MoveProgress, now_s: float) -> None:
        """Handle that the controller does not list it, and brokers still show other replicas than wanted."""
        reason = one.reason if one.state is MoveState.CANCELLING else "cancelled by somebody else"
        self._go(one, MoveState.CANCELLED, now_s, reason)

    # What to do.

    def step(self, now_s: float) -> list[Action]:
        """Return what to do now; actions repeat while they have no effect, and may be repeated without harm."""
        self._look_at_clocks(now_s)
        actions = self._phase_actions()
        asking = [one for one in self._startable() if one.request.uploads_tail]
        for one in asking:
            self._begin(one, MoveState.UPLOADING, now_s)
        for one in [one for one in self._startable() if not one.request.uploads_tail]:
            self._begin(one, MoveState.SUBMITTING, now_s)
        if asking:
            actions.append(UploadTails(tuple(one.move.topic_partition for one in asking)))
        if submitting := self._due(MoveState.SUBMITTING, now_s):
            actions.append(Submit(tuple(self.progress[where].move for where in submitting)))
        if electing := self._due(MoveState.ELECTING, now_s):
            actions.append(ElectPreferred(electing))
        if cancelling := self._due(MoveState.CANCELLING, now_s):
            actions.append(CancelMoves(cancelling))
        return actions

    def _startable(self) -> list[MoveProgress]:
        """Return waiting moves that fit; those of the second phase only when it has begun."""
        free = self._limits.max_moves - sum(one.state in _UNDER_WAY for one in self.progress.values())
        waiting = [
            one
            for one in self._in(MoveState.WAITING)
            if (one.request.phase is Phase.TIERED) == self._begun_at_local_log
        ]
        return waiting[: max(free, 0)]

    def _phase_actions(self) -> list[Action]:
        usual = [one for one in self.progress.values() if one.request.phase is Phase.USUAL]
        tiered = [one for one in self.progress.values() if one.request.phase is Phase.TIERED]
        open_tiered = [one for one in tiered if one.state not in ENDS]
        if self._begun_at_local_log and not open_tiered:
            self._begun_at_local_log = False
            return [BeginAtTier()]
        if not self._begun_at_local_log and open_tiered and all(one.state in ENDS for one in usual):
            return [BeginAtLocalLog(tuple(sorted({broker for one in open_tiered for broker in one.move.adding})))]
        return []

    def _look_at_clocks(self, now_s: float) -> None:
        limits = self._limits
        for one in self.progress.values():
            age_s = now_s - one.since_s
            if one.state is MoveState.UPLOADING and age_s >= limits.upload_timeout_s:
                self._go(one, MoveState.FAILED, now_s, "the tail was not uploaded in time")
            elif one.state is MoveState.ELECTING and age_s >= limits.elect_timeout_s:
                self._go(one, MoveState.FAILED, now_s, "moved, but the preferred leader was not elected")

    def _due(self, state: MoveState, now_s: float) -> tuple[TopicPartition, ...]:
        due = [one for one in self._in(state) if one.told_s is None or now_s - one.told_s >= self._limits.retry_s]
        for one in due:
            one.told_s = now_s
        return tuple(one.move.topic_partition for one in due)

    def _in(self, state: MoveState) -> list[MoveProgress]:
        return [one for one in self.progress.values() if one.state is state]

    def _begin(self, one: MoveProgress, state: MoveState, now_s: float) -> None:
        one.started_s = now_s
        self._go(one, state, now_s)

    def _advance(self, where: TopicPartition, known: MoveState, state: MoveState, now_s: float) -> None:
        if self.progress[where].state is known:
            self._go(self.progress[where], state, now_s)

    def _go(self, one: MoveProgress, state: MoveState, now_s: float, reason: str = "") -> None:
        if state not in TRANSITIONS[one.state]:
            raise ValueError(f"a move does not go from {one.state.value} to {state.value}")
        one.state, one.since_s, one.told_s, one.unlisted_s = state, now_s, None, None
        one.reason = reason
        if state in ENDS:
            one.ended_s = now_s
