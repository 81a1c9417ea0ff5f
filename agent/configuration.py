"""The agent's configuration from files, read once."""

from dataclasses import dataclass
from typing import Final, Self

from agent.settings.agent_settings import AgentSettings
from agent.settings.kafka_client import client_config
from agent.settings.plain_peers import listener_with_login
from agent.settings.setting_types import milliseconds
from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.broker_files.server_properties import BrokerProperties
from plugin.prices import DEFAULT_PRICES_FILE, REMOTE_REPLICAS, Prices, StorePrices

GRACE_TIMES: Final = 2
"""For how many of the longest time-out of those who read them objects stay that are to be deleted (guessed)."""


def delete_grace_ms(broker: BrokerProperties, settings: AgentSettings) -> int:
    """Return how long an object stays after DELETE_SEGMENT_STARTED, in ms: a follower that lags may hold links to
    it."""
    followers = (int(broker.raw.get(key, "30000")) for key in ("replica.lag.time.max.ms", "replica.socket.timeout.ms"))
    return round(GRACE_TIMES * max(*followers, milliseconds(settings.link.hydration_timeout_s)))


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration of one broker and its agent, read once."""

    broker: BrokerProperties
    settings: AgentSettings
    client: KafkaClientConfig
    prices: Prices

    @classmethod
    def load(cls, broker: BrokerProperties, settings: AgentSettings) -> Self:
        """Read the files that the settings name. Raises AgentSettingsError, PriceError, OSError."""
        file = settings.link.prices_file or DEFAULT_PRICES_FILE
        prices = Prices.load(file, settings.price_network)
        return cls(broker, settings, client_config(broker, settings.client), prices)

    @property
    def delete_grace_ms(self) -> int:
        """How long an object stays after DELETE_SEGMENT_STARTED, in ms, for links sent before."""
        return delete_grace_ms(self.broker, self.settings)

    @property
    def shares_reads(self) -> bool:
        """Whether one agent of a zone reads an object for all; not where that would send records to clients without
        a login."""
        return listener_with_login(self.broker, self.settings) is None

    @property
    def store_prices(self) -> StorePrices:
        """The prices of the store of combined segments."""
        return self.prices.of_section(self.settings.storage.price_section)

    @property
    def break_even_bytes(self) -> int:
        """The size from which on an object is cheaper than its cross-zone bytes, while no followers are known."""
        return self.prices.break_even_bytes(REMOTE_REPLICAS, self.store_prices)

    @property
    def upload_wait_max_s(self) -> float:
        """How long an append may wait for more to share an object, if links are used by cost."""
        return self.settings.link.upload_wait_at(self.settings.storage.price_section)
