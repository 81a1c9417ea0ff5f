"""Updates the follower proxy when agents register, move and leave.

Registrations are in the settings topic, which is read through Kafka, and Kafka may be away when this agent starts. So
the remembered ones (`metadata_topic.settings.settings_memory`) count until the topic was read.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address
from typing import cast

import structlog

from agent.settings.agent_settings import AgentSettings
from agent.settings.http_listener import is_loopback
from agent.settings.kafka_client import listeners_past_agent
from agent.settings.process_settings import PeerSettings
from agent.settings.setting_types import MAX_PORT, parse_address
from kafka_log.broker_files.server_properties import BrokerProperties
from metadata_topic.settings.topic_settings import AgentRegistration, GatewayPart
from plugin.hot_path.deadline import wait_at_most
from replication.follower.follower_proxy import FollowerProxy
from replication.wire.peer_connection import Address, KnownPeers

log = structlog.get_logger(__name__)

_RETRY_S = 1.0


def own_address(broker_id: int, settings: PeerSettings) -> str | None:
    """Return the address at which other agents reach this one: from its peer list, else its listener; None: it
    registers none."""
    if (listed := settings.peers.get(broker_id)) is not None:
        return str(listed)
    host = settings.peer_listener.host
    try:
        is_every = ip_address(host).is_unspecified
    except ValueError:
        is_every = False
    return None if is_every or is_loopback(host) else str(settings.peer_listener)


def gateway_parts(broker: BrokerProperties, settings: AgentSettings) -> tuple[str, ...]:
    """Return the parts of the zone gateway that this agent runs."""
    gateway = settings.gateway
    parts = {
        GatewayPart.CLIENTS: True,
        GatewayPart.PRODUCE: gateway.produce_enable,
        GatewayPart.LINKS: gateway.fetch_links_enable,
        GatewayPart.DURABLE: bool(gateway.durable_listener),
        GatewayPart.PIPELINED: gateway.acks_pipelined_enable and not listeners_past_agent(broker, settings),
    }
    return tuple(part.value for part, is_on in parts.items() if is_on and gateway.enable)


def registered_addresses(agents: Mapping[int, AgentRegistration], own_id: int | None = None) -> dict[int, Address]:
    """Return the peer addresses of the agents, of others than `own_id` if that is given."""
    return _parsed({one: agent.peer_address for one, agent in agents.items() if one != own_id})


def registered_bypasses(agents: Mapping[int, AgentRegistration], own_id: int) -> dict[int, Address]:
    """Return the bypass addresses of the other agents' brokers."""
    return _parsed({one: agent.bypass_address for one, agent in agents.items() if one != own_id})


def serving_clients(agents: Mapping[int, AgentRegistration], zone: str) -> frozenset[int]:
    """Return the brokers whose agents serve this zone's clients, by the agents' registrations."""
    there = (agent for agent in agents.values() if zone and agent.zone == zone)
    return frozenset(agent.broker_id for agent in there if GatewayPart.CLIENTS in agent.gateway)


class FoundPeers:
    """Applies agents' registrations to the parts that connect to other agents. For the event loop."""

    def __init__(
        self,
        own_id: int,
        peers: KnownPeers,
        follower: FollowerProxy,
        listen_at: Callable[[int], Address],
        remembered: Mapping[int, AgentRegistration],
    ) -> None:
        """`listen_at` returns the address at which this agent stands in for another broker.

        `remembered` are registrations from the last run, used until the topic is read.
        """
        self._own_id = own_id
        self._peers = peers
        self._follower = follower
        self._listen_at = listen_at
        self.changed = asyncio.Event()
        """To be set when something has changed elsewhere, such as whether an agent lives."""
        self._registered: Mapping[int, AgentRegistration] = {}
        self._addresses: Mapping[int, Address] = {}
        self.agents: Mapping[int, AgentRegistration] = {}
        """The other agents, as they were registered when the settings topic was read last; any thread may read it."""
        self._learn(remembered)

    def _learn(self, agents: Mapping[int, AgentRegistration]) -> None:
        self._registered, self._addresses = agents, registered_addresses(agents, self._own_id)
        self._peers.learned(self._addresses)
        self._follower.bypasses.learned(registered_bypasses(agents, self._own_id))

    def registered(self, agents: Mapping[int, AgentRegistration]) -> None:
        """Set all registrations, as the settings topic has them now."""
        there = {one: agent for one, agent in agents.items() if one != self._own_id and not agent.is_gone}
        if (there, agents) == (self.agents, self._registered):
            return
        before, self.agents = self._addresses, there
        self._learn(agents)
        if self._addresses != before:
            log.info("peers_registered", peers={one: str(at) for one, at in sorted(self._addresses.items())})
        self.changed.set()

    async def run(self, gateway: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Apply changes until cancelled. `gateway` is called at each change, and returns whether it has applied all
        of it."""
        while True:
            self.changed.clear()
            is_done = await self._listen()
            self._follower.keep_bypasses()
            if gateway is not None:
                is_done = await gateway() and is_done
            await wait_at_most(self.changed, math.inf if is_done else _RETRY_S)

    async def _listen(self) -> bool:
        """Make the follower proxy listen for all known brokers and no others. Returns whether it does."""
        listening, is_done = self._follower.addresses.keys(), True
        for broker_id in listening - self._peers.keys():
            await self._follower.leave(broker_id)
            log.info("peer_left", broker=broker_id)
        for broker_id in sorted(self._peers.keys() - listening):
            address = self._listen_at(broker_id)
            try:
                if address.port > MAX_PORT:
                    raise OSError(f"cannot listen at {address}: remote.wal.agent.replica.port.base is too high")
                await self._follower.listen(broker_id, address)
            except OSError as error:
                is_done = False
                log.error("peer_not_posed_as", broker=broker_id, error=str(error), path="not replicated from")
            else:
                log.info("peer_joined", broker=broker_id, address=str(address))
        return is_done


def _parsed(told: Mapping[int, str | None]) -> dict[int, Address]:
    found = {}
    for broker_id, text in told.items():
        if text is None:
            continue
        try:
            found[broker_id] = cast(Address, parse_address(text))
        except ValueError as error:
            log.warning("peer_address_not_understood", broker=broker_id, error=str(error))
    return found
