"""Reads a broker's own server.properties, as far as its agent needs it.

Defaults are Kafka's (`ServerConfigs`, `SocketServerConfigs`, `KRaftConfigs` and `ServerLogConfigs` of Kafka 4).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from kafka_log.broker_files.java_properties import ConfigProviderError, ResolvedProperties, parse_properties
from kafka_log.errors import BrokerPropertiesError

DEFAULT_LOG_DIR = "/tmp/kafka-logs"  # noqa: S108 - it is Kafka's
DEFAULT_LISTENERS = "PLAINTEXT://:9092"
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_DEFAULT_PROTOCOL_MAP = ",".join(f"{name}:{name}" for name in SECURITY_PROTOCOLS)
_LISTENER = re.compile(r"([^:/\s]+)://\[?([0-9a-zA-Z%._:-]*?)\]?:([0-9]{1,5})")


class Endpoint(NamedTuple):
    """A listener's address; an empty host means all interfaces."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BrokerProperties:
    """The settings of one broker. Listener names are in capitals, as Kafka compares them."""

    path: Path
    node_id: int
    log_dirs: tuple[Path, ...]
    metadata_log_dir: Path
    listeners: Mapping[str, Endpoint]
    advertised_listeners: Mapping[str, Endpoint]
    security_protocols: Mapping[str, str]
    """Listener name to security protocol (listener.security.protocol.map)."""
    inter_broker_listener_name: str
    controller_listener_names: tuple[str, ...]
    rack: str | None
    process_roles: frozenset[str]
    raw: Mapping[str, str]
    """Every key of the file, including ours and other plugins'. Holds secrets: never log it.

    Reading a value that no provider here has raises BrokerPropertiesError.
    """

    @property
    def is_broker(self) -> bool:
        return "broker" in self.process_roles or not self.process_roles

    def __repr__(self) -> str:
        return f"BrokerProperties(path={str(self.path)!r}, node_id={self.node_id})"


def load_broker_properties(path: Path, overrides: Mapping[str, str] = MappingProxyType({})) -> BrokerProperties:
    """Read the settings in the file at `path`; `overrides` replace the file's.

    Raises BrokerPropertiesError, and OSError when it cannot be read.
    """
    try:
        raw = parse_properties(path.read_bytes())
    except ValueError as error:
        raise BrokerPropertiesError(path, "(file)", str(error)) from error
    return parse_broker_properties({**raw, **overrides}, path)


def parse_broker_properties(raw: Mapping[str, str], path: Path) -> BrokerProperties:
    """Return the settings in `raw`; `path` names their origin in errors. Raises BrokerPropertiesError."""
    reader = _Reader(raw, path)
    listeners = reader.listeners("listeners", DEFAULT_LISTENERS)
    controller_names = tuple(name.upper() for name in reader.items("controller.listener.names"))
    advertised = (
        reader.listeners("advertised.listeners", "")
        if reader.text("advertised.listeners")
        else {name: where for name, where in listeners.items() if name not in controller_names}
    )
    log_dirs = tuple(Path(item) for item in reader.items("log.dirs") or reader.items("log.dir"))
    log_dirs = log_dirs or (Path(DEFAULT_LOG_DIR),)
    metadata_log_dir = reader.text("metadata.log.dir")
    roles = frozenset(reader.items("process.roles"))
    if not roles <= {"broker", "controller"}:
        raise reader.error("process.roles", f"{', '.join(sorted(roles))!r} are not broker and controller")
    protocols = reader.protocols(controller_names)
    properties = BrokerProperties(
        path=path,
        node_id=reader.node_id(),
        log_dirs=log_dirs,
        metadata_log_dir=Path(metadata_log_dir) if metadata_log_dir else log_dirs[0],
        listeners=MappingProxyType(listeners),
        advertised_listeners=MappingProxyType(advertised),
        security_protocols=MappingProxyType(protocols),
        inter_broker_listener_name=reader.inter_broker_listener(protocols),
        controller_listener_names=controller_names,
        rack=reader.text("broker.rack") or None,
        process_roles=roles,
        raw=reader.raw,
    )
    _check(properties, reader)
    return properties


