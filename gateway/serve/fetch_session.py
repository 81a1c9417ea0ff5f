"""The fetch session of one client's connection, which is the gateway's own (KIP-227). Sans-IO.

The broker knows nothing of it: what is relayed goes as full Fetch requests without a session. A session id that is not
this connection's own goes to the broker unchanged, as do requests for very many partitions, for which the broker's own
session saves more than an answer of the gateway could.

Source: Kafka's FetchSession and FetchManager.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.serve.fetch_frames import FetchRequest, ServedPartition, WantedPartition
from kafka_log.topic_partition import TopicIdPartition

NO_SESSION: Final = 0
FETCH_SESSION_ID_NOT_FOUND: Final = 70
INVALID_FETCH_SESSION_EPOCH: Final = 71
_FIRST_EPOCH, _FINAL_EPOCH, _MAX_EPOCH = 0, -1, 2**31 - 1
MAX_PARTITIONS: Final = 500
"""Most partitions of a session here."""

Offsets = tuple[int, int, int]


@dataclass(slots=True)
class _Kept:
    wanted: WantedPartition
    told: Offsets | None = None
    """High watermark, last stable offset and log start offset as the client was told."""


@dataclass(slots=True)
class _Session:
    id: int
    epoch: int = 1
    partitions: dict[TopicIdPartition, _Kept] = field(default_factory=dict)


@dataclass(slots=True)
class Turn:
    """One Fetch request of a client, together with all of its session's partitions."""

    request: FetchRequest
    partitions: Sequence[WantedPartition]
    is_incremental: bool
    makes_session: bool
    error: int = 0
    """If not 0, the whole answer."""


class FetchSessions:
    """The fetch session of one client's connection, which the gateway keeps: one at a time."""

    def __init__(self, next_id: Callable[[], int]) -> None:
        """`next_id` returns random positive numbers of 31 bits."""
        self._next_id = next_id
        self._session: _Session | None = None

    def asked(self, request: FetchRequest) -> Turn | None:
        """Take a Fetch request. Returns None if the gateway has no session for it: it goes to the broker unchanged."""
        session, is_full = self._session, request.session_epoch in (_FIRST_EPOCH, _FINAL_EPOCH)
        is_own = session is not None and request.session_id == session.id
        if not is_own and request.session_id != NO_SESSION:
            return None
        if is_full or session is None or not is_own:
            return self._full(request) if is_full else None
        if request.session_epoch != session.epoch:
            return Turn(request, (), True, False, INVALID_FETCH_SESSION_EPOCH)
        session.epoch = 1 if session.epoch == _MAX_EPOCH else session.epoch + 1
        for one in request.partitions:
            kept = session.partitions.get(one.log)
            if kept is None:
                session.partitions[one.log] = _Kept(one)
            else:
                kept.wanted = one
        for log in request.forgotten:
            session.partitions.pop(log, None)
        if len(session.partitions) > MAX_PARTITIONS:  # the client then asks for all in a full request
            self._session = None
            return Turn(request, (), True, False, FETCH_SESSION_ID_NOT_FOUND)
        if not session.partitions:  # Kafka ends such a session as well
            self._session = None
            return Turn(request, (), False, False)
        return Turn(request, [one.wanted for one in session.partitions.values()], True, False)

    def _full(self, request: FetchRequest) -> Turn | None:
        self._session = None
        logs = {one.log for one in request.partitions}
        if len(logs) != len(request.partitions) or len(logs) > MAX_PARTITIONS:
            return None
        makes_session = request.session_epoch == _FIRST_EPOCH and bool(logs)
        return Turn(request, request.partitions, False, makes_session)

    def answered(self, turn: Turn) -> int:
        """Return the session id for a successful response; a session is made if the client asked for one."""
        if turn.makes_session:
            partitions = {one.log: _Kept(one) for one in turn.partitions}
            self._session = _Session(self._next_id(), partitions=partitions)
        return self._session.id if self._session is not None and (turn.makes_session or turn.is_incremental) else 0

    def note_answer(self, log: TopicIdPartition, offsets: Offsets) -> None:
        """Note the offsets of a partition that were sent to the client."""
        kept = self._session.partitions.get(log) if self._session is not None else None
        if kept is not None:
            kept.told = offsets

    def select(self, served: Sequence[ServedPartition]) -> list[ServedPartition]:
        """Return the partitions that an incremental response names: those with records or with new offsets.

        Those with records go to the end of the order, so that none of them keeps others from their turn.
        """
        if self._session is None:
            return list(served)
        partitions, selected = self._session.partitions, []
        for one in served:
            kept, offsets = partitions[one.log], one[1:4]
            if one.records or kept.told != offsets:
                selected.append(one)
            kept.told = offsets
            if one.records:
                partitions[one.log] = partitions.pop(one.log)
        return selected
