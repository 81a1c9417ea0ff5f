"""A topic's settings by their keys, as texts for the command line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from metadata_topic.records.errors import TopicSettingsError
from metadata_topic.settings.topic_settings import (
    ARCHIVE_KEY,
    DURABLE_KEY,
    ENABLE_KEY,
    LATENCY_BOUND_KEY,
    LOWEST_RETENTION_MS,
    OWN,
    PACK_KEY,
    POLICY_KEY,
    UPLOAD_WAIT_KEY,
    WAL_RETENTION_KEY,
    LinkPolicy,
    TopicSettings,
)

_LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SettingKey:
    """One key of a topic's settings."""

    name: str
    field: str
    """The field of `TopicSettings`."""
    parse: Callable[[str], object]
    """Raises ValueError with the expected form."""

    def text_of(self, settings: TopicSettings) -> str | None:
        """Return the value as a text; None if there is none."""
        value = getattr(settings, self.field)
        if value is None:
            return None
        return str(value).lower() if isinstance(value, bool) else str(value)

    def is_set(self, settings: TopicSettings) -> bool:
        """Whether the value differs from the default."""
        return bool(getattr(settings, self.field) != getattr(_DEFAULTS, self.field))


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def _policy(text: str) -> LinkPolicy:
    if text not in list(LinkPolicy):
        raise ValueError(f"expected one of {', '.join(LinkPolicy)}")
    return LinkPolicy(text)


def _milliseconds(lowest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or not lowest <= int(text) <= _LONG_MAX:
            raise ValueError(f"expected a number of milliseconds, {lowest} or more")
        return int(text)

    return parse


_DEFAULTS: Final = TopicSettings()
_ALL = (
    SettingKey(ENABLE_KEY, "enable", _boolean),
    SettingKey(POLICY_KEY, "link_policy", _policy),
    SettingKey(LATENCY_BOUND_KEY, "link_latency_bound_ms", _milliseconds(1)),
    SettingKey(UPLOAD_WAIT_KEY, "upload_wait_max_ms", _milliseconds(1)),
    SettingKey(ARCHIVE_KEY, "archive", _boolean),
    SettingKey(WAL_RETENTION_KEY, "wal_retention_ms", _milliseconds(LOWEST_RETENTION_MS)),
    SettingKey(DURABLE_KEY, "durable", _boolean),
    SettingKey(PACK_KEY, "pack", _boolean),
)
SETTING_KEYS: Final[Mapping[str, SettingKey]] = {key.name: key for key in _ALL}


def changed_settings(topic: str, settings: TopicSettings, changes: Mapping[str, str | None]) -> TopicSettings:
    """Return the settings with these keys set; None: back to the default. Raises TopicSettingsError naming the key."""
    was_switched_off = settings.origin == OWN and not settings.enable
    for name, text in changes.items():
        key = SETTING_KEYS.get(name)
        if key is None:
            raise TopicSettingsError("set topic settings", topic, f"unknown key {name}", ", ".join(SETTING_KEYS))
        try:
            value: Any = getattr(_DEFAULTS, key.field) if text is None else key.parse(text.strip())
        except ValueError as error:
            reason = f"invalid value {text} for configuration {name}: {error}"
            raise TopicSettingsError("set topic settings", topic, reason) from None
        settings = replace(settings, **{key.field: value})
    if changes:
        # A topic that is explicitly switched off stays off, whatever a pattern or the broker's file says.
        is_switched_off = was_switched_off if ENABLE_KEY not in changes else changes[ENABLE_KEY] is not None
        settings = replace(settings, origin=OWN if is_switched_off and not settings.enable else "")
    return settings
