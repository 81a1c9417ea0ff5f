"""Runs a reassignment against a cluster: does what `Reassignment` says, and reports what the cluster shows. Blocks."""

from collections.abc import Callable, Collection

import structlog

from kafka_cluster.errors import KafkaClusterError
from recovery.errors import ReassignmentError, ReassignmentSettingError
from recovery.reassignment.admin import ReassignmentAdmin
from recovery.reassignment.moves import (
    Action,
    BeginAtLocalLog,
    BeginAtTier,
    CancelMoves,
    ElectPreferred,
    MoveRequest,
    Phase,
    Reassignment,
    ReassignmentLimits,
    Submit,
    UploadTails,
)
from recovery.reassignment.plan import Move, TopicPartition
from recovery.reassignment.tail_requests import TailRequests

log = structlog.get_logger(__name__)

_TURN_S = 0.1
_PATIENCE_S = 60.0
"""How long the cluster may fail to answer while moves are under way."""


def requests_of(
    moves: Collection[Move], admin: ReassignmentAdmin, uploading_topics: Collection[str]
) -> list[MoveRequest]:
    """Return the moves with what is known of their partitions. Raises ReassignmentError."""
    growing = [move.topic_partition for move in moves if move.adding]
    bare = admin.without_local_data(growing)
    return [
        MoveRequest(
            move,
            uploads_tail=bool(move.adding) and move.topic_partition.topic in uploading_topics,
            phase=Phase.TIERED if move.topic_partition in bare else Phase.USUAL,
        )
        for move in moves
    ]


class ReassignmentRun:
    """Carries out a reassignment. `cancel` may be called on any thread, and by a signal's handler."""

    def __init__(
        self,
        requests: Collection[MoveRequest],
        limits: ReassignmentLimits,
        admin: ReassignmentAdmin,
        tails: TailRequests | None,
        clock: Callable[[], float],
        wait: Callable[[float], object],
    ) -> None:
        """`tails` are needed if a request uploads one. `clock` gives monotonic seconds, `wait` waits."""
        self.reassignment = Reassignment(list(requests), limits)
        self._limits = limits
        self._admin = admin
        self._tails = tails
        self._clock = clock
        self._wait = wait
        self._cancel_wanted = False
        self._silent_since_s: float | None = None

    def cancel(self) -> None:
        """Begin no more moves, and cancel those under way."""
        self._cancel_wanted = True

    def run(self, on_turn: Callable[[Reassignment], None] = lambda _: None) -> Reassignment:
        """Run until every move has ended. `on_turn` is called some times a second.

        Raises ReassignmentError when the cluster does not respond for long; moves under way then continue by
        themselves.
        """
        try:
            while not self.reassignment.is_over:
                if self._cancel_wanted:
                    self.reassignment.cancel(self._clock())
                self._turn()
                on_turn(self.reassignment)
                if not self.reassignment.is_over:
                    self._wait(_TURN_S)
        finally:
            self._admin.begin_at_tier()
        return self.reassignment

    def _turn(self) -> None:
        try:
            for action in self.reassignment.step(self._clock()):
                self._do(action)
            for where in self._tails.stored() if self._tails is not None else ():
                self.reassignment.tail_uploaded(where, self._clock())
            self.reassignment.note_view(self._admin.view(list(self.reassignment.progress)), self._clock())
        except ReassignmentSettingError:
            raise
        except (ReassignmentError, KafkaClusterError) as error:
            now_s = self._clock()
            self._silent_since_s = now_s if self._silent_since_s is None else self._silent_since_s
            log.warning("cluster_did_not_answer", error=str(error))
            if now_s - self._silent_since_s >= _PATIENCE_S:
                raise
        else:
            self._silent_since_s = None

    def _do(self, action: Action) -> None:
        match action:
            case UploadTails(partitions) if self._tails is not None:
                self._tails.ask(self._admin.log_ends(partitions), self._limits.upload_timeout_s)
            case Submit(moves):
                for where, refused in self._submitted(moves).items():
                    self.reassignment.submitted(where, refused, self._clock())
            case ElectPreferred(partitions):
                self._admin.elect_preferred(partitions)
            case CancelMoves(partitions):
                self._admin.cancel(partitions)
            case BeginAtLocalLog(brokers):
                self._admin.begin_at_local_log(brokers)
                self.reassignment.begun_at_local_log()
            case BeginAtTier():
                self._admin.begin_at_tier()

    def _submitted(self, moves: Collection[Move]) -> dict[TopicPartition, str | None]:
        """Submit moves. One without an answer may have been accepted, which `note_view` will show."""
        unanswered: dict[TopicPartition, str | None] = {move.topic_partition: None for move in moves}
        try:
            return unanswered | self._admin.submit(moves)
        except ReassignmentError as error:
            log.warning("submission_unanswered", error=str(error))
            return unanswered
