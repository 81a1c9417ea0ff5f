"""The building blocks of the agent's settings: sections, each of them for one package, in SI units.

Keys, defaults and bounds are as in server.properties, where times are whole milliseconds: what ends in _s here ends in
.ms there. Each package gets its own section, and none the whole file.
"""

import pwd
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, ValidationInfo, field_validator

from metadata_topic.settings.patterns import fault_in
from plugin.text_settings import TextSettings
from plugin.zones.buckets import parse_buckets
from replication.wire.broker_requests import parse_request_names
from replication.wire.peer_connection import Address

MAX_PORT = 65535


class AgentSettingsError(Exception):
    """A key of server.properties is missing or wrong; the message names file and key."""


def has_pair(certificate: Path | None, key: Path | None, where: str) -> bool:
    """Whether a certificate and its key are named; `where` names them. Raises AgentSettingsError for one alone."""
    if (certificate is None) != (key is None):
        raise AgentSettingsError(f"{where}: certificate and key file belong together")
    return certificate is not None


def parse_address(value: object) -> object:
    """Parse `host:port`, with IPv6 addresses in brackets."""
    if not isinstance(value, str):
        return value
    host, colon, port = value.strip().rpartition(":")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > MAX_PORT:
        raise ValueError(f"{value!r} is not host:port")
    host = host.strip("[]")
    try:
        host.encode("idna")  # as sockets do it, whose error would be no OSError
    except UnicodeError as error:
        raise ValueError(f"{value!r} has no name of a host: {error}") from None
    return Address(host, int(port))


def parse_peers(value: object) -> object:
    """Parse `1@host:port,2@host:port`: the agents by broker id."""
    if not isinstance(value, str):
        return value
    peers: dict[int, object] = {}
    for item in filter(None, (part.strip() for part in value.split(","))):
        broker_id, at, address = item.partition("@")
        if not at or not re.fullmatch(r"[0-9]+", broker_id):
            raise ValueError(f"{item!r} is not <broker id>@<host>:<port>")
        if int(broker_id) in peers:
            raise ValueError(f"broker {int(broker_id)} is named twice")
        peers[int(broker_id)] = parse_address(address)
    return peers


def _parse_buckets(value: object) -> object:
    return parse_buckets(value) if isinstance(value, str) else value


def parse_patterns(value: object) -> object:
    """Parse regular expressions separated by commas; the comma in a quantifier such as `{1,3}` does not separate."""
    if not isinstance(value, str):
        return value
    patterns = tuple(filter(None, (part.strip() for part in re.split(r",(?!\d*\})", value))))
    for pattern in patterns:
        if (fault := fault_in(pattern)) is not None:
            raise ValueError(f"{pattern!r} is {fault}")
    return patterns


def parse_user(value: object) -> object:
    """Parse a user of this host, by name or number. Returns the number."""
    if not isinstance(value, str) or value.isdecimal():
        return value
    try:
        return pwd.getpwnam(value).pw_uid
    except KeyError:
        raise ValueError(f"{value!r} is no user of this host") from None


ListenerSetting = Annotated[str, AfterValidator(str.upper)]
AddressSetting = Annotated[Address, BeforeValidator(parse_address)]
PeersSetting = Annotated[dict[int, Address], BeforeValidator(parse_peers)]
BucketsSetting = Annotated[dict[str, str], BeforeValidator(_parse_buckets)]
PatternsSetting = Annotated[tuple[str, ...], BeforeValidator(parse_patterns)]
UserSetting = Annotated[int | None, BeforeValidator(parse_user)]
RequestNamesSetting = Annotated[frozenset[str], BeforeValidator(parse_request_names)]
if TYPE_CHECKING:
    Seconds = float
    """The type of a field whose name ends in _s."""
else:
    Seconds = int  # what stands in the file, and is judged there: whole milliseconds. `Section` makes seconds of it


def milliseconds(seconds: float) -> int:
    """Convert seconds to whole milliseconds, as Kafka's settings count time."""
    return round(seconds * 1000)


def keyed(prefix: str) -> Callable[[str], str]:
    """Return a function that makes a section's keys from the names of its fields."""

    def key_of(field_name: str) -> str:
        name = f"{field_name.removesuffix('_s')}_ms" if field_name.endswith("_s") else field_name
        return prefix + name.replace("_", ".")

    return key_of


class Section(TextSettings):
    """One section of the settings. `keyed` makes its keys, unless a field has an alias of its own."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, validate_default=True, hide_input_in_errors=True
    )

    @field_validator("*")
    @classmethod
    def _in_seconds(cls, value: Any, info: ValidationInfo) -> Any:
        return value if value is None or not (info.field_name or "").endswith("_s") else value / 1000
