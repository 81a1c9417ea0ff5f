"""What requests, stored bytes and zone crossings cost. Read from a dated file, never from constants."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

BYTES_PER_GB = 10**9
S3_STANDARD_CLASS_NAME = "plugin.s3.S3WalStorageManager"
DEFAULT_PRICES_FILE = Path(__file__).with_name("prices.toml")


class PriceError(ValueError):
    """The price file lacks a price, or holds one that is none; the message names file and key."""


@dataclass(frozen=True, slots=True)
class StorePrices:
    """US dollars of one storage class."""

    storage_gb_month: float
    put_per_1000: float
    get_per_1000: float
    upload_gb: float
    retrieval_gb: float

    def requests_usd(self, puts: int, gets: int, put_bytes: int, get_bytes: int) -> float:
        """Dollars for so many requests that moved so many bytes."""
        return (
            puts * self.put_per_1000 / 1000
            + gets * self.get_per_1000 / 1000
            + put_bytes / BYTES_PER_GB * self.upload_gb
            + get_bytes / BYTES_PER_GB * self.retrieval_gb
        )


@dataclass(frozen=True, slots=True)
class Prices:
    """The price table: one storage class for the WAL, one for archives, and the zone border."""

    s3_express: StorePrices
    s3_standard: StorePrices
    zone_crossing_gb: float
    """Dollars for a gigabyte that crosses a zone border once, both sides together."""
    express_cross_zone_read_gb: float

    @classmethod
    def load(cls, file: Path = DEFAULT_PRICES_FILE) -> Self:
        """Raises PriceError when a price is missing: an unknown price is never 0."""
        try:
            table = tomllib.loads(file.read_text())
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise PriceError(f"{file}: {error}") from error
        return cls(
            s3_express=_store(file, table, "s3_express"),
            s3_standard=_store(file, table, "s3_standard"),
            zone_crossing_gb=2 * _price(file, table, "network", "zone_transfer_gb_per_side"),
            express_cross_zone_read_gb=_price(file, table, "network", "express_cross_zone_read_gb"),
        )

    def of_storage_manager(self, class_name: str) -> StorePrices:
        """What a storage manager's requests cost: S3 Standard's prices for that one, S3 Express's for all others."""
        return self.s3_standard if class_name == S3_STANDARD_CLASS_NAME else self.s3_express

    def get_break_even_bytes(self, store: StorePrices) -> int:
        """The size from which a read of what is stored already is cheaper than its bytes at the border."""
        saved_per_gb = self.zone_crossing_gb - store.retrieval_gb - self.express_cross_zone_read_gb
        if saved_per_gb <= 0:
            raise PriceError("at these prices no read is ever cheaper than crossing the zone border")
        return round(store.get_per_1000 / 1000 / saved_per_gb * BYTES_PER_GB)

    def break_even_bytes(self, remote_followers: int, store: StorePrices) -> int:
        """The size from which an object is cheaper than sending its bytes across the border to each follower.

        An object costs one PUT and a GET per follower, and per byte its upload and retrievals; inline, a byte costs a
        crossing per follower.
        """
        requests = store.put_per_1000 / 1000 + remote_followers * store.get_per_1000 / 1000
        saved_per_gb = (
            remote_followers * (self.zone_crossing_gb - store.retrieval_gb - self.express_cross_zone_read_gb)
            - store.upload_gb
        )
        if saved_per_gb <= 0:
            raise PriceError("at these prices no object is ever cheaper than crossing the zone border")
        return round(requests / saved_per_gb * BYTES_PER_GB)


def _store(file: Path, table: dict[str, Any], section: str) -> StorePrices:
    return StorePrices(
        **{
            key: _price(file, table, section, key)
            for key in ("storage_gb_month", "put_per_1000", "get_per_1000", "upload_gb", "retrieval_gb")
        }
    )


def _price(file: Path, table: dict[str, Any], section: str, key: str) -> float:
    value = table.get(section, {}).get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
        raise PriceError(f"{file}: {section}.{key} must be a price in dollars, not {value!r}")
    return float(value)
