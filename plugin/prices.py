"""The prices of requests, stored bytes and cross-zone traffic, read from a dated file, never from constants.

A section of the file is a class of storage, or a provider's network between its zones; the store or a setting decides
which network counts.

Each computation reads the prices that it needs; a missing one is an error, never 0. Agents need few of them (`Prices`).
The report needs more (brokers, disks, dates), and also computes with older tables, whose fees had free bytes.
"""

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Final, Self

from plugin.errors import meant

EXPRESS: Final = "s3_express"
STANDARD: Final = "s3_standard"
GCS: Final = "gcs_standard"
AZURE_PREMIUM: Final = "azure_premium_block_blob"
NETWORK: Final = "network"
"""AWS's network, also used for unknown providers."""

BYTES_PER_GB = 10**9
SECONDS_PER_MONTH: Final = 30 * 86_400
NEVER_PAYS: Final = sys.maxsize
"""Used instead of a size: none is large enough."""
REMOTE_REPLICAS: Final = 2
"""How many replicas of a log are in other zones than its leader, as far as is known: three in three zones."""
S3_STANDARD_CLASS_NAME = "plugin.s3.S3WalStorageManager"
DEFAULT_PRICES_FILE = Path(__file__).with_name("prices.toml")

_SECTIONS: Final = {
    S3_STANDARD_CLASS_NAME: STANDARD,
    "plugin.gcs.GcsWalStorageManager": GCS,
    "plugin.azure_blob.AzureBlobWalStorageManager": AZURE_PREMIUM,
}
_NETWORKS: Final = {"gcs": "network_gcp", "azure": "network_azure"}
"""By the prefix of a provider's store names."""


class PriceError(ValueError):
    """The price file lacks a price, or has an invalid one; the message names file and key."""


