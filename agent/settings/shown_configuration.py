"""The configuration as /config shows it: the effective values, defaults included, and no secret.

Values are shown only for keys that never hold secrets: the agent's own, which name files and never have their content,
and those of the included storage managers. For any other key, for instance of somebody else's storage manager, only the
name is shown. Kafka's own keys are left out, because the broker's file has passwords.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from agent.settings.agent_settings import AgentSettings
from kafka_log.broker_files.server_properties import BrokerProperties
from plugin.loading import ARCHIVE_IMPL_PREFIX, settings_under_prefix

HIDDEN: Final = "(hidden)"
_STORE_KEYS: Final = frozenset(
    {
        "account", "addressing.style", "allow.http", "attempt.timeout.ms", "bucket",
        "container", "credentials.file", "account.key.file", "sas.token.file", "directory",
        "endpoint.url", "get.latency.ms", "prefix", "put.latency.ms",
        "region", "tls.ca.file", "total.timeout.ms",
    }
)  # fmt: skip
"""Keys of our own storage managers; also valid after `zone.<zone>.`."""
_ZONE = re.compile(r"^zone\.[^.]+\.")
_MORE_THAN_A_PLACE = re.compile(r"(?<=//).*[@?#].*")
"""Matches what may hold a secret in a URL. Such an endpoint is refused, but maybe later than it is shown."""


def shown_configuration(broker: BrokerProperties, settings: AgentSettings) -> dict[str, Any]:
    """Return for JSON the effective value of each key, and which keys the file sets."""
    spec = settings.store_spec(broker)
    stores = {
        **_of_store(spec.impl_prefix, spec.settings),
        **_of_store(ARCHIVE_IMPL_PREFIX, settings_under_prefix(broker.raw, ARCHIVE_IMPL_PREFIX)),
    }
    own = {
        str(field.alias): _plain(getattr(section, name))
        for section in vars(settings).values()
        if isinstance(section, BaseModel)
        for name, field in type(section).model_fields.items()
    }
    return {
        "broker_id": broker.node_id,
        "log_dirs": [str(path) for path in broker.log_dirs],
        "rack": broker.rack,
        "settings": {key: _in_file(key, value) for key, value in own.items()} | stores,
        "set": sorted(key for key in broker.raw if key in own or key in stores),
    }


def _of_store(prefix: str, given: Mapping[str, str]) -> dict[str, str]:
    return {
        f"{prefix}{key}": _MORE_THAN_A_PLACE.sub(HIDDEN, value) if _ZONE.sub("", key) in _STORE_KEYS else HIDDEN
        for key, value in given.items()
    }


def _in_file(key: str, value: Any) -> Any:
    """Convert a value to the file's form: whole milliseconds there, seconds here."""
    return round(value * 1000) if key.endswith(".ms") and isinstance(value, float) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        if all(one is None for one in value.values()):
            return ",".join(map(str, value))
        between = "@" if all(isinstance(key, int) for key in value) else "="
        return ",".join(f"{key}{between}{one}" for key, one in value.items())
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
