"""The front of a store that another server keeps: requests pass as they are, and faults are the front's."""

import contextlib
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.faulty_store import Fault, FaultyFront, FaultyServer


@pytest.fixture
def front() -> Iterator[FaultyServer]:
    """A front on a port, behind which stands another server with a bucket."""
    with FaultyServer(FaultyFront(), ["behind"]) as behind:
        host_and_port = behind.endpoint_url.removeprefix("http://")
        with FaultyServer(FaultyFront(behind=host_and_port), []) as front:
            yield front


@pytest.fixture
def client(front: FaultyServer) -> Iterator[Any]:
    """A client of boto3 that asks once."""
    made = boto3.client(
        "s3",
        endpoint_url=front.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}),
    )
    with contextlib.closing(made) as client:
        yield client


def test_objects_are_written_read_listed_and_deleted_through_it(client: Any) -> None:
    client.put_object(Bucket="behind", Key="a/1", Body=b"0123456789", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket="behind", Key="a/1", Body=b"other", IfNoneMatch="*")
    assert client.get_object(Bucket="behind", Key="a/1", Range="bytes=2-4")["Body"].read() == b"234"
    assert client.head_object(Bucket="behind", Key="a/1")["ContentLength"] == 10
    assert [one["Key"] for one in client.list_objects_v2(Bucket="behind", Prefix="a/")["Contents"]] == ["a/1"]
    client.delete_object(Bucket="behind", Key="a/1")
    assert client.list_objects_v2(Bucket="behind", Prefix="a/")["KeyCount"] == 0


def test_its_faults_strike_before_the_server_behind_it_is_asked(front: FaultyServer, client: Any) -> None:
    front.faults.add(Fault("error", methods=("PUT",), status=503, code="SlowDown"))
    with pytest.raises(ClientError, match="SlowDown"):
        client.put_object(Bucket="behind", Key="b", Body=b"x")
    front.faults.clear()
    assert client.list_objects_v2(Bucket="behind", Prefix="b")["KeyCount"] == 0
