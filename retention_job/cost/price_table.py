"""Prices by name, of which each computation asks for those that it needs. A missing price is an error, never 0.

`plugin.prices` reads the same file for the agents. The job needs more of it (brokers, disks, dates), and must also
compute with older tables, whose fees had free bytes, so it takes the file as it is.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final, Self

from plugin.prices import DEFAULT_PRICES_FILE, PriceError, StorePrices

EXPRESS: Final = "s3_express"
STANDARD: Final = "s3_standard"


@dataclass(frozen=True, slots=True)
class PriceTable:
    """US dollars by `section.key`, as they stand in a price file."""

    source: str
    """For error messages: the file, and the table's name in it."""
    confirmed: str
    """The date as of which somebody looked, ISO 8601."""
    sections: Mapping[str, Mapping[str, object]]

    @classmethod
    def load(cls, file: Path | None = None) -> Self:
        """The file's table; None: the one that comes with the project. Raises PriceError."""
        # The packages may be in a zip, as spark-submit ships them.
        chosen = file or resources.files("plugin") / DEFAULT_PRICES_FILE.name
        file = file or DEFAULT_PRICES_FILE
        try:
            table = tomllib.loads(chosen.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise PriceError(f"{file}: {error}") from error
        return cls.of(table, str(file))

    @classmethod
    def of(cls, table: Mapping[str, object], source: str) -> Self:
        """From what a TOML file holds. Raises PriceError when the table has no date."""
        confirmed = table.get("confirmed")
        if confirmed is None:
            raise PriceError(f"{source}: confirmed: the date of the prices is missing")
        sections = {name: section for name, section in table.items() if isinstance(section, dict)}
        return cls(source, str(confirmed), sections)

    def usd(self, section: str, key: str) -> float:
        """One price. Raises PriceError when it is missing, or none."""
        value = self.sections.get(section, {}).get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
            raise PriceError(f"{self.source}: {section}.{key} must be a price in dollars, not {value!r}")
        return float(value)

    def free_bytes_per_request(self, section: str) -> int:
        """Bytes of each request that upload and retrieval fees leave out; 0 where the table says nothing of it."""
        value = self.sections.get(section, {}).get("free_bytes_per_request", 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise PriceError(f"{self.source}: {section}.free_bytes_per_request must be a number of bytes")
        return value

    def store(self, section: str) -> StorePrices:
        """All prices of one storage class. Raises PriceError naming the first that is missing."""
        return StorePrices(
            storage_gb_month=self.usd(section, "storage_gb_month"),
            put_per_1000=self.usd(section, "put_per_1000"),
            get_per_1000=self.usd(section, "get_per_1000"),
            upload_gb=self.usd(section, "upload_gb"),
            retrieval_gb=self.usd(section, "retrieval_gb"),
        )

    @property
    def zone_crossing_gb(self) -> float:
        """A gigabyte across a zone border once, both sides together."""
        return 2 * self.usd("network", "zone_transfer_gb_per_side")

    @property
    def cross_zone_read_gb(self) -> float:
        """What reading an object from another zone adds per gigabyte."""
        return self.usd("network", "express_cross_zone_read_gb")
