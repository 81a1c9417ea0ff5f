"""Decides for one client's connection whether the gateway answers a Fetch itself, and builds that answer. Sans-IO.

Any doubt means that the broker answers. It answers the first Fetch of each partition on the client's own connection,
and one in each authorisation time; so it judges the client's rights, and sees that the client is there. What it answers
without an error proves the leader epoch that the client knows, and from then on the partition is followed for all
consumers (`LogTail`).

The fetch session of a client's connection is the gateway's own (KIP-227), and the broker knows nothing of it: what is
relayed goes as full Fetch requests without a session. A session id that is not this connection's own goes to the broker
unchanged, as do requests for very many partitions, for which the broker's own session saves more than an answer of the
gateway could. Source: Kafka's FetchSession and FetchManager.
"""

from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from enum import Enum
from typing import Final, Protocol

from gateway.serve.fetch_frames import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchRequest,
    ResponsePartition,
    ServedPartition,
    WantedPartition,
    api_key_of,
    decode_request,
    decode_response,
    encode_response,
    encode_sessionless,
    with_session,
)
from gateway.serve.visible_log import VisibleLog
from kafka_log.crc32c import Buffer
from kafka_log.record_batch import CorruptBatchError, scan_batches
from kafka_log.topic_partition import TopicId, TopicIdPartition
from replication.wire.fetch_frame import FETCH_API_KEY
from replication.wire.kafka_frame import MalformedFrameError

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


_LOGINS: Final = (17, 36)
"""SaslHandshake, SaslAuthenticate: what the broker allowed before counts no more."""


class ServeOutcome(Enum):
    """How a Fetch was answered: by the gateway, or why by the broker."""

    SERVED = "served"
    FIRST = "first"
    RENEWAL = "renewal"
    QUOTA = "quota"
    COMPACTED = "compacted"
    NOT_FOLLOWED = "not_followed"
    STALE = "stale"
    EPOCH = "epoch"
    OFFSET = "offset"
    BEHIND = "behind"
    UNCOMMITTED = "uncommitted"
    OTHER = "other"
    UNCHANGED = "unchanged"
    """It has a session of the broker's own, another version, or is not read here."""


class FollowedLogs(Protocol):
    """The partitions of one broker that the gateway follows for all consumers of its zone."""

    def get(self, log: TopicIdPartition, now_s: float) -> VisibleLog | None:
        """Return the log and note that it is needed now; None if it is not followed."""

    def propose(self, log: TopicIdPartition, epoch: int, read: "ReadLog", now_s: float) -> None:
        """Follow a log: its broker has just sent a consumer records in this leader epoch."""


class ServePermission(Protocol):
    """What the cluster says about quotas and topics, on which serving depends."""

    def has_quota(self, client_id: str, now_s: float) -> bool:
        """Whether a quota of consumers may apply to this client; True also while that is unknown."""

    def is_kept_whole(self, topic_id: TopicId, now_s: float) -> bool:
        """Whether the topic is known not to be compacted."""


@dataclass(frozen=True, slots=True)
class ReadLog:
    """How far a response of the broker took a consumer in one log."""

    next_offset: int
    end_offset: int
    """The end that the consumer could have reached."""
    offsets: int
    size: int
    """Bytes of records of so many offsets."""


@dataclass(frozen=True, slots=True)
class Relay:
    """A decision: send this frame to the broker."""

    frame: Buffer
    way: ServeOutcome
    turn: Turn
    sent_s: float


@dataclass(frozen=True, slots=True)
class Serve:
    """A decision: respond with these bytes."""

    buffers: Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class Wait:
    """A decision: there is nothing to send yet; decide again at a report of the broker's agent, or at this time."""

    until_s: float


