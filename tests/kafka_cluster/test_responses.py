"""Answers are read together, and one that is missing or refused is named."""

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kafka_cluster.errors import KafkaClusterError
from kafka_cluster.responses import (
    UNKNOWN_TOPIC_OR_PARTITION,
    DescribedPartition,
    DescribedTopic,
    Responses,
    client_error,
)

SERVERS = "broker:9092"
WHERE = ("orders", 3)


def answers(given: dict[tuple[str, int], object], wait_s: float = 1.0) -> Responses[tuple[str, int], str]:
    futures: dict[tuple[str, int], Future[Any]] = {key: Future() for key in given}
    for key, answer in given.items():
        if isinstance(answer, Exception):
            futures[key].set_exception(answer)
        elif answer is not None:
            futures[key].set_result(answer)
    return Responses("list offset", SERVERS, futures, str, wait_s)


def refused(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


def test_a_refused_answer_says_what_was_asked_and_where() -> None:
    with pytest.raises(KafkaClusterError, match=f"list offset of orders-3 {SERVERS}: .*authorization") as error:
        answers({("orders", 0): 7, WHERE: refused(KafkaError.TOPIC_AUTHORIZATION_FAILED)}).get_all()
    assert error.value.code == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_what_was_deleted_meanwhile_is_left_out_if_the_caller_says_so() -> None:
    given = answers({("orders", 0): 7, WHERE: refused(UNKNOWN_TOPIC_OR_PARTITION)})
    assert given.get_all({UNKNOWN_TOPIC_OR_PARTITION}) == {("orders", 0): "7"}


def test_each_answer_can_be_judged_by_itself() -> None:
    found = dict(answers({("orders", 0): 7, WHERE: refused(KafkaError._TRANSPORT)}).each())
    assert found["orders", 0] == "7"
    told = found[WHERE]
    assert isinstance(told, KafkaClusterError)
    assert told.code is None, "no broker said anything"


def test_an_answer_that_does_not_come_ends_the_whole_question() -> None:
    with pytest.raises(KafkaClusterError, match=f"list offset {SERVERS}: no answer within 0 s"):
        answers({WHERE: None}, wait_s=0.0).get_all()


def test_an_error_without_a_text_is_named_by_its_type() -> None:
    assert client_error("describe cluster", SERVERS, TimeoutError()).reason == "TimeoutError"


def test_replicas_of_a_topic() -> None:
    whole, lagging = DescribedPartition(0, 1, (1, 2, 3), (3, 2, 1)), DescribedPartition(1, 1, (1, 2), (1,))
    assert [one.is_lagging for one in (whole, lagging)] == [False, True]
    assert DescribedTopic("orders", 0, partitions=(whole, lagging)).replication_factor == 2
    assert DescribedTopic("orders", 0).replication_factor == 0
