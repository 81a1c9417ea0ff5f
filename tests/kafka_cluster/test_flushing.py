"""Waiting for deliveries goes on where a fatal error is raised between them."""

from collections import deque
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException

from kafka_cluster.flushing import flush


class PlayedProducer:
    """Gives one answer, or raises one error, for each poll."""

    def __init__(self, *answers: Callable[[], object]) -> None:
        self._answers = deque(answers)
        self._waiting = sum(answer is not fatal for answer in answers)

    def poll(self, timeout: float) -> int:
        answer = self._answers.popleft() if self._answers else fatal
        self._waiting -= answer is not fatal
        answer()
        return 1

    def __len__(self) -> int:
        return self._waiting


def fatal() -> None:
    raise KafkaException(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, fatal=True))


def test_what_comes_after_a_fatal_error_is_still_delivered() -> None:
    delivered: list[int] = []
    producer = PlayedProducer(lambda: delivered.append(1), fatal, lambda: delivered.append(2))
    assert flush(producer, 60.0) == 0
    assert delivered == [1, 2]


def test_what_is_not_delivered_in_time_is_counted() -> None:
    producer = PlayedProducer(lambda: None)
    assert flush(producer, 0.0) == 1
