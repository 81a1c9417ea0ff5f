import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_cluster.workload.ledger import (
    MAX_INFLIGHT_RECORDS,
    MINIMUM_PAYLOAD_BYTES,
    Ledger,
    Outcome,
    PayloadPattern,
    ProducerPlan,
    ProducerReport,
    RecordsInFlight,
    read_identity,
)

PLANS = [ProducerPlan("a", payload_bytes=40), ProducerPlan("b", payload_bytes=40)]


class Run:
    """A ledger of two producers, driven by hand on one partition."""

    def __init__(self) -> None:
        self.ledger = Ledger(PLANS)

    def send(self, count: int, outcome: Outcome = Outcome.ACKNOWLEDGED, first_offset: int = 0) -> None:
        page = self.ledger.pages[0]
        for offset in range(first_offset, first_offset + count):
            page.delivered(page.sent(), offset)
        page.settle(range(page.next_sequence - count, page.next_sequence), outcome)

    def read(self, *records: tuple[int, int]) -> None:
        """(sequence, offset) each."""
        for sequence, offset in records:
            self.ledger.read(0, offset, self.ledger.pages[0].pattern.value(0, sequence))

    @property
    def result(self) -> ProducerReport:
        return self.ledger.report().producers[0]


IN_ORDER = [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize(
    ("outcome", "read", "counted"),
    [
        pytest.param(Outcome.ACKNOWLEDGED, IN_ORDER, {"sent": 3, "acknowledged": 3, "consumed": 3}, id="all in order"),
        pytest.param(Outcome.ACKNOWLEDGED, [(0, 0), (2, 2)], {"lost": 1}, id="acknowledged and not read"),
        pytest.param(Outcome.UNKNOWN, [(1, 1)], {"consumed": 1}, id="without an answer it may be there or not"),
        pytest.param(Outcome.ACKNOWLEDGED, [*IN_ORDER, (2, 2)], {"duplicates": 0}, id="one offset read again"),
        pytest.param(Outcome.ACKNOWLEDGED, [*IN_ORDER, (2, 3)], {"duplicates": 1}, id="a second copy in the log"),
        pytest.param(Outcome.UNKNOWN, [(0, 0), (2, 1), (1, 2)], {"reordered": 1}, id="after its successor"),
        pytest.param(Outcome.ABORTED, [(1, 1)], {"aborted": 3, "aborted_but_read": 1}, id="aborted and read"),
        pytest.param(Outcome.ACKNOWLEDGED, [(0, 0), (1, 1), (2, 7)], {"at_wrong_offset": 1}, id="at another offset"),
        pytest.param(Outcome.ACKNOWLEDGED, [*IN_ORDER, (2**60, 3)], {"altered": 1, "consumed": 3}, id="never sent"),
    ],
)
def test_each_outcome_is_counted(outcome: Outcome, read: list[tuple[int, int]], counted: dict[str, int]) -> None:
    run = Run()
    run.send(3, outcome)
    run.read(*read)
    assert {name: getattr(run.result, name) for name in counted} == counted
    faults = {"lost", "duplicates", "reordered", "aborted_but_read", "at_wrong_offset", "altered"}
    assert run.result.faults == sum(count for name, count in counted.items() if name in faults)


def test_a_record_that_was_sent_again_after_its_answer_was_lost_is_acknowledged_without_an_offset() -> None:
    run = Run()
    run.send(1)
    page = run.ledger.pages[0]
    page.delivered(page.sent(), None)
    page.settle(range(1, 2), Outcome.ACKNOWLEDGED)
    run.read((0, 0), (1, 1))
    assert (run.result.acknowledged, run.result.faults) == (2, 0)


def test_order_counts_within_a_partition_only() -> None:
    run = Run()
    run.send(2, Outcome.UNKNOWN)
    pattern = run.ledger.pages[0].pattern
    run.ledger.read(1, 0, pattern.value(0, 1))
    run.ledger.read(0, 0, pattern.value(0, 0))
    assert run.result.faults == 0


@given(st.integers(16, 39), st.integers(1, 255))
def test_any_altered_byte_of_the_body_shows(position: int, flip: int) -> None:
    run = Run()
    run.send(1)
    value = bytearray(run.ledger.pages[0].pattern.value(0, 0))
    value[position] ^= flip
    run.ledger.read(0, 0, bytes(value))
    assert (run.result.altered, run.result.faults) == (1, 1)


@pytest.mark.parametrize("value", [None, b"", b"somebody else's record of some length"])
def test_records_of_others_are_counted_apart(value: bytes | None) -> None:
    run = Run()
    run.ledger.read(0, 0, value)
    assert run.ledger.report().foreign_records == 1
    assert run.ledger.report().faults == 0


@given(st.integers(0, 1000), st.integers(0, 2**50), st.integers(MINIMUM_PAYLOAD_BYTES, 300))
def test_a_value_tells_its_producer_and_sequence_and_has_its_size(number: int, sequence: int, size: int) -> None:
    value = PayloadPattern(1, size).value(number, sequence)
    assert read_identity(value) == (number, sequence)
    assert len(value) == size


def test_a_payload_too_small_for_the_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes at least"):
        PayloadPattern(0, MINIMUM_PAYLOAD_BYTES - 1)


def test_a_partition_takes_one_batch_and_then_waits_for_its_answers() -> None:
    records = RecordsInFlight([3, 4], linger_s=1.0, batch_records=8)

    def fill(first: int, now_s: float) -> list[int]:
        taken: list[int] = []
        while (partition := records.open_partition(first + len(taken), now_s)) is not None:
            records.sent(partition, first + len(taken), now_s)
            taken.append(partition)
        return taken

    assert fill(0, 0.0) == [3, 4] * 8
    assert fill(16, 0.9) == [], "the batches are full"
    for sequence in range(0, 6, 2):
        records.answered(3, sequence)
    assert fill(16, 1.5) == [], "librdkafka would keep them back"
    for sequence in range(6, 16, 2):
        records.answered(3, sequence)
    assert fill(16, 1.5) == [3] * 8, "the other partition still waits"


def test_a_partition_takes_records_one_by_one_without_lingering() -> None:
    records = RecordsInFlight([0], linger_s=0.0, batch_records=1000)
    for sequence in range(MAX_INFLIGHT_RECORDS):
        assert records.open_partition(sequence, 1.0) == 0
        records.sent(0, sequence, 1.0)
    assert records.open_partition(MAX_INFLIGHT_RECORDS, 1.0) is None
    records.answered(0, 0)
    assert records.open_partition(MAX_INFLIGHT_RECORDS, 1.0) == 0
