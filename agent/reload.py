"""Handles SIGHUP: checks files again, and logs what takes effect now, and what only after a restart.

Certificates and passwords of Kafka clients are read for each connection anyway, and topic settings come from the
cluster: nothing needs to be done for them. SIGHUP only checks certificates at once, which otherwise happens hourly. All
other settings are read once, when the rooms are built; changed keys are logged, never their values.
"""

from collections.abc import Callable, Mapping

import structlog

from agent.settings.setting_types import AgentSettingsError
from kafka_log.broker_files.server_properties import BrokerProperties
from kafka_log.errors import BrokerPropertiesError
from plugin.errors import StoreError

log = structlog.get_logger(__name__)


class Reload:
    """The reload of one agent. `look` blocks, and is for a thread."""

    def __init__(
        self, began_with: BrokerProperties, read: Callable[[], BrokerProperties], look: Callable[[], None]
    ) -> None:
        """`read` returns the checked broker's file as it is now; `look` checks the certificates."""
        self._began_with = began_with.raw
        self._read = read
        self._look = look

    def look(self) -> None:
        """Check and log. Never raises: the agent continues unchanged."""
        self._look()
        try:
            changed = changed_keys(self._began_with, self._read().raw)
        except (AgentSettingsError, BrokerPropertiesError, StoreError, OSError) as error:
            log.error(
                "configuration_wrong", error=str(error), consequence="the agent goes on, and would not start anew"
            )
            return
        if changed:
            log.warning("configuration_changed", keys=changed, consequence="they count once the agent is restarted")
        else:
            log.info("configuration_unchanged")


def changed_keys(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the keys whose values differ or that only one has. Raises BrokerPropertiesError for an unreadable one."""
    return sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
