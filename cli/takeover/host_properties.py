"""The server.properties by which a host takes a dead broker's place, and what speaks against it. Asks only this host.

The dead broker's file counts, except for what belongs to a host: listeners, rack, log directories, the agent's
addresses and state. The broker starts with `process.roles=broker`, whatever the dead node was: without the controllers'
log it must not vote. Kafka refuses such a broker while its own id is among `controller.quorum.voters`, so that is taken
out of its list (KafkaConfig of Kafka 4). Its copy of the controllers' log has a directory of its own, with a new id:
the voter is known by the old one, which its log directory may get back (KIP-853).
"""

import errno
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from kafka_log.broker_files.server_properties import BrokerProperties, parse_broker_properties

METADATA_DIRECTORY: Final = "metadata.log.dir"
VOTERS: Final = "controller.quorum.voters"
LISTENERS: Final = ("listeners", "advertised.listeners")
PEER_LISTENER: Final = "remote.wal.agent.peer.listener"
STATE_DIRECTORY: Final = "remote.wal.agent.state.directory"
_LISTS: Final = ("remote.wal.agent.peers", "remote.wal.agent.bypass")
"""Lists of <broker id>@<host>:<port>. The own entry is the dead host's."""
_NO_HOSTS: Final = ("node.id", "broker.id", "process.roles", "log.dir", METADATA_DIRECTORY)
"""Keys that a host does not decide, or not under this name: they would take another broker's place, or do nothing."""
_FILES: Final = (".location", ".file", "client.config")
"""How keys end whose values are files that must be on this host."""


def host_properties(dead: Mapping[str, str], host: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return the keys of the dead broker's server.properties on this host; `host` are this host's own. Raises
    BrokerPropertiesError."""
    broker = parse_broker_properties(dead, directory)
    logs = ",".join(str(directory / f"log-{number}") for number, _ in enumerate(broker.log_dirs))
    places = {"log.dirs": logs, STATE_DIRECTORY: str(directory / "agent-state")}
    made = {**dead, **places, **host, "process.roles": "broker", METADATA_DIRECTORY: str(directory / "metadata")}
    made.pop("log.dir", None)
    own_id, controllers = str(broker.node_id), broker.controller_listener_names
    for key in (VOTERS, *(key for key in _LISTS if key not in host)):
        if key in made:
            made[key] = _kept(made[key], lambda one: one.partition("@")[0] != own_id)
    for key in LISTENERS:
        if key in made:
            made[key] = _kept(made[key], lambda one: one.partition(":")[0].upper() not in controllers)
    return made


def _kept(text: str, is_kept: Callable[[str], bool]) -> str:
    return ",".join(one for one in map(str.strip, text.split(",")) if one and is_kept(one))


def faults(dead: BrokerProperties, host: Mapping[str, str], made: BrokerProperties) -> Iterator[str]:
    """Yield what is missing on this host, or in its options, for a takeover."""
    needed = [*LISTENERS, PEER_LISTENER, *(["broker.rack"] if dead.rack is not None else [])]
    for key in needed:
        if not host.get(key):
            yield f"{key} is missing in --host-config: that of the dead broker's file is its host's"
    for key in _NO_HOSTS:
        if key in host:
            yield f"{key} must not be in --host-config, whose keys are those that differ from the dead broker's host"
    if len(made.log_dirs) != len(dead.log_dirs):
        yield f"log.dirs: the dead broker had {len(dead.log_dirs)} log directories, and here are {len(made.log_dirs)}"
    for path in made.log_dirs:
        if not os.access(next(one for one in (path, *path.parents) if one.exists()), os.W_OK | os.X_OK):
            yield f"log.dirs: {path} cannot be written to"
    for key, value in made.raw.items():
        if key.endswith(_FILES) and value and not os.access(value, os.R_OK):
            yield f"{key}: {value} is no file that can be read here"


def taken_addresses(addresses: Mapping[str, tuple[str, int]]) -> Iterator[str]:
    """Yield those of these addresses (host and port, by their keys) on which this host cannot listen now."""
    for key, (host, port) in addresses.items():
        try:
            [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            why = "something listens there" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            yield f"{key}: {host}:{port}: {why}"