@dataclass(slots=True)
class FetchServing:
    """Decides about the Fetch requests of one client's connection to one broker. All times are monotonic seconds."""

    logs: FollowedLogs
    serve_permission: ServePermission
    authorisation_s: float
    next_id: InitVar[Callable[[], int]]
    """Random positive numbers of 31 bits."""
    _sessions: FetchSessions = field(init=False)
    _allowed_s: dict[TopicIdPartition, float] = field(init=False, default_factory=dict)
    """When the last question was sent that the broker answered without an error."""

    def __post_init__(self, next_id: Callable[[], int]) -> None:
        self._sessions = FetchSessions(next_id)

    def asked(self, frame: Buffer) -> Turn | None:
        """Take a client's request. Returns None if it must go to the broker unchanged."""
        key = api_key_of(frame)
        if key in _LOGINS:
            self._allowed_s.clear()
        if key != FETCH_API_KEY:
            return None
        try:
            return self._sessions.asked(decode_request(frame))
        except MalformedFrameError:
            return None  # the broker judges it

    def decide(self, turn: Turn, came_s: float, now_s: float) -> Serve | Relay | Wait:
        """Decide about a request that came at `came_s`; all requests relayed before must have their responses."""
        if turn.error:
            return Serve(encode_response(turn.request.correlation_id, NO_SESSION, (), turn.error))
        found = self._logs(turn, now_s)
        if isinstance(found, ServeOutcome):
            return self._relay(turn, found, came_s, now_s)
        return self._serve(turn, found, came_s, now_s)

    def _logs(self, turn: Turn, now_s: float) -> list[VisibleLog] | ServeOutcome:
        """Return the logs of all partitions, or why one of them cannot be served."""
        request, serve_permission = turn.request, self.serve_permission
        if not turn.partitions or request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
            return ServeOutcome.OTHER
        allowed_s = [self._allowed_s.get(one.log) for one in turn.partitions]
        if None in allowed_s:
            return ServeOutcome.FIRST
        if min(one for one in allowed_s if one is not None) + self.authorisation_s <= now_s:
            return ServeOutcome.RENEWAL
        topics = {one.log.topic_id for one in turn.partitions}
        are_kept_whole = [serve_permission.is_kept_whole(topic_id, now_s) for topic_id in topics]
        if serve_permission.has_quota(request.client_id, now_s):
            return ServeOutcome.QUOTA
        if not all(are_kept_whole):
            return ServeOutcome.COMPACTED
        logs: list[VisibleLog] = []
        for wanted in turn.partitions:
            log = self.logs.get(wanted.log, now_s)
            if log is None:
                return ServeOutcome.NOT_FOLLOWED
            if (reason := _why_not(wanted, log, request, now_s)) is not None:
                return reason
            logs.append(log)
        return logs

    def _serve(self, turn: Turn, logs: Sequence[VisibleLog], came_s: float, now_s: float) -> Serve | Relay | Wait:
        request, left, size = turn.request, turn.request.max_bytes, 0
        served: list[ServedPartition] = []
        for wanted, log in zip(turn.partitions, logs, strict=True):
            found = log.read(wanted.offset, min(wanted.max_bytes, left), at_least_one=not size)
            left, size = max(left - found.size, 0), size + found.size
            aborted = found.aborted if request.isolation_level == READ_COMMITTED else None
            offsets = log.high_watermark, log.last_stable_offset, log.log_start_offset
            served.append(ServedPartition(wanted.log, *offsets, aborted, found.records))
        deadline_s = came_s + max(request.max_wait_ms, 0) / 1000
        if size < max(request.min_bytes, 0) and now_s < deadline_s:
            return Wait(min(deadline_s, *(log.current_until_s() for log in logs)))
        if not size and any(log.next_offset < log.last_stable_offset for log in logs):
            return self._relay(turn, ServeOutcome.BEHIND, came_s, now_s)  # the broker has what is not read yet
        session_id = self._sessions.answered(turn)
        answer = self._sessions.select(served) if turn.is_incremental else served
        if turn.makes_session:
            for one in served:
                self._sessions.note_answer(one.log, one[1:4])
        return Serve(encode_response(request.correlation_id, session_id, answer))

    def _relay(self, turn: Turn, way: ServeOutcome, came_s: float, now_s: float) -> Relay:
        request = turn.request
        max_wait_ms = max(request.max_wait_ms - round((now_s - came_s) * 1000), 0)
        return Relay(encode_sessionless(request, turn.partitions, max_wait_ms), way, turn, now_s)

    def answered(self, relayed: Relay, frame: Buffer, now_s: float) -> Sequence[Buffer]:
        """Return the response to send to the client, given the broker's response to a request that `decide` relayed."""
        turn = relayed.turn
        try:
            response = decode_response(memoryview(frame))
        except MalformedFrameError:
            return (frame,)
        if response.error:
            return (frame,)
        is_throttled = response.throttle_ms > 0
        session_id, wanted = self._sessions.answered(turn), {one.log: one for one in turn.partitions}
        for told in response.partitions:
            asked = wanted.get(told.log)
            if asked is None:
                continue
            self._sessions.note_answer(told.log, (told.high_watermark, told.last_stable_offset, told.log_start_offset))
            if told.error or told.preferred_replica >= 0 or is_throttled:
                self._allowed_s.pop(told.log, None)
            else:
                if len(self._allowed_s) >= 2 * MAX_PARTITIONS:  # of earlier requests, for other partitions
                    self._allowed_s.clear()
                self._allowed_s[told.log] = relayed.sent_s
                self._propose(asked, told, turn.request, now_s)
        return with_session(frame, response, session_id)

    def _propose(self, asked: WantedPartition, told: ResponsePartition, request: FetchRequest, now_s: float) -> None:
        """Have the log followed, if the client has proved the leader epoch."""
        if asked.leader_epoch < 0 or told.last_stable_offset < 0:
            return
        try:
            batches = scan_batches(told.records, 0, len(told.records))
        except CorruptBatchError:
            return
        next_offset = max(batches[-1].last_offset + 1, asked.offset) if batches else asked.offset
        end_offset = told.last_stable_offset
        size = batches[-1].end if batches else 0
        read = ReadLog(next_offset, end_offset, next_offset - asked.offset, size)
        self.logs.propose(told.log, asked.leader_epoch, read, now_s)


def _why_not(wanted: WantedPartition, log: VisibleLog, request: FetchRequest, now_s: float) -> ServeOutcome | None:
    """Return why the broker must answer for this partition."""
    if wanted.last_fetched_epoch >= 0 or wanted.leader_epoch not in (-1, log.epoch):
        return ServeOutcome.EPOCH
    if now_s >= log.current_until_s():
        return ServeOutcome.STALE
    if not log.log_start_offset <= wanted.offset <= log.high_watermark:
        return ServeOutcome.OFFSET
    if not log.holds(wanted.offset):
        return ServeOutcome.BEHIND
    at_end = wanted.offset == log.next_offset >= log.last_stable_offset
    if request.isolation_level == READ_UNCOMMITTED and at_end and log.high_watermark > log.last_stable_offset:
        return ServeOutcome.UNCOMMITTED
    return None
