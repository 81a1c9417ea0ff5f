"""EndTxn and DescribeTransactions as kafka-python has them, which knows nothing of our scanner."""

from collections.abc import Iterable

from kafka.protocol.admin import DescribeTransactionsRequest, DescribeTransactionsResponse
from kafka.protocol.producer import EndTxnRequest, EndTxnResponse

from kafka_log.crc32c import Buffer
from tests.gateway.produce.produce_frames import encode

VERSIONS = (0, 1, 2, 3, 4, 5)
TRANSACTIONAL_ID = "trans-aktion-é"
PRODUCER_ID, EPOCH = 4711, 12


def end_txn(version: int, number: int, *, client_id: str | None = "producer", committed: bool = True) -> bytes:
    message = EndTxnRequest(
        transactional_id=TRANSACTIONAL_ID,
        producer_id=PRODUCER_ID,
        producer_epoch=EPOCH,
        committed=committed,
        version=version,
    )
    return encode(message, number, client_id)


def end_txn_answer(version: int, number: int, error: int = 0) -> bytes:
    producer = {"producer_id": PRODUCER_ID, "producer_epoch": EPOCH + 1} if version >= 5 else {}
    message = EndTxnResponse(throttle_time_ms=3, error_code=error, version=version, **producer)
    message.with_header(correlation_id=number)
    return bytes(message.encode(header=True))


def told(frame: bytes, version: int) -> tuple[int, int | None, int | None]:
    """As a client reads an answer to EndTxn: the error, and who it is to go on as."""
    message = EndTxnResponse.decode(frame, version=version, header=True)
    assert message.throttle_time_ms == 3
    return message.error_code, *((message.producer_id, message.producer_epoch) if version >= 5 else (None, None))


def asked_to_describe(frame: Buffer) -> tuple[int, str | None, list[str]]:
    """As a broker reads the request: its number, the client, and of what."""
    message = DescribeTransactionsRequest.decode(bytes(frame), version=0, header=True)
    return message.header.correlation_id, message.header.client_id, list(message.transactional_ids)


def description(
    number: int, state: str, partitions: Iterable[tuple[str, int]] = (), error: int = 0, began_ms: int = 1
) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    kind = DescribeTransactionsResponse.TransactionState
    one = kind(
        error_code=error,
        transactional_id=TRANSACTIONAL_ID,
        transaction_state=state,
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=began_ms,
        producer_id=PRODUCER_ID,
        producer_epoch=EPOCH,
        topics=[kind.TopicData(topic=topic, partitions=ones) for topic, ones in by_topic.items()],
    )
    message = DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=[one], version=0)
    message.with_header(correlation_id=number)
    return bytes(message.encode(header=True))
