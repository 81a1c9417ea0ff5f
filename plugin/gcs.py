"""The backend on Google Cloud Storage, by obstore, which speaks Google's XML API.

For buckets in a region. A zonal bucket (Rapid Storage) is not for this API.
"""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from obstore.store import GCSStore
from pydantic import Field

from plugin.clients.backend_settings import METADATA_SERVICE, ObjectBackendSettings, RemoteBackendSettings
from plugin.clients.object_store import ObjectStore
from plugin.clients.obstore_store import ObstoreObjectStore, check_identity, client_options, one_attempt, opened
from plugin.errors import RemoteStorageConfigError
from plugin.object_wal_storage_manager import ObjectWalStorageManager

if TYPE_CHECKING:
    from obstore.store import GCSConfig

PERMISSIONS: Final = {
    "put": "storage.objects.create",
    "get": "storage.objects.get",
    "head": "storage.objects.get",
    "delete": "storage.objects.delete",
    "list": "storage.objects.list",
}
_PAGE_OBJECTS: Final = 1000
_METADATA_SERVICES: Final = ("http://metadata.google.internal", METADATA_SERVICE)


class GcsSettings(RemoteBackendSettings):
    bucket: str = Field(min_length=3, description="The bucket's name.")
    credentials_file: Path | None = Field(
        default=None,
        description="A service account's key, in JSON, read anew when it changes. Default: Google's Application "
        "Default Credentials, such as the machine's service account.",
    )


class GcsWalStorageManager(ObjectWalStorageManager):
    """Stores combined segments as objects in a bucket of Google Cloud Storage."""

    settings_model = GcsSettings

    def open_store(self, settings: ObjectBackendSettings) -> ObjectStore:
        assert isinstance(settings, GcsSettings)  # noqa: S101 - narrows what settings_model made
        place = f"gs://{settings.bucket}/"
        return ObstoreObjectStore(
            partial(_open, settings), PERMISSIONS, _PAGE_OBJECTS, settings.credentials_file, place
        )


def _open(settings: GcsSettings) -> GCSStore:
    options, retries = client_options(settings), one_attempt(settings)
    config: GCSConfig = {}
    if settings.endpoint_url is not None:
        config["base_url"] = settings.endpoint_url
    if settings.credentials_file is not None:
        if not settings.credentials_file.is_file():
            raise RemoteStorageConfigError("configure", "credentials.file", "is not there")
        config["service_account"] = str(settings.credentials_file)
    elif not (
        Path(os.environ.get("HOME", os.devnull)) / ".config/gcloud/application_default_credentials.json"
    ).exists():
        check_identity("credentials.file", "GOOGLE_.*(ACCOUNT|CREDENTIALS).*", *_METADATA_SERVICES)
    return opened(
        "credentials.file",
        "a service account's key in JSON; or set GOOGLE_APPLICATION_CREDENTIALS",
        lambda: GCSStore(settings.bucket, config=config, client_options=options, retry_config=retries),
    )
