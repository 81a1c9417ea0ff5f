"""The backend on Azure Blob Storage, by obstore.

For accounts without a hierarchical namespace, whose listings are in the order of keys.
"""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from obstore.store import AzureStore
from pydantic import Field

from plugin.clients.backend_settings import METADATA_SERVICE, ObjectBackendSettings, RemoteBackendSettings
from plugin.clients.object_store import ObjectStore
from plugin.clients.obstore_store import (
    ObstoreObjectStore,
    check_identity,
    client_options,
    one_attempt,
    opened,
    read_setting,
)
from plugin.errors import RemoteStorageConfigError
from plugin.object_wal_storage_manager import ObjectWalStorageManager

if TYPE_CHECKING:
    from obstore.store import AzureConfig

_BLOBS: Final = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
PERMISSIONS: Final = {
    "put": f"{_BLOBS}/write",
    "get": f"{_BLOBS}/read",
    "head": f"{_BLOBS}/read",
    "delete": f"{_BLOBS}/delete",
    "list": f"{_BLOBS}/read",
}
_PAGE_OBJECTS: Final = 5000


class AzureBlobSettings(RemoteBackendSettings):
    account: str = Field(pattern="^[a-z0-9]{3,24}$", description="The storage account's name.")
    container: str = Field(min_length=3, description="The container's name.")
    account_key_file: Path | None = Field(
        default=None,
        description="A file with nothing but the account's key, read anew when it changes. Not together with "
        "sas.token.file.",
    )
    sas_token_file: Path | None = Field(
        default=None,
        description="A file with nothing but a shared access signature for the container, read anew when it changes. "
        "Default: the workload's or the machine's managed identity.",
    )


class AzureBlobWalStorageManager(ObjectWalStorageManager):
    """Stores combined segments as block blobs in a container of Azure Blob Storage."""

    settings_model = AzureBlobSettings
    bucket_key = "container"

    def open_store(self, settings: ObjectBackendSettings) -> ObjectStore:
        assert isinstance(settings, AzureBlobSettings)  # noqa: S101 - narrows what settings_model made
        file = settings.account_key_file or settings.sas_token_file
        place = f"azure://{settings.account}/{settings.container}/"
        return ObstoreObjectStore(partial(_open, settings), PERMISSIONS, _PAGE_OBJECTS, file, place)


def _open(settings: AzureBlobSettings) -> AzureStore:
    options, retries = client_options(settings), one_attempt(settings)
    if settings.account_key_file and settings.sas_token_file:
        raise RemoteStorageConfigError("configure", "sas.token.file", "there is an account.key.file as well")
    config: AzureConfig = {"account_name": settings.account}
    key, hint = "account", "and see AZURE_CLIENT_ID and the like in the environment"
    if settings.endpoint_url is not None:
        config["endpoint"] = settings.endpoint_url
    if settings.account_key_file is not None:
        key, hint = "account.key.file", "nothing but the key, in base64, as the portal shows it"
        config["account_key"] = read_setting(key, settings.account_key_file)
    elif settings.sas_token_file is not None:
        key, hint = "sas.token.file", "nothing but the token: sv=...&sig=..."
        config["sas_key"] = read_setting(key, settings.sas_token_file)
    else:
        service = os.environ.get("IDENTITY_ENDPOINT", METADATA_SERVICE)
        check_identity("sas.token.file", "AZURE_.*(KEY|SECRET|TOKEN|SAS).*", service)
    return opened(
        key, hint, lambda: AzureStore(settings.container, config=config, client_options=options, retry_config=retries)
    )
