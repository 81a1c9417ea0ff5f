import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import botocore.loaders
import botocore.session
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from local_cluster.object_store_front import ObjectStoreFront
from local_cluster.object_store_server import DEFAULT_BUCKET, DEFAULT_DIRECTORY_BUCKET, ObjectStoreServer
from plugin.local_directory import LocalWalStorageManager
from plugin.s3 import S3WalStorageManager
from plugin.s3_express import S3ExpressWalStorageManager
from tests.plugin.storage_backends import Backend

_numbers = itertools.count(1)


@pytest.fixture(scope="session", autouse=True)
def _one_loader_for_all_clients() -> Iterator[None]:
    """botocore reads its service models anew for each session, which would be most of these tests' time."""
    loader = botocore.loaders.create_loader()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", lambda *_: loader)
        yield


@pytest.fixture(scope="session")
def shared_server() -> Iterator[ObjectStoreServer]:
    with ObjectStoreServer(ObjectStoreFront(), [DEFAULT_BUCKET, DEFAULT_DIRECTORY_BUCKET]) as server:
        yield server


@pytest.fixture
def server(shared_server: ObjectStoreServer) -> Iterator[ObjectStoreServer]:
    yield shared_server
    shared_server.faults.clear()


@pytest.fixture
def credentials_file(tmp_path: Path) -> Path:
    path = tmp_path / "credentials"
    path.write_text("[default]\naws_access_key_id = planted-key\naws_secret_access_key = planted-secret\n")
    return path


@pytest.fixture
def cloud_settings(server: ObjectStoreServer, credentials_file: Path) -> dict[str, str]:
    """All but the bucket."""
    return {
        "region": "us-east-1",
        "endpoint.url": server.endpoint_url,
        "allow.http": "true",
        "credentials.file": str(credentials_file),
    }


def _closing(backend: Backend) -> Iterator[Backend]:
    yield backend
    for manager in backend.made:
        manager.close()


@pytest.fixture(params=["local", "s3", "s3_express"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Each backend in turn, with a cluster of its own in a shared bucket."""
    if request.param == "local":
        cluster_id = f"cluster-{next(_numbers)}"
        settings = {"directory": str(tmp_path / "objects")}
        yield from _closing(Backend(LocalWalStorageManager, settings, cluster_id, []))
    else:
        yield from _closing(_cloud_backend(request.param, request.getfixturevalue("cloud_settings")))


@pytest.fixture(params=["s3", "s3_express"])
def cloud(request: pytest.FixtureRequest, cloud_settings: dict[str, str]) -> Iterator[Backend]:
    """The backends that speak HTTP."""
    yield from _closing(_cloud_backend(request.param, cloud_settings))


@pytest.fixture
def express(cloud_settings: dict[str, str]) -> Iterator[Backend]:
    yield from _closing(_cloud_backend("s3_express", cloud_settings))


def _cloud_backend(kind: str, settings: dict[str, str]) -> Backend:
    cluster_id = f"cluster-{next(_numbers)}"
    if kind == "s3":
        return Backend(S3WalStorageManager, {**settings, "bucket": DEFAULT_BUCKET}, cluster_id, [])
    return Backend(S3ExpressWalStorageManager, {**settings, "bucket": DEFAULT_DIRECTORY_BUCKET}, cluster_id, [])