@dataclass(frozen=True, slots=True)
class StorePrices:
    """The prices of one storage class, in US dollars."""

    storage_gb_month: float
    put_per_1000: float
    get_per_1000: float
    upload_gb: float
    retrieval_gb: float
    cross_zone_read_gb: float = 0.0
    """The extra price of reading a gigabyte from another zone."""

    def requests_usd(self, puts: float, gets: float, put_bytes: float, get_bytes: float) -> float:
        """Return the dollars for these numbers of requests and bytes moved."""
        return (
            puts * self.put_per_1000 / 1000
            + gets * self.get_per_1000 / 1000
            + put_bytes / BYTES_PER_GB * self.upload_gb
            + get_bytes / BYTES_PER_GB * self.retrieval_gb
        )

    def requests_across_usd(self, puts: float, gets: float, put_bytes: float, get_bytes: float) -> float:
        """Return the dollars for these requests and bytes, if objects are read in other zones than written."""
        read_usd = get_bytes / BYTES_PER_GB * self.cross_zone_read_gb
        return self.requests_usd(puts, gets, put_bytes, get_bytes) + read_usd


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices in US dollars by `section.key`, as in a price file."""

    source: str
    """For error messages: the file, and the table's name in it."""
    confirmed: str
    """The date on which somebody confirmed the prices, ISO 8601."""
    sections: Mapping[str, Mapping[str, object]]
    network: str = NETWORK
    """The section of the network for cross-zone traffic."""

    @classmethod
    def load(cls, file: Path | None = None) -> Self:
        """Load a price file; None: the one that comes with the project. Raises PriceError."""
        return cls.of(*_read(file))

    @classmethod
    def of(cls, table: Mapping[str, object], source: str) -> Self:
        """Parse the content of a TOML price file. Raises PriceError when it has no date."""
        confirmed = table.get("confirmed")
        if confirmed is None:
            raise PriceError(f"{source}: confirmed: the date of the prices is missing")
        return cls(source, str(confirmed), _sections(table))

    def usd(self, section: str, key: str) -> float:
        """Return one price. Raises PriceError when it is missing or invalid."""
        value = self.sections.get(section, {}).get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
            raise PriceError(f"{self.source}: {section}.{key} must be a price in dollars, not {value!r}")
        return float(value)

    def free_bytes_per_request(self, section: str) -> int:
        """Return how many bytes of each request are free of upload and retrieval fees; 0 if the table does not say."""
        value = self.sections.get(section, {}).get("free_bytes_per_request", 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise PriceError(f"{self.source}: {section}.free_bytes_per_request must be a number of bytes")
        return value

    def store(self, section: str) -> StorePrices:
        """Return all prices of one storage class. Raises PriceError naming the first that is missing."""
        return StorePrices(
            storage_gb_month=self.usd(section, "storage_gb_month"),
            put_per_1000=self.usd(section, "put_per_1000"),
            get_per_1000=self.usd(section, "get_per_1000"),
            upload_gb=self.usd(section, "upload_gb"),
            retrieval_gb=self.usd(section, "retrieval_gb"),
            cross_zone_read_gb=self.cross_zone_read_gb(section),
        )

    def with_network(self, network: str) -> Self:
        return replace(self, network=network)

    @property
    def zone_crossing_gb(self) -> float:
        """The price of a gigabyte that crosses zones once, for all paying sides together."""
        return self._paying_sides * self.usd(self.network, "zone_transfer_gb_per_side")

    @property
    def _paying_sides(self) -> int:
        sides = self.sections.get(self.network, {}).get("paying_sides", 2)
        if sides not in (1, 2):
            raise PriceError(f"{self.source}: {self.network}.paying_sides must be 1 or 2, not {sides!r}")
        return 1 if sides == 1 else 2

    def cross_zone_read_gb(self, section: str) -> float:
        """Return the extra price per gigabyte of reading an object of this storage class from another zone."""
        if section == STANDARD:  # it is in all zones
            return 0.0
        key = "express_cross_zone_read_gb" if self.network == NETWORK else "cross_zone_read_gb"
        return self.usd(self.network, key)


_KEYS: Final = frozenset(
    {
        "storage_gb_month", "put_per_1000", "get_per_1000", "upload_gb", "retrieval_gb", "free_bytes_per_request",
        "zone_transfer_gb_per_side", "paying_sides", "express_cross_zone_read_gb", "cross_zone_read_gb",
        "instance_hour", "disk_gb_month",
    }
)  # fmt: skip
"""What a price file may say in any section: a misspelt one would count as its default."""


@dataclass(frozen=True, slots=True)
class Prices:
    """The price table: one storage class for the WAL, one for archives, and cross-zone traffic."""

    s3_express: StorePrices
    s3_standard: StorePrices
    zone_crossing_gb: float
    """Dollars for a gigabyte that crosses zones once, for all paying sides together."""
    others: Mapping[str, StorePrices] = field(default_factory=dict)
    """Further classes of storage, by the names of their sections."""

    @classmethod
    def load(cls, file: Path = DEFAULT_PRICES_FILE, network: str = NETWORK) -> Self:
        """Load the prices, with this section for cross-zone traffic. Raises PriceError when a price is missing: an
        unknown price is never 0."""
        table, source = _read(file)
        prices = PriceTable(source, "", _sections(table), network)
        further = [name for name, held in prices.sections.items() if "put_per_1000" in held]
        return cls(
            prices.store(EXPRESS),
            prices.store(STANDARD),
            prices.zone_crossing_gb,
            {name: prices.store(name) for name in further if name not in (EXPRESS, STANDARD)},
        )

    def inline_gb(self, ratio: float) -> float:
        """Return the dollars for a gigabyte of inline records, when `ratio` bytes cross zones for each."""
        return self.zone_crossing_gb / ratio

    def of_section(self, section: str) -> StorePrices:
        """Return the prices of a storage class. Raises PriceError when the price file has no such section."""
        known = {EXPRESS: self.s3_express, STANDARD: self.s3_standard, **self.others}
        if section not in known:
            raise PriceError(f"the price file has no prices of {section}; it has those of {', '.join(known)}")
        return known[section]

    def get_break_even_bytes(self, store: StorePrices) -> int:
        """Return the size from which reading a stored object is cheaper than its inline bytes, or NEVER_PAYS."""
        saved_per_gb = self.zone_crossing_gb - store.retrieval_gb - store.cross_zone_read_gb
        if saved_per_gb <= 0:
            return NEVER_PAYS
        return round(store.get_per_1000 / 1000 / saved_per_gb * BYTES_PER_GB)

    def break_even_bytes(self, remote_followers: int, store: StorePrices) -> int:
        """Return the size from which an object is cheaper than sending its bytes across zones to each follower.

        An object costs one PUT and a GET per follower, and per byte its upload and retrievals; an inline byte costs a
        crossing per follower. NEVER_PAYS if no size pays.
        """
        read_gb = store.retrieval_gb + store.cross_zone_read_gb
        saved_per_gb = remote_followers * (self.zone_crossing_gb - read_gb) - store.upload_gb
        if saved_per_gb <= 0:
            return NEVER_PAYS
        return round(store.requests_usd(1, remote_followers, 0, 0) / saved_per_gb * BYTES_PER_GB)


def section_of(class_name: str) -> str:
    """Return the price section for a storage manager's class; that of S3 Express for unknown ones."""
    return _SECTIONS.get(class_name, EXPRESS)


def network_of(section: str) -> str:
    return _NETWORKS.get(section.split("_", maxsplit=1)[0], NETWORK)


def _read(file: Path | None) -> tuple[Mapping[str, object], str]:
    # The packages may be in a zip, as spark-submit ships them.
    chosen = file or resources.files("plugin") / DEFAULT_PRICES_FILE.name
    file = file or DEFAULT_PRICES_FILE
    try:
        table = tomllib.loads(chosen.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PriceError(f"{file}: {error}") from error
    for name, section in _sections(table).items():
        for key in section:
            if key not in _KEYS:
                raise PriceError(f"{file}: {name}.{key}: there is no such price{meant(key, _KEYS)}")
    return table, str(file)


def _sections(table: Mapping[str, object]) -> Mapping[str, Mapping[str, object]]:
    return {name: section for name, section in table.items() if isinstance(section, dict)}
