"""A backend's settings: `put_latency_ms` in the model is `put.latency.ms` in the file."""

from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from plugin.errors import RemoteStorageConfigError


def _kafka_style(field_name: str) -> str:
    return field_name.replace("_", ".")


class ObjectBackendSettings(BaseModel):
    """What all object backends can be told. Each backend adds its own; unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_kafka_style, hide_input_in_errors=True)

    prefix: str = Field(default="", description="What all keys start with; plain names with / between them.")
    attempt_timeout_ms: int = Field(default=2000, ge=1, description="How long one request may take.")
    total_timeout_ms: int = Field(
        default=10_000,
        ge=1,
        description="How long a call may take with all its retries; the attempt's at least.",
    )
    startup_self_test: bool = Field(
        default=True,
        description="Check at start, by writing a probe object, that the store keeps conditional writes. "
        "Turn it off only where nothing is written, such as tools with read-only credentials.",
    )

    @model_validator(mode="after")
    def _an_attempt_fits(self) -> "ObjectBackendSettings":
        if self.total_timeout_ms < self.attempt_timeout_ms:
            raise ValueError("total.timeout.ms must be at least attempt.timeout.ms")
        return self


def check_endpoint(url: str | None, allow_http: bool) -> None:
    """Raises RemoteStorageConfigError where `endpoint.url` is none, or is plain http and that was not permitted."""
    if url is None:
        return
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise RemoteStorageConfigError("configure", "endpoint.url", "is no URL like https://host:port")
    if parts.scheme == "http" and not allow_http:
        raise RemoteStorageConfigError(
            "configure", "endpoint.url", "is plain http", "use https, or set allow.http=true"
        )


S = TypeVar("S", bound=ObjectBackendSettings)


def parse_settings(model: type[S], settings: Mapping[str, str]) -> S:
    """The settings, checked. Raises RemoteStorageConfigError naming the first wrong key, not its value."""
    try:
        return model.model_validate(dict(settings))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        key = str(first["loc"][0]) if first["loc"] else "total.timeout.ms"
        unknown = first["type"] == "extra_forbidden"
        known = ", ".join(sorted(_kafka_style(name) for name in model.model_fields))
        raise RemoteStorageConfigError(
            "configure",
            key,
            "no such setting" if unknown else first["msg"],
            f"there are {known}" if unknown else "",
        ) from None
