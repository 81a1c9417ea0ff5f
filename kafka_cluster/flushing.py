"""Waits for a producer's deliveries, in the place of `Producer.flush` of confluent-kafka."""

import contextlib
import time
from typing import Final, Protocol

_LOOK_S: Final = 0.1


class Flushable(Protocol):
    """The subset of confluent_kafka.Producer that `flush` needs."""

    def poll(self, timeout: float) -> int: ...

    def __len__(self) -> int: ...


def flush(producer: Flushable, timeout_s: float) -> int:
    """Wait until all produced messages are delivered or given up. Returns how many still wait.

    When the producer gets a fatal error, confluent-kafka sets an exception and ends `poll`. Its `flush` goes on and
    runs delivery callbacks with that exception set, so a lock that one of them takes stays locked for ever.
    """
    from confluent_kafka import KafkaException

    ends_s = time.monotonic() + timeout_s
    while len(producer) and (left_s := ends_s - time.monotonic()) > 0:
        with contextlib.suppress(KafkaException):  # the fatal error: each delivery tells it
            producer.poll(min(left_s, _LOOK_S))
    return len(producer)
