"""The lines of server.properties that bring the agents' listener in, and take it out again."""

from collections.abc import Mapping
from dataclasses import dataclass

from kafka_log.server_properties import DEFAULT_LISTENERS, BrokerProperties, Endpoint

LISTENERS, ADVERTISED = "listeners", "advertised.listeners"
PROTOCOLS, INTER_BROKER = "listener.security.protocol.map", "inter.broker.listener.name"
OLD_INTER_BROKER = "security.inter.broker.protocol"


@dataclass(frozen=True, slots=True)
class AgentListener:
    """By which brokers reach each other through agents."""

    name: str = "WAL"
    port_base: int = 19900
    """A broker's port is this plus its id."""
    advertised_host: str = "127.0.0.1"
    """`{id}` stands for the broker's."""
    protocol: str | None = None
    """None: what brokers speak to each other now."""

    def advertised(self, broker_id: int) -> Endpoint:
        return Endpoint(self.advertised_host.format(id=broker_id), self.port_base + broker_id)

    def protocol_of(self, broker: BrokerProperties) -> str:
        return self.protocol or broker.security_protocols[broker.inter_broker_listener_name]

    def is_at(self, broker: BrokerProperties) -> bool:
        """Whether the broker listens there on loopback, and tells others so."""
        where = broker.listeners.get(self.name)
        if where is None or broker.advertised_listeners.get(self.name) != self.advertised(broker.node_id):
            return False
        return where.port == self.port_base + broker.node_id

    def is_known_to(self, broker: BrokerProperties) -> bool:
        """Whether the broker has a listener of this name, wherever."""
        return self.name in broker.listeners or self.name in broker.advertised_listeners

    def lines_in(self, broker: BrokerProperties) -> dict[str, str]:
        """What is to stand in the broker's file so that it has this listener beside those that it has."""
        host, port = self.advertised(broker.node_id)
        return {
            LISTENERS: ",".join([*self._others(_listeners(broker)), f"{self.name}://127.0.0.1:{port}"]),
            ADVERTISED: ",".join([*self._others(_advertised(broker)), f"{self.name}://{host}:{port}"]),
            PROTOCOLS: ",".join([*self._others(_protocols(broker)), f"{self.name}:{self.protocol_of(broker)}"]),
        }

    def lines_out(self, broker: BrokerProperties) -> dict[str, str]:
        """What is to stand there so that it has this listener no more."""
        return {
            LISTENERS: ",".join(self._others(_listeners(broker))),
            ADVERTISED: ",".join(self._others(_advertised(broker))),
            PROTOCOLS: ",".join(self._others(_protocols(broker))),
        }

    def _others(self, items: list[str]) -> list[str]:
        return [item for item in items if item.partition(":")[0].strip().upper() != self.name]


def back_to(brokers: Mapping[int, BrokerProperties], listener: AgentListener) -> set[str]:
    """Listeners by which all brokers could reach each other without agents."""
    found = [
        {name for name in one.advertised_listeners if name not in (*one.controller_listener_names, listener.name)}
        for one in brokers.values()
    ]
    return set.intersection(*found) if found else set()


def _listeners(broker: BrokerProperties) -> list[str]:
    return _items(broker.raw.get(LISTENERS, "")) or [DEFAULT_LISTENERS]


def _advertised(broker: BrokerProperties) -> list[str]:
    """Kafka advertises all listeners but the controllers', as long as nothing else is said."""
    told = _items(broker.raw.get(ADVERTISED, ""))
    controllers = broker.controller_listener_names
    return told or [one for one in _listeners(broker) if one.partition(":")[0].upper() not in controllers]


def _protocols(broker: BrokerProperties) -> list[str]:
    """With Kafka's own defaults where nothing is said, as these are gone once something is."""
    return [f"{name}:{protocol}" for name, protocol in broker.security_protocols.items()]


def _items(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]
