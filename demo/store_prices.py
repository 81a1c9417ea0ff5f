"""What requests to the demonstration's object store would cost at a cloud's."""

from local_cluster.object_store.store_spec import StoreKind
from plugin.prices import BYTES_PER_GB, Prices, StorePrices


def store_prices(prices: Prices, store: StoreKind) -> StorePrices:
    """The class of storage that this one stands for."""
    return prices.s3_express if store.is_in_one_zone else prices.s3_standard


def requests_usd(
    prices: Prices, store: StoreKind, puts: float, gets: float, put_bytes: float, get_bytes: float
) -> float:
    """Dollars for so many requests that moved so many bytes, read in other zones than they were written in."""
    usd = store_prices(prices, store).requests_usd(puts, gets, put_bytes, get_bytes)
    if store.is_in_one_zone:  # so readers are in others
        usd += get_bytes / BYTES_PER_GB * prices.express_cross_zone_read_gb
    return usd