def _check(properties: BrokerProperties, reader: "_Reader") -> None:
    name = properties.inter_broker_listener_name
    if properties.is_broker and name not in properties.advertised_listeners:
        key = "inter.broker.listener.name"
        raise reader.error(key, f"{name} is not among {', '.join(properties.advertised_listeners)}")
    for listener in properties.listeners:
        if listener not in properties.security_protocols:
            raise reader.error("listener.security.protocol.map", f"listener {listener} is missing")


class _Resolved(ResolvedProperties):
    """Properties whose errors name the file."""

    def __init__(self, raw: Mapping[str, str], path: Path) -> None:
        super().__init__(raw)
        self._path = path

    def __getitem__(self, key: str) -> str:
        try:
            return super().__getitem__(key)
        except ConfigProviderError as error:
            raise BrokerPropertiesError(self._path, key, error.reason) from error


class _Reader:
    """Reads typed values from the raw map, and raises errors that name the key."""

    def __init__(self, raw: Mapping[str, str], path: Path) -> None:
        self.raw = _Resolved(raw, path)
        self._path = path

    def error(self, key: str, reason: str) -> BrokerPropertiesError:
        return BrokerPropertiesError(self._path, key, reason)

    def text(self, key: str) -> str:
        return self.raw.get(key, "")

    def items(self, key: str) -> list[str]:
        return [item.strip() for item in self.text(key).split(",") if item.strip()]

    def node_id(self) -> int:
        key = "node.id" if self.text("node.id") else "broker.id"
        text = self.text(key)
        if not text:
            raise self.error("node.id", "is missing")
        if not text.isascii() or not text.isdigit() or int(text) > 2**31 - 1:
            raise self.error(key, f"{text!r} is no node id")
        return int(text)

    def listeners(self, key: str, default: str) -> dict[str, Endpoint]:
        """Return listeners by name; of two with one name (IPv4 and IPv6) the first."""
        found: dict[str, Endpoint] = {}
        for item in self.items(key) or default.split(","):
            match = _LISTENER.fullmatch(item)
            if match is None or int(match[3]) > 65535:
                raise self.error(key, f"{item!r} is no listener, expected NAME://host:port")
            found.setdefault(match[1].upper(), Endpoint(match[2], int(match[3])))
        return found

    def protocols(self, controller_names: tuple[str, ...]) -> dict[str, str]:
        key = "listener.security.protocol.map"
        is_default = not self.text(key)
        protocols: dict[str, str] = {}
        for item in self.items(key) or _DEFAULT_PROTOCOL_MAP.split(","):
            name, colon, protocol = item.partition(":")
            if not colon or protocol.strip().upper() not in SECURITY_PROTOCOLS:
                raise self.error(key, f"{item!r}, expected NAME:PROTOCOL with one of {SECURITY_PROTOCOLS}")
            protocols[name.strip().upper()] = protocol.strip().upper()
        if is_default:
            # Kafka's own rule: while nothing is mapped, controllers' listeners are plain.
            for name in controller_names:
                protocols.setdefault(name, "PLAINTEXT")
        return protocols

    def inter_broker_listener(self, protocols: Mapping[str, str]) -> str:
        name = self.text("inter.broker.listener.name").upper()
        protocol = self.text("security.inter.broker.protocol").upper()
        if name and protocol:
            raise self.error("inter.broker.listener.name", "is set, so security.inter.broker.protocol may not be")
        if name:
            if name not in protocols:
                raise self.error("listener.security.protocol.map", f"inter-broker listener {name} is missing")
            return name
        if protocol and protocol not in SECURITY_PROTOCOLS:
            raise self.error("security.inter.broker.protocol", f"{protocol!r} is not one of {SECURITY_PROTOCOLS}")
        return protocol or "PLAINTEXT"
