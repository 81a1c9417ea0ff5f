"""Agents that come, move and leave: the follower proxy is kept in step with what agents register.

The settings topic tells of them, and is read by way of Kafka, which may be away when this agent starts. So what was
registered last is kept in the state directory, and counts until the topic was read.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import cast

import structlog

from agent.settings.agent_settings import AgentSettings
from agent.settings.http_listener import is_loopback
from agent.settings.process_settings import PeerSettings
from agent.settings.setting_types import MAX_PORT, parse_address
from metadata_topic.settings.topic_settings import AgentRegistration, GatewayPart
from plugin.durable_files import write_durably
from replication.follower.follower_proxy import FollowerProxy
from replication.wire.known_peers import KnownPeers
from replication.wire.peer_connection import Address

log = structlog.get_logger(__name__)

FILE_NAME = "peers.json"
_RETRY_S = 1.0


def own_address(broker_id: int, settings: PeerSettings) -> str | None:
    """Where others reach this agent: what its own list says of it, else its listener; None: that tells it to nobody."""
    if (listed := settings.peers.get(broker_id)) is not None:
        return str(listed)
    host = settings.peer_listener.host
    try:
        is_every = ip_address(host).is_unspecified
    except ValueError:
        is_every = False
    return None if is_every or is_loopback(host) else str(settings.peer_listener)


def gateway_parts(settings: AgentSettings) -> tuple[str, ...]:
    """What of the zone gateway this agent does."""
    gateway, produce = settings.gateway, settings.gateway_produce
    parts = {
        GatewayPart.CLIENTS: True,
        GatewayPart.PRODUCE: produce.enable,
        GatewayPart.ADOPT: produce.enable and produce.adopt_enable,
        GatewayPart.LINKS: gateway.fetch_links_enable,
        GatewayPart.DURABLE: bool(gateway.durable_listener),
    }
    return tuple(part.value for part, is_on in parts.items() if is_on and gateway.enable)


def registered_addresses(agents: Mapping[int, AgentRegistration], own_id: int) -> dict[int, Address]:
    """Of the other agents that have registered one."""
    told = {one: agent.peer_address for one, agent in agents.items() if one != own_id}
    return _parsed({one: address for one, address in told.items() if address is not None})


class FoundPeers:
    """Use it in the event loop."""

    def __init__(
        self, own_id: int, peers: KnownPeers, follower: FollowerProxy, listen_at: Callable[[int], Address], file: Path
    ) -> None:
        """`listen_at` is where this agent poses as another broker; `file` is in the state directory."""
        self._own_id = own_id
        self._peers = peers
        self._follower = follower
        self._listen_at = listen_at
        self._file = file
        self._changed = asyncio.Event()
        self._registered = self._remembered = _load(file)
        peers.learned(self._registered)

    def registered(self, agents: Mapping[int, AgentRegistration]) -> None:
        """All registrations, as the settings topic tells them now."""
        found = registered_addresses(agents, self._own_id)
        if found == self._registered:
            return
        log.info("peers_registered", peers={one: str(address) for one, address in sorted(found.items())})
        self._registered = found
        self._peers.learned(found)
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled. Raises OSError when the state directory cannot be written."""
        while True:
            self._changed.clear()
            is_done = await self._listen()
            if self._remembered != self._registered:
                self._remembered = dict(self._registered)
                told = {str(broker_id): str(address) for broker_id, address in sorted(self._remembered.items())}
                await asyncio.to_thread(write_durably, self._file, json.dumps(told))
            try:
                async with asyncio.timeout(None if is_done else _RETRY_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _listen(self) -> bool:
        """Whether the follower proxy listens for all that are known, and for no others."""
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


def _parsed(told: Mapping[int, str]) -> dict[int, Address]:
    found = {}
    for broker_id, text in told.items():
        try:
            found[broker_id] = cast(Address, parse_address(text))
        except ValueError as error:
            log.warning("peer_address_not_understood", broker=broker_id, error=str(error))
    return found


def _load(file: Path) -> dict[int, Address]:
    try:
        known = json.loads(file.read_text())
        return _parsed({int(broker_id): str(address) for broker_id, address in known.items()})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        log.warning("peers_file_unreadable", file=str(file), error=str(error), hint="written anew when Kafka is read")
        return {}
