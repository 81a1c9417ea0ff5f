"""Reads the zones and brokers of a plan from a file in TOML, such as this one.

[zones]
az1 = "kafka-gateway.az1.example.com"
az2 = "kafka-gateway.az2.example.com"

[brokers.1]
zone = "az1"
host = "kafka-1.example.com"
port = 9092

[loopback_port_bases]
az1 = 19400

The last table is not needed while new zones are named behind the others and none is removed.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gateway.planning.planned_ports import BrokerSite, PlanError

_BROKER_KEYS = {
    "zone": str,
    "host": str,
    "port": int,
    "bind_host": str,
    "gateway_bind_host": str,
    "agents_host": str,
    "agents_port": int,
    "agents_bind_host": str,
}
_TABLES = {"zones", "brokers", "loopback_port_bases"}


class Sites(NamedTuple):
    """The content of the file."""

    brokers: list[BrokerSite]
    gateways: dict[str, str]
    """Names by zone."""
    loopback_bases: dict[str, int]
    """Loopback port bases of the zones that have one in the file."""


def read_sites(file: Path) -> Sites:
    """Read zones and brokers from the file. Raises PlanError, OSError."""
    try:
        document = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"{file}: {error}") from error
    unknown = document.keys() - _TABLES
    if unknown:
        raise PlanError(f"{file}: {min(unknown)}: expected [zones] and [brokers.<id>]")
    zones, brokers = document.get("zones", {}), document.get("brokers", {})
    if not isinstance(zones, dict) or not all(isinstance(name, str) and name for name in zones.values()):
        raise PlanError(f"{file}: [zones]: expected <zone> = <name of its gateway>")
    if not isinstance(brokers, dict):
        raise PlanError(f"{file}: expected [brokers.<id>]")
    bases = document.get("loopback_port_bases", {})
    if not isinstance(bases, dict) or not all(type(base) is int for base in bases.values()):
        raise PlanError(f"{file}: [loopback_port_bases]: expected <zone> = <port>")
    if bases.keys() - zones.keys():
        raise PlanError(f"{file}: [loopback_port_bases]: {min(bases.keys() - zones.keys())} is none of [zones]")
    return Sites([_broker(file, broker_id, told) for broker_id, told in brokers.items()], zones, bases)


def _broker(file: Path, broker_id: str, told: Mapping[str, Any]) -> BrokerSite:
    where = f"{file}: [brokers.{broker_id}]"
    if not broker_id.isdecimal() or not isinstance(told, dict):
        raise PlanError(f"{where}: expected [brokers.<id>] with zone and host")
    for key, value in told.items():
        kind = _BROKER_KEYS.get(key)
        if kind is None:
            raise PlanError(f"{where}: {key}: expected {', '.join(_BROKER_KEYS)}")
        if type(value) is not kind:
            raise PlanError(f"{where}: {key}: {value!r} is no {kind.__name__}")
    if not {"zone", "host"} <= told.keys():
        raise PlanError(f"{where}: zone and host are needed")
    return BrokerSite(int(broker_id), **told)
