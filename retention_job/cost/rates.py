"""The prices of a run's amounts: sections of the price table, and the dollars out of them."""

from dataclasses import dataclass
from typing import Final

from plugin.prices import EXPRESS, NETWORK, STANDARD, PriceTable, StorePrices


@dataclass(frozen=True, slots=True)
class StoreSections:
    """The sections of price tables for the two stores and for cross-zone traffic."""

    wal: str = EXPRESS
    archive: str = STANDARD
    network: str = NETWORK


DEFAULT_SECTIONS: Final = StoreSections()


@dataclass(frozen=True, slots=True)
class Rates:
    """Prices in dollars."""

    store: StorePrices
    archive: StorePrices
    crossing_gb: float
    read_fee_gb: float
    write_fee_gb: float | None
    """None if the price table lacks it: then the cost of objects with copies is unknown."""

    @classmethod
    def of(cls, prices: PriceTable, sections: StoreSections) -> "Rates":
        """Take the prices out of a table. Raises PriceError if a price is missing."""
        # S3 Standard is in all zones, so only a directory bucket's readers can be in others.
        read_fee_gb = prices.cross_zone_read_gb if sections.wal == EXPRESS else 0.0
        stores = prices.store(sections.wal), prices.store(sections.archive)
        return cls(*stores, prices.zone_crossing_gb, read_fee_gb, prices.known_cross_zone_write_gb)
