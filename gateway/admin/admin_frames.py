"""Reads and writes frames of admin requests and answers, by kafka-python's schemas. Sans-IO.

A frame counts as understood only if writing it again gives the same bytes. So an edited frame loses nothing, whatever a
client or a newer broker put in.
"""

from enum import IntEnum
from typing import Any, Final

from kafka.protocol.admin import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

from kafka_log.crc32c import Buffer
from replication.wire.kafka_frame import MalformedFrameError, RequestHeader

MAX_READ_BYTES: Final = 16 * 1024 * 1024
"""Larger frames are not read. A topic's description takes some 5 KB."""


class AdminApi(IntEnum):
    """Kafka's API keys of the requests that are looked at."""

    CREATE_TOPICS = 19
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    INCREMENTAL_ALTER_CONFIGS = 44


_REQUESTS: Final = {
    AdminApi.CREATE_TOPICS: CreateTopicsRequest,
    AdminApi.DESCRIBE_CONFIGS: DescribeConfigsRequest,
    AdminApi.ALTER_CONFIGS: AlterConfigsRequest,
    AdminApi.INCREMENTAL_ALTER_CONFIGS: IncrementalAlterConfigsRequest,
}
_ANSWERS: Final = {
    AdminApi.CREATE_TOPICS: CreateTopicsResponse,
    AdminApi.DESCRIBE_CONFIGS: DescribeConfigsResponse,
    AdminApi.ALTER_CONFIGS: AlterConfigsResponse,
    AdminApi.INCREMENTAL_ALTER_CONFIGS: IncrementalAlterConfigsResponse,
}


def is_read(header: RequestHeader, size: int) -> bool:
    """Whether a request with this header and size is looked at."""
    if header.api_key not in _REQUESTS or size > MAX_READ_BYTES:
        return False
    lowest, highest = _REQUESTS[AdminApi(header.api_key)].valid_versions
    return bool(lowest <= header.api_version <= highest)


def read_request(api: AdminApi, version: int, frame: Buffer) -> Any:
    """Return kafka-python's message, header included. Raises MalformedFrameError if it is not understood."""
    return _read(_REQUESTS[api], version, frame)


def read_answer(api: AdminApi, version: int, frame: Buffer) -> Any:
    """Return kafka-python's message. Raises MalformedFrameError if it is not understood."""
    return _read(_ANSWERS[api], version, frame)


def written(message: Any) -> bytes:
    """Encode a message that was read."""
    return bytes(message.encode(header=True))


def _read(kind: Any, version: int, frame: Buffer) -> Any:
    try:
        message = kind.decode(bytes(frame), version=version, header=True)
        again = written(message)
    except Exception as error:  # its decoder may fail in any way on a frame that is not its own
        raise MalformedFrameError(0, f"{kind.__name__} of version {version} is not read: {error!r}") from error
    if again != frame:
        raise MalformedFrameError(0, f"{kind.__name__} of version {version} has what would be lost")
    return message
