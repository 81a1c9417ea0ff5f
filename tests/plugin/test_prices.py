"""Prices come from a file; the break-even size of an object follows from them."""

from pathlib import Path

import pytest

from plugin.prices import DEFAULT_PRICES_FILE, NEVER_PAYS, PriceError, Prices


def test_at_list_prices_an_object_on_s3_express_pays_from_33_kb_on() -> None:
    prices = Prices.load()
    assert prices.break_even_bytes(2, prices.s3_express) == pytest.approx(33_000, rel=0.02)


def test_at_the_break_even_size_an_object_costs_what_the_zone_border_costs() -> None:
    prices = Prices.load()
    for store in (prices.s3_express, prices.s3_standard):
        size = prices.break_even_bytes(2, store)
        border = 2 * size / 1e9 * prices.zone_crossing_gb
        assert store.requests_usd(1, 2, size, 2 * size) == pytest.approx(border, rel=1e-3)


def test_a_read_of_what_is_stored_costs_at_its_break_even_size_what_the_zone_border_costs() -> None:
    prices = Prices.load()
    for store, about_bytes in ((prices.s3_express, 1_550), (prices.s3_standard, 20_000)):
        size = prices.get_break_even_bytes(store)
        assert size == pytest.approx(about_bytes, rel=0.01)
        assert store.requests_usd(0, 1, 0, size) == pytest.approx(size / 1e9 * prices.zone_crossing_gb, rel=1e-2)


def test_the_standard_backend_is_reckoned_at_standard_prices() -> None:
    prices = Prices.load()
    assert prices.of_storage_manager("plugin.s3.S3WalStorageManager") is prices.s3_standard
    assert prices.of_storage_manager("plugin.s3_express.S3ExpressWalStorageManager") is prices.s3_express
    assert prices.of_storage_manager("plugin.local_directory.LocalWalStorageManager") is prices.s3_express


@pytest.mark.parametrize("broken", ["put_per_1000 = 0.00113", "zone_transfer_gb_per_side = 0.01"])
def test_a_missing_price_is_an_error_that_names_it(tmp_path: Path, broken: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(DEFAULT_PRICES_FILE.read_text().replace(broken, ""))
    with pytest.raises(PriceError, match=broken.split(" ", maxsplit=1)[0]):
        Prices.load(file)


@pytest.mark.parametrize("changed", [("upload_gb = 0.0032", "upload_gb = 1.0"), ("per_side = 0.01", "per_side = 0.0")])
def test_prices_at_which_no_object_ever_pays_have_no_break_even(tmp_path: Path, changed: tuple[str, str]) -> None:
    prices = changed_prices(tmp_path, *changed)
    assert prices.break_even_bytes(2, prices.s3_express) == NEVER_PAYS


@pytest.mark.parametrize(
    "changed", [("retrieval_gb = 0.0006", "retrieval_gb = 1.0"), ("per_side = 0.01", "per_side = 0.0")]
)
def test_prices_at_which_no_read_ever_pays_have_no_break_even(tmp_path: Path, changed: tuple[str, str]) -> None:
    prices = changed_prices(tmp_path, *changed)
    assert prices.get_break_even_bytes(prices.s3_express) == NEVER_PAYS


def changed_prices(directory: Path, before: str, after: str) -> Prices:
    file = directory / "prices.toml"
    file.write_text(DEFAULT_PRICES_FILE.read_text().replace(before, after))
    return Prices.load(file)
