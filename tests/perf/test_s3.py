"""What is told of two clients of a store."""

from pathlib import Path

from local_cluster.object_store.front import ObjectStoreFront
from local_cluster.object_store.server import DEFAULT_BUCKET, ObjectStoreServer
from perf.s3 import CLIENTS, Pair, measure
from plugin.s3 import S3WalStorageManager


def test_rounds_are_compared_with_each_other_not_with_the_whole() -> None:
    pair = Pair("S3", "PUT", {"direct": [1.0, 10.0, 2.0], "boto3": [2.0, 30.0, 2.0]})
    assert pair.times_cheaper == 2.0


def test_both_clients_write_and_read_the_same_objects_in_each_round(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = key\naws_secret_access_key = secret\n")
    with ObjectStoreServer(ObjectStoreFront(), [DEFAULT_BUCKET]) as server:
        settings = {
            "bucket": DEFAULT_BUCKET,
            "region": "us-east-1",
            "endpoint.url": server.endpoint_url,
            "allow.http": "true",
            "credentials.file": str(file),
        }
        pairs = measure("S3", S3WalStorageManager, settings, b"a" * 1000, rounds=2, requests=3)
    assert [pair.request for pair in pairs] == ["PUT", "GET"]
    for pair in pairs:
        assert {client: len(pair.cpu_ms[client]) for client in CLIENTS} == dict.fromkeys(CLIENTS, 2)
