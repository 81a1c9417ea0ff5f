"""Fetch sessions (KIP-227): what a leader's broker remembers of a follower, and the follower of its leader."""

import random
from dataclasses import dataclass, field

from tests.simulation.replicas.kafka_frames import Answered, Asked, FetchRequest, FetchResponse, KafkaError

FULL = 0
"""The epoch of a request that begins a session."""


@dataclass(slots=True)
class CachedPartition:
    asked: Asked
    told: tuple[int, int] | None = None
    """High watermark and log start offset, as they were told last."""

    def is_news(self, answer: Answered) -> bool:
        """Whether an incremental response holds it."""
        return bool(
            answer.records
            or answer.error
            or answer.diverging is not None
            or self.told != (answer.high_watermark, answer.log_start)
        )

    def tell(self, answer: Answered) -> None:
        # What ended in an error is told again, whatever it says then.
        self.told = None if answer.error else (answer.high_watermark, answer.log_start)


@dataclass(slots=True)
class LeadersSession:
    id: int
    epoch: int = 1
    """That of the next request."""
    partitions: dict[int, CachedPartition] = field(default_factory=dict)


class SessionCache:
    """A broker's, which forgets sessions as it likes."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._sessions: dict[int, LeadersSession] = {}

    def of(self, request: FetchRequest) -> LeadersSession | KafkaError:
        """The session of a request, as it is from now on; id 0 is none, for this request alone."""
        if request.session_epoch == FULL:
            self._sessions.pop(request.session_id, None)
            session = LeadersSession(0 if self._rng.random() < 0.05 else self._rng.randint(1, 2**31 - 1))
            session.partitions = {one.partition: CachedPartition(one) for one in request.asked}
            if session.id:
                self._sessions[session.id] = session
            return session
        found = self._sessions.get(request.session_id)
        if found is None:
            return KafkaError.FETCH_SESSION_ID_NOT_FOUND
        if found.epoch != request.session_epoch:
            return KafkaError.INVALID_FETCH_SESSION_EPOCH
        found.epoch += 1
        for one in request.asked:
            known = found.partitions.get(one.partition)
            if known is None:
                found.partitions[one.partition] = CachedPartition(one)
            else:
                known.asked = one
        for partition in request.forgotten:
            found.partitions.pop(partition, None)
        return found

    def forget_all(self) -> None:
        """There is no room."""
        self._sessions.clear()


class FollowersSession:
    def __init__(self) -> None:
        self._id = 0
        self._epoch = FULL
        self._asked: dict[int, Asked] = {}

    def next(self, wanted: dict[int, Asked]) -> tuple[int, int, list[Asked], list[int]]:
        """(session id, epoch, what is asked for anew, what no more)."""
        if self._epoch == FULL:
            changed, forgotten = list(wanted.values()), list[int]()
        else:
            changed = [one for number, one in wanted.items() if self._asked.get(number) != one]
            forgotten = [number for number in self._asked if number not in wanted]
        self._asked = dict(wanted)
        return self._id, self._epoch, changed, forgotten

    def answered(self, response: FetchResponse) -> bool:
        """Whether the response's partitions count."""
        if response.error:
            if response.error == KafkaError.FETCH_SESSION_ID_NOT_FOUND:
                self._id = 0
            self._epoch = FULL
            return False
        self._epoch = self._epoch + 1 if response.session_id else FULL
        self._id = response.session_id
        return True

    def broke(self) -> None:
        """The connection ended; whether the leader has seen the request is not known."""
        self._epoch = FULL
