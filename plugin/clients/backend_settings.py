"""A backend's settings: `put_latency_ms` in the model is `put.latency.ms` in the file."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import SplitResult, urlsplit

from pydantic import ConfigDict, Field, ValidationError, model_validator

from plugin.errors import RemoteStorageConfigError, fault_text
from plugin.text_settings import TextSettings


def _kafka_style(field_name: str) -> str:
    return field_name.replace("_", ".")


class ObjectBackendSettings(TextSettings):
    """The settings that all object backends have. Each backend adds its own; unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_kafka_style, hide_input_in_errors=True)

    prefix: str = Field(default="", description="What all keys start with: plain names with / between them.")
    attempt_timeout_ms: int = Field(
        default=2000,
        ge=1,
        description="How long one request may take. Unless it is set, commands that can wait take up to 30000.",
    )
    total_timeout_ms: int = Field(
        default=10_000,
        ge=1,
        description="How long a call may take with all its retries. Unless it is set, commands that can wait take up "
        "to 60000.",
    )

    @model_validator(mode="after")
    def _an_attempt_fits(self) -> "ObjectBackendSettings":
        if self.total_timeout_ms < self.attempt_timeout_ms:
            raise ValueError("total.timeout.ms must be at least attempt.timeout.ms")
        return self


class RemoteBackendSettings(ObjectBackendSettings):
    """The settings of backends that are reached over a network."""

    endpoint_url: str | None = Field(default=None, description="For stores other than the provider's own.")
    allow_http: bool = Field(
        default=False, description="Permit an http:// endpoint: record data then crosses in the clear."
    )
    tls_ca_file: Path | None = Field(
        default=None, description="Certificates to trust besides the system's; for S3 instead of them."
    )

    @property
    def connect_timeout_ms(self) -> int:
        """How long a connection may take to open: a part of an attempt (guessed)."""
        return min(_CONNECT_MAX_MS, max(self.attempt_timeout_ms // 4, 1))

    @property
    def read_timeout_seconds(self) -> float:
        """How long a read may take once the connection is open: the rest of an attempt."""
        return max(self.attempt_timeout_ms - self.connect_timeout_ms, 1) / 1000


_CONNECT_MAX_MS: Final = 5_000
_UNHURRIED_ATTEMPT_MS: Final = 30_000
_UNHURRIED_TOTAL_MS: Final = 60_000
_TOTAL_KEY: Final = "total.timeout.ms"


def unhurried(model: type[ObjectBackendSettings], settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with long timeouts in place of unset ones, for a program that can wait.

    The defaults of `model` suit an agent, which sends bytes inline rather than wait. Explicit settings are kept; if
    only the total is set, an attempt gets at most a quarter of it.
    """
    added: dict[str, str] = {}
    if _TOTAL_KEY not in settings:
        added[_TOTAL_KEY] = str(max(_UNHURRIED_TOTAL_MS, _milliseconds(settings, "attempt.timeout.ms")))
    if "attempt.timeout.ms" not in settings:
        shortest_ms = int(model.model_fields["attempt_timeout_ms"].default)
        longest_ms = _milliseconds(settings, _TOTAL_KEY) // 4 or _UNHURRIED_ATTEMPT_MS
        added["attempt.timeout.ms"] = str(max(shortest_ms, min(_UNHURRIED_ATTEMPT_MS, longest_ms)))
    return {**settings, **added}


def _milliseconds(settings: Mapping[str, str], key: str) -> int:
    """Return a setting; 0 if it is not set, or is no number, which is reported with all other errors."""
    text = settings.get(key, "")
    return int(text) if text.strip().isdecimal() else 0


def check_endpoint(url: str | None, allow_http: bool) -> None:
    """Raise RemoteStorageConfigError if `endpoint.url` is invalid, or is plain http without permission."""
    if url is None:
        return
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not _is_place(parts):
        raise RemoteStorageConfigError("configure", "endpoint.url", "is no URL like https://host:port")
    if parts.scheme == "http" and not allow_http:
        raise RemoteStorageConfigError(
            "configure", "endpoint.url", "is plain http", "use https, or set allow.http=true"
        )


def _is_place(parts: SplitResult) -> bool:
    """Whether a URL names a place alone: no login, and no token behind it."""
    try:
        has_port = parts.port is None or parts.port > 0
    except ValueError:  # a port that is no number: what stands there may be a login's password
        return False
    return has_port and not ("@" in parts.netloc or parts.query or parts.fragment)


METADATA_SERVICE: Final = "http://169.254.169.254"
"""Where a machine of a cloud gets keys and tokens of its own identity."""


def check_no_proxy_sees(url: str | None, key: str = "endpoint.url") -> None:
    """Raise RemoteStorageConfigError if secrets that requests or answers hold would go to a proxy in plain text.

    obstore and botocore read the environment differently, as to an empty variable, to both spellings of one, and to a
    port in NO_PROXY. Any variable counts as a proxy, and only a host that each of them excludes is excluded.
    """
    parts = urlsplit(url or "")
    excluded = [os.environ[name] for name in ("NO_PROXY", "no_proxy") if name in os.environ]
    is_excluded = bool(excluded) and all(_excludes(hosts, parts.hostname or "") for hosts in excluded)
    if parts.scheme == "http" and any(map(os.environ.get, _PROXIES)) and not is_excluded:
        reason = f"{url} is plain http, and a proxy of the environment would see the secret"
        raise RemoteStorageConfigError("configure", key, reason, "use https, or name the host in NO_PROXY")


def _excludes(no_proxy: str, host: str) -> bool:
    """Whether every client leaves this host out: an address by itself only, not by its end, a network or `*`; and `*`
    only if it stands alone."""
    entries = [entry.strip() for entry in no_proxy.split(",")]
    if re.fullmatch(r"[0-9.]+|.*:.*", host):
        return host in entries
    return no_proxy == "*" or any(f".{host}".endswith(f".{entry.lstrip('.')}") for entry in entries if entry)


_PROXIES: Final = ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")

FileState = tuple[int, int, int, int]


def state_of(file: Path) -> FileState | None:
    """Return a value that changes with a file's content, owner and mode; None if the file is missing."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


S = TypeVar("S", bound=ObjectBackendSettings)


def parse_settings(model: type[S], settings: Mapping[str, str]) -> S:
    """Parse a backend's settings as `model`. Raises RemoteStorageConfigError naming the first wrong key, not its
    value."""
    try:
        return model.model_validate(dict(settings))
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False, include_context=False)
        first = min(found, key=lambda one: one["type"] != "extra_forbidden")  # a misspelt key explains a missing one
        key = str(first["loc"][0]) if first["loc"] else "total.timeout.ms"
        unknown = first["type"] == "extra_forbidden"
        known = ", ".join(sorted(_kafka_style(name) for name in model.model_fields))
        raise RemoteStorageConfigError(
            "configure",
            key,
            "no such setting" if unknown else fault_text(first),
            f"there are {known}" if unknown else "",
        ) from None
