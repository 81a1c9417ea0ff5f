"""The object store of a local cluster's agents, as settings of the storage plugin."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

S3_BACKEND = "plugin.s3.S3WalStorageManager"
S3_EXPRESS_BACKEND = "plugin.s3_express.S3ExpressWalStorageManager"


class StoreKind(StrEnum):
    """Object stores of this machine."""

    LOCAL = "local"
    """A directory, with the latencies of a store in the same zone."""
    S3 = "s3"
    S3_NATIVE = "s3native"
    """Compiled by Go, under TLS: see `local_cluster.object_store.native`."""
    S3_EXPRESS = "s3express"

    @property
    def backend(self) -> str:
        """The storage manager's class, for the S3 stores."""
        return S3_EXPRESS_BACKEND if self is StoreKind.S3_EXPRESS else S3_BACKEND

    @property
    def is_in_one_zone(self) -> bool:
        """Whether its costs are those of S3 Express, or of S3 Standard."""
        return self in (StoreKind.LOCAL, StoreKind.S3_EXPRESS)

    @property
    def description(self) -> str:
        """A description for people."""
        return {
            StoreKind.LOCAL: "a local directory (5 ms per request)",
            StoreKind.S3: "an S3 server on this machine",
            StoreKind.S3_NATIVE: "a native S3 server on this machine, under TLS",
            StoreKind.S3_EXPRESS: "an S3 Express look-alike on this machine",
        }[self]


class StoreSpec(Protocol):
    """The agents' settings of their object store."""

    @property
    def class_name(self) -> str:
        """Value of remote.log.wal.storage.manager.class.name."""

    def settings(self, default_directory: Path) -> dict[str, str]:
        """Return the backend's settings, without prefix. `default_directory`: the cluster's directory for objects."""

    def environment(self) -> dict[str, str]:
        """Return environment variables of the agent process: credentials go here, never into a file."""


@dataclass(frozen=True, slots=True)
class LocalDirectoryStore:
    """Objects are files of a directory; the latencies imitate a store in the same zone."""

    put_latency_ms: int = 5
    get_latency_ms: int = 5
    directory: Path | None = None

    @property
    def class_name(self) -> str:
        return "plugin.local_directory.LocalWalStorageManager"

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
    """A bucket behind an S3 endpoint of this machine. The default credentials are those of test servers."""

    endpoint_url: str
    bucket: str
    region: str = "us-east-1"
    access_key_id: str = field(default="local", repr=False)
    secret_access_key: str = field(default="local", repr=False)
    backend: str = S3_BACKEND
    more_settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def class_name(self) -> str:
        return self.backend

    def settings(self, default_directory: Path) -> dict[str, str]:
        return {
            "bucket": self.bucket,
            "endpoint.url": self.endpoint_url,
            "region": self.region,
            "allow.http": str(self.endpoint_url.startswith("http://")).lower(),
            **self.more_settings,
        }

    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": self.access_key_id, "AWS_SECRET_ACCESS_KEY": self.secret_access_key}
