"""What Kafka's verifiable clients print, held against each other."""

import json

import pytest

from local_cluster.workload.ledger import ProducerReport
from tests.soak.verifiable_clients import VerifiableAccount, VerifiableClientError


class Run:
    """Both clients' lines, as they print them."""

    def __init__(self) -> None:
        self.account = VerifiableAccount()

    def acknowledged(self, value: int, offset: int, partition: int = 0) -> None:
        self._producer("producer_send_success", value=str(value), partition=partition, offset=offset, key=None)

    def not_acknowledged(self, value: int) -> None:
        exception = "class org.apache.kafka.common.errors.TimeoutException"
        self._producer("producer_send_error", value=str(value), exception=exception, message="Expiring 1 record(s)")

    def read(self, value: str, offset: int, partition: int = 0) -> None:
        event = {"name": "record_data", "key": None, "value": value, "partition": partition, "offset": offset}
        self.account.consumer_said(json.dumps(event))

    @property
    def result(self) -> ProducerReport:
        return self.account.report()

    def _producer(self, name: str, **fields: object) -> None:
        self.account.producer_said(json.dumps({"name": name, "topic": "t", **fields}) + "\n")


@pytest.fixture
def run() -> Run:
    return Run()


def test_what_is_acknowledged_and_read_is_no_fault(run: Run) -> None:
    run.acknowledged(1, 0, partition=1)
    run.acknowledged(0, 0)
    run.read("0", 0)
    run.read("1", 0, partition=1)
    assert (run.result.sent, run.result.acknowledged, run.result.consumed, run.result.faults) == (2, 2, 2, 0)
    assert run.account.positions == {0: 1, 1: 1}


def test_a_record_may_be_read_before_its_acknowledgement_is_told(run: Run) -> None:
    run.read("0", 5)
    run.acknowledged(0, 5)
    assert (run.result.acknowledged, run.result.consumed, run.result.faults) == (1, 1, 0)


@pytest.mark.parametrize(
    ("acknowledged", "read", "counted"),
    [
        pytest.param([(0, 0), (1, 1)], [("1", 1)], {"lost": 1}, id="acknowledged and not read"),
        pytest.param([(0, 0)], [("0", 0), ("0", 0)], {"duplicates": 0}, id="one offset read again"),
        pytest.param([(0, 0)], [("0", 0), ("0", 1)], {"duplicates": 1}, id="a second copy"),
        pytest.param([], [("1", 0), ("0", 1)], {"reordered": 1}, id="behind its successor"),
        pytest.param([(0, 7)], [("0", 8)], {"at_wrong_offset": 1}, id="at another offset"),
        pytest.param([], [("what?", 0), ("٣", 1)], {"altered": 2}, id="what nobody sent"),
    ],
)
def test_each_fault_is_counted(
    run: Run, acknowledged: list[tuple[int, int]], read: list[tuple[str, int]], counted: dict[str, int]
) -> None:
    for value, offset in acknowledged:
        run.acknowledged(value, offset)
    for text, offset in read:
        run.read(text, offset)
    assert {name: getattr(run.result, name) for name in counted} == counted


def test_a_record_whose_sending_failed_may_be_there_or_not(run: Run) -> None:
    run.not_acknowledged(0)
    run.not_acknowledged(1)
    run.read("1", 0)
    assert run.account.send_errors == {"TimeoutException": 2}
    assert (run.result.lost, run.result.faults) == (0, 0)


def test_other_events_are_passed_over_and_anything_else_is_an_error(run: Run) -> None:
    run.account.producer_said('{"name":"startup_complete","timestamp":1}')
    run.account.consumer_said('{"name":"partitions_assigned","partitions":[]}')
    assert run.result.sent == 0
    with pytest.raises(VerifiableClientError, match="OutOfMemoryError"):
        run.account.producer_said("java.lang.OutOfMemoryError\n")
