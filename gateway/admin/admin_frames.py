"""Frames of admin requests and answers, read and written by kafka-python's schemas. Sans-IO.

Holds true: a frame counts as understood only if it is written again just as it came, byte for byte. So nothing of what
is passed on in an edited frame can be lost, whatever a client or a newer broker put in.
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
    """Kafka's api keys of the requests that are looked at."""

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
    """Whether this may be a request to look at."""
    if header.api_key not in _REQUESTS or size > MAX_READ_BYTES:
        return False
    lowest, highest = _REQUESTS[AdminApi(header.api_key)].valid_versions
    return bool(lowest <= header.api_version <= highest)


def read_request(api: AdminApi, version: int, frame: Buffer) -> Any:
    """Kafka-python's message, its header included. Raises MalformedFrameError where it is not understood."""
    return _read(_REQUESTS[api], version, frame)


def read_answer(api: AdminApi, version: int, frame: Buffer) -> Any:
    """As `read_request`."""
    return _read(_ANSWERS[api], version, frame)


def written(message: Any) -> bytes:
    """The frame of a message that was read."""
    return bytes(message.encode(header=True))


def _read(kind: Any, version: int, frame: Buffer) -> Any:
    try:
        message = kind.decode(bytes(frame), version=version, header=True)
        again = written(message)
    except Exception as error:  # its decoder may fail in any way on what is none of its frames
        raise MalformedFrameError(0, f"{kind.__name__} of version {version} is not read: {error!r}") from error
    if again != frame:
        raise MalformedFrameError(0, f"{kind.__name__} of version {version} has what would be lost")
    return message
