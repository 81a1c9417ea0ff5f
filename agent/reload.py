"""What SIGHUP asks for: files are looked at again, and the log tells what counts now, and what once the agent restarts.

Certificates, and passwords of Kafka clients, are read anew for each connection, and topics have their settings from
the cluster: there is nothing to be done about them. SIGHUP has certificates judged at once, which happens hourly else.
All other settings are read once, as rooms are built by them; of those that have changed the keys are told, never what
they are set to.
"""

from collections.abc import Callable, Mapping

import structlog

from agent.settings.setting_types import AgentSettingsError
from kafka_log.errors import BrokerPropertiesError
from kafka_log.server_properties import BrokerProperties
from plugin.errors import StoreError

log = structlog.get_logger(__name__)


class Reload:
    """Of one agent. `look` blocks, and is for a thread."""

    def __init__(
        self, began_with: BrokerProperties, read: Callable[[], BrokerProperties], look: Callable[[], None]
    ) -> None:
        """`read` is the broker's file as it is now, judged; `look` at the certificates."""
        self._began_with = began_with.raw
        self._read = read
        self._look = look

    def look(self) -> None:
        """Never raises: the agent goes on as it is."""
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
    """Whose values differ, or that one of them has alone. Raises BrokerPropertiesError for one no provider has."""
    return sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
