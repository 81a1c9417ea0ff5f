"""The object store of a local cluster's agents, as settings of the storage plugin."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

S3_BACKEND = "plugin.s3.S3WalStorageManager"
S3_EXPRESS_BACKEND = "plugin.s3_express.S3ExpressWalStorageManager"


class OwnStore(StrEnum):
    """The object stores that a local cluster can start by itself."""

    LOCAL = "local"
    """A directory, with the latencies of a store in the same zone."""
    S3_NATIVE = "s3native"
    """Compiled by Go, under TLS: see `local_cluster.object_store.native`."""


class StoreSpec(Protocol):
    """An object store, as settings of the agents."""

    @property
    def class_name(self) -> str:
        """The value of remote.log.wal.storage.manager.class.name."""

    def settings(self, default_directory: Path) -> dict[str, str]:
        """Return the backend's settings, without prefix. `default_directory`: the cluster's directory for objects."""

    def environment(self) -> dict[str, str]:
        """Return environment variables of the agent process: credentials go here, never into a file."""


@dataclass(frozen=True, slots=True)
class LocalDirectoryStore:
    """A store whose objects are files of a directory; its latencies imitate a store in the same zone."""

    put_latency_ms: int = 5
    get_latency_ms: int = 5
    directory: Path | None = None
    class_name: str = "plugin.local_directory.LocalWalStorageManager"

    def settings(self, default_directory: Path) -> dict[str, str]:
        return {
            "directory": str(self.directory or default_directory),
            "put.latency.ms": str(self.put_latency_ms),
            "get.latency.ms": str(self.get_latency_ms),
        }

    def environment(self) -> dict[str, str]:
        return {}


@dataclass(frozen=True, slots=True)
class S3Store:
    """A store on a bucket behind an S3 endpoint of this machine. The default credentials are those of test servers."""

    endpoint_url: str
    bucket: str
    class_name: str = S3_BACKEND
    access_key_id: str = field(default="local", repr=False)
    secret_access_key: str = field(default="local", repr=False)
    more_settings: Mapping[str, str] = field(default_factory=dict)

    def settings(self, default_directory: Path) -> dict[str, str]:
        return {
            "bucket": self.bucket,
            "endpoint.url": self.endpoint_url,
            "region": "us-east-1",
            "allow.http": str(self.endpoint_url.startswith("http://")).lower(),
            **self.more_settings,
        }

    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": self.access_key_id, "AWS_SECRET_ACCESS_KEY": self.secret_access_key}
