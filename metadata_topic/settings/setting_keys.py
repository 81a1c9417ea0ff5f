"""A topic's settings by the keys that operators know."""

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from metadata_topic.records.errors import TopicSettingsError
from metadata_topic.settings.topic_settings import (
    ARCHIVE_KEY,
    DURABLE_KEY,
    ENABLE_KEY,
    LATENCY_BOUND_KEY,
    OWN,
    PACK_KEY,
    POLICY_KEY,
    UPLOAD_WAIT_KEY,
    WAL_RETENTION_KEY,
    TopicSettings,
)
from plugin.errors import fault_text

FIELDS: Final[Mapping[str, str]] = {
    ENABLE_KEY: "enable",
    POLICY_KEY: "link_policy",
    LATENCY_BOUND_KEY: "link_latency_bound_ms",
    UPLOAD_WAIT_KEY: "upload_wait_max_ms",
    ARCHIVE_KEY: "archive",
    WAL_RETENTION_KEY: "wal_retention_ms",
    DURABLE_KEY: "durable",
    PACK_KEY: "pack",
}
"""The fields of `TopicSettings` by key."""
_ADAPTER: Final = TypeAdapter(TopicSettings)


def text_of(settings: TopicSettings, key: str) -> str | None:
    """Return the value of a settings key as settings files have it; None if it is not set."""
    value = getattr(settings, FIELDS[key])
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


def changed_settings(topic: str, settings: TopicSettings, changes: Mapping[str, Any]) -> TopicSettings:
    """Return a topic's own settings after these changes. Raises TopicSettingsError, which names the key.

    A topic that is explicitly off stays off, whatever a pattern or the broker's file says, until it is switched on.
    """
    fields = json.loads(_ADAPTER.dump_json(settings)) | {FIELDS[key]: value for key, value in changes.items()}
    fields["origin"] = OWN if settings.origin == OWN and not fields["enable"] else ""
    try:
        changed = _ADAPTER.validate_json(json.dumps(fields))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = next(key for key, field in FIELDS.items() if field == fault["loc"][0])
        reason = f"invalid value {fault['input']} for configuration {key}: {fault_text(fault)}"
        raise TopicSettingsError("set topic settings", topic, reason) from None
    if changed.is_durable and (kept_ms := changed.wal_retention_ms) is not None and kept_ms >= 0:
        reason = (
            f"{WAL_RETENTION_KEY}={kept_ms}: with {DURABLE_KEY} objects are kept as long as the log; make it -2, or -1"
        )
        raise TopicSettingsError("set topic settings", topic, reason)
    return changed
