"""By what a run's amounts are priced: sections of the price table, and the dollars out of them."""

from dataclasses import dataclass
from typing import Final

from plugin.prices import EXPRESS, NETWORK, STANDARD, PriceTable, StorePrices


@dataclass(frozen=True, slots=True)
class StoreSections:
    """The sections of price tables that two stores are paid by, and the zone borders."""

    wal: str = EXPRESS
    archive: str = STANDARD
    network: str = NETWORK


DEFAULT_SECTIONS: Final = StoreSections()


@dataclass(frozen=True, slots=True)
class Rates:
    """Dollars."""

    store: StorePrices
    archive: StorePrices
    crossing_gb: float
    read_fee_gb: float
    write_fee_gb: float | None
    """None where the price table does not tell it: then what has copies costs nobody knows what."""

    @classmethod
    def of(cls, prices: PriceTable, sections: StoreSections) -> "Rates":
        """Raises PriceError when a price is missing."""
        # S3 Standard is in all zones, so only a directory bucket's readers can be in others.
        read_fee_gb = prices.cross_zone_read_gb if sections.wal == EXPRESS else 0.0
        stores = prices.store(sections.wal), prices.store(sections.archive)
        return cls(*stores, prices.zone_crossing_gb, read_fee_gb, prices.known_cross_zone_write_gb)
