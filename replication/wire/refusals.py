"""Answers refused requests in Kafka's own protocol, if the response has an error field for the whole request. Sans-IO.

Such a request gets CLUSTER_AUTHORIZATION_FAILED, as from a broker whose authorizer denies it, and the connection stays
open. These cases end the connection:

- versions that are unknown here, and responses that report errors item by item, because the request would have to be
  read;
- a request that comes while another is under way, because responses must come in the order of requests;
- more than a few refusals on one connection: each is logged, and a client that keeps asking is not just misconfigured.
"""

from functools import cache
from typing import Any, Final

from kafka_log.crc32c import Buffer
from replication.wire.broker_requests import RequestRefusedError
from replication.wire.kafka_frame import MalformedFrameError, parse_request_header

CLUSTER_AUTHORIZATION_FAILED: Final = 31
ANSWERS_ON_A_CONNECTION: Final = 4


@cache
def responses() -> dict[int, tuple[Any, int]]:
    """Return by API key what can hold an error for the whole of the request, and from which version on.

    Imported where it is needed: it takes longer than all else that relaying begins with.
    """
    from kafka.protocol.admin import (
        AlterPartitionReassignmentsResponse,
        DescribeAclsResponse,
        DescribeClientQuotasResponse,
        DescribeClusterResponse,
        DescribeQuorumResponse,
        DescribeUserScramCredentialsResponse,
        ElectLeadersResponse,
        ListGroupsResponse,
        ListPartitionReassignmentsResponse,
        ListTransactionsResponse,
        UpdateFeaturesResponse,
    )
    from kafka.protocol.consumer import FetchResponse
    from kafka.protocol.producer import InitProducerIdResponse

    return {
        response.API_KEY: (response, first)
        for response, first in (
            (FetchResponse, 12),  # the first version that is read here
            (ListGroupsResponse, 0),
            (InitProducerIdResponse, 0),
            (DescribeAclsResponse, 0),
            (ElectLeadersResponse, 1),
            (AlterPartitionReassignmentsResponse, 0),
            (ListPartitionReassignmentsResponse, 0),
            (DescribeClientQuotasResponse, 0),
            (DescribeUserScramCredentialsResponse, 0),
            (DescribeQuorumResponse, 0),
            (UpdateFeaturesResponse, 0),
            (DescribeClusterResponse, 0),
            (ListTransactionsResponse, 0),
        )
    }


class Refusals:
    """Answers the refused requests of one connection."""

    def __init__(self) -> None:
        self._left = ANSWERS_ON_A_CONNECTION

    def answer(self, frame: Buffer, error: RequestRefusedError, *, is_idle: bool) -> bytes:
        """Return the answer to a refused request. `is_idle`: no other request is under way.

        Raises `error` if the request cannot be answered.
        """
        answer = _answer(frame) if is_idle and self._left else None
        if answer is None:
            raise error
        self._left -= 1
        return answer


def _answer(frame: Buffer) -> bytes | None:
    try:
        header = parse_request_header(frame)
    except MalformedFrameError:
        return None
    response, first = responses().get(header.api_key, (None, 0))
    if response is None or not first <= header.api_version <= response.max_version:
        return None
    message = response(version=header.api_version, error_code=CLUSTER_AUTHORIZATION_FAILED)
    message.with_header(correlation_id=header.correlation_id)
    return bytes(message.encode(header=True))
