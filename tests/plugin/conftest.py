import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import botocore.loaders
import botocore.session
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

sys.path.insert(0, str(Path(__file__).parent))

from plugin.azure_blob import AzureBlobWalStorageManager
from plugin.clients.s3_direct import S3Direct
from plugin.gcs import GcsWalStorageManager
from plugin.local_directory import LocalWalStorageManager
from plugin.s3 import S3WalStorageManager
from plugin.s3_express import S3ExpressWalStorageManager
from tests.faulty_store import DEFAULT_BUCKET, DEFAULT_DIRECTORY_BUCKET, FaultyServer
from tests.plugin import azurite
from tests.plugin.dialect_front import AZURITE_ACCOUNT, LOOK_ALIKE_ACCOUNT, DialectFront
from tests.plugin.storage_backends import Backend, thorough

_numbers = itertools.count(1)
_WITHOUT_AZURITE = pytest.mark.skipif(not azurite.is_installed(), reason=azurite.WHY_SKIPPED)
OF_OBSTORE = ["gcs", "azure", pytest.param("azurite", marks=_WITHOUT_AZURITE)]
EXPRESS = ["s3_express", *thorough("s3_express_by_boto3")]
OF_S3 = [*EXPRESS, "s3", "s3_by_boto3"]
"""Each kind of bucket and each client; only `--all` has all pairs of them."""
SPEAK_HTTP = [*OF_S3, *OF_OBSTORE]


@pytest.fixture(scope="session", autouse=True)
def _one_loader_for_all_clients() -> Iterator[None]:
    """botocore reads its service models anew for each session, which would be most of these tests' time."""
    loader = botocore.loaders.create_loader()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", lambda *_: loader)
        yield


@pytest.fixture(scope="session")
def front() -> DialectFront:
    return DialectFront()


@pytest.fixture(scope="session")
def shared_server(front: DialectFront) -> Iterator[FaultyServer]:
    with FaultyServer(front, [DEFAULT_BUCKET, DEFAULT_DIRECTORY_BUCKET]) as server:
        yield server


@pytest.fixture(scope="session")
def _azurite(front: DialectFront, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with azurite.running(tmp_path_factory.mktemp("azurite"), DEFAULT_BUCKET) as port:
        front.azurite_port, front.azurite_sas_token = port, azurite.sas_token()
        yield


@pytest.fixture(scope="session")
def service_account(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as Google gives it out, with a key that nobody else has."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = tmp_path_factory.mktemp("google") / "service-account.json"
    fields = {"client_email": "agent@example.com", "private_key": key.decode(), "private_key_id": "planted-key"}
    path.write_text(json.dumps(fields))
    return path


@pytest.fixture
def server(shared_server: FaultyServer) -> Iterator[FaultyServer]:
    yield shared_server
    shared_server.faults.clear()


@pytest.fixture
def credentials_file(tmp_path: Path) -> Path:
    path = tmp_path / "credentials"
    path.write_text("[default]\naws_access_key_id = planted-key\naws_secret_access_key = planted-secret\n")
    return path


@pytest.fixture
def cloud_settings(server: FaultyServer, credentials_file: Path) -> dict[str, str]:
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


@pytest.fixture(params=["local", *SPEAK_HTTP])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Each backend in turn, with a cluster of its own in a shared bucket."""
    if request.param == "local":
        cluster_id = f"cluster-{next(_numbers)}"
        settings = {"directory": str(tmp_path / "objects")}
        yield from _closing(Backend(LocalWalStorageManager, settings, cluster_id, []))
    else:
        yield from _closing(_http_backend(request))


@pytest.fixture(params=SPEAK_HTTP)
def remote(request: pytest.FixtureRequest) -> Iterator[Backend]:
    yield from _closing(_http_backend(request))


@pytest.fixture(params=OF_OBSTORE)
def by_obstore(request: pytest.FixtureRequest) -> Iterator[Backend]:
    yield from _closing(_http_backend(request))


@pytest.fixture(params=OF_S3)
def cloud(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """S3's two, by both clients."""
    yield from _closing(_http_backend(request))


@pytest.fixture(params=EXPRESS)
def express(request: pytest.FixtureRequest) -> Iterator[Backend]:
    yield from _closing(_http_backend(request))


def _cloud_backend(request: pytest.FixtureRequest) -> Backend:
    kind, settings, cluster_id = request.param, request.getfixturevalue("cloud_settings"), f"cluster-{next(_numbers)}"
    if kind.endswith("_by_boto3"):
        patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
        patch.setattr(S3Direct, "admits", lambda *_: False)
    if "express" in kind:
        return Backend(S3ExpressWalStorageManager, {**settings, "bucket": DEFAULT_DIRECTORY_BUCKET}, cluster_id, [])
    return Backend(S3WalStorageManager, {**settings, "bucket": DEFAULT_BUCKET}, cluster_id, [])


def _http_backend(request: pytest.FixtureRequest) -> Backend:
    kind: str = request.param
    if kind.startswith("s3"):
        return _cloud_backend(request)
    server: FaultyServer = request.getfixturevalue("server")
    cluster_id = f"cluster-{next(_numbers)}"
    settings = {"endpoint.url": server.endpoint_url, "allow.http": "true"}
    if kind == "gcs":
        file = request.getfixturevalue("service_account")
        settings |= {"bucket": DEFAULT_BUCKET, "credentials.file": str(file)}
        return Backend(GcsWalStorageManager, settings, cluster_id, [])
    account, key, secret = LOOK_ALIKE_ACCOUNT, "sas.token.file", "sv=2019-12-12&sig=planted-secret"
    if kind == "azurite":
        request.getfixturevalue("_azurite")
        account, key, secret = AZURITE_ACCOUNT, "account.key.file", azurite.KEY
    file = request.getfixturevalue("tmp_path") / "secret"
    file.write_text(secret + "\n")
    settings["endpoint.url"] += f"/{account}"
    settings |= {"account": account, "container": DEFAULT_BUCKET, key: str(file)}
    return Backend(AzureBlobWalStorageManager, settings, cluster_id, [])
