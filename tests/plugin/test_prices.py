"""Prices come from a file; the break-even size of an object follows from them."""

from pathlib import Path

import pytest

from plugin.prices import DEFAULT_PRICES_FILE, NEVER_PAYS, PriceError, Prices, PriceTable, network_of, section_of


def test_at_list_prices_an_object_on_s3_express_pays_from_33_kb_on() -> None:
    prices = Prices.load()
    assert prices.break_even_bytes(2, prices.s3_express) == pytest.approx(33_000, rel=0.02)


def test_at_the_break_even_size_an_object_costs_what_crossing_zones_costs() -> None:
    prices = Prices.load()
    for store in (prices.s3_express, prices.s3_standard):
        size = prices.break_even_bytes(2, store)
        crossing_usd = 2 * size / 1e9 * prices.zone_crossing_gb
        assert store.requests_usd(1, 2, size, 2 * size) == pytest.approx(crossing_usd, rel=1e-3)


def test_a_read_of_what_is_stored_costs_at_its_break_even_size_what_crossing_zones_costs() -> None:
    prices = Prices.load()
    for store, about_bytes in ((prices.s3_express, 1_550), (prices.s3_standard, 20_000)):
        size = prices.get_break_even_bytes(store)
        assert size == pytest.approx(about_bytes, rel=0.01)
        assert store.requests_usd(0, 1, 0, size) == pytest.approx(size / 1e9 * prices.zone_crossing_gb, rel=1e-2)


def test_the_standard_backend_is_reckoned_at_standard_prices() -> None:
    prices = Prices.load()
    assert prices.of_section(section_of("plugin.s3.S3WalStorageManager")) is prices.s3_standard
    assert prices.of_section(section_of("plugin.s3_express.S3ExpressWalStorageManager")) is prices.s3_express
    assert prices.of_section(section_of("plugin.local_directory.LocalWalStorageManager")) is prices.s3_express


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


def test_a_standard_class_is_read_from_any_zone(tmp_path: Path) -> None:
    prices = changed_prices(tmp_path, "express_cross_zone_read_gb = 0.0", "express_cross_zone_read_gb = 1.0")
    assert prices.get_break_even_bytes(prices.s3_express) == NEVER_PAYS
    assert prices.get_break_even_bytes(prices.s3_standard) == Prices.load().get_break_even_bytes(prices.s3_standard)


def changed_prices(directory: Path, before: str, after: str) -> Prices:
    file = directory / "prices.toml"
    file.write_text(DEFAULT_PRICES_FILE.read_text().replace(before, after))
    return Prices.load(file)


@pytest.mark.parametrize(
    ("class_name", "network", "crossing_gb"),
    [
        ("plugin.s3.S3WalStorageManager", "network", 0.02),
        ("plugin.gcs.GcsWalStorageManager", "network_gcp", 0.01),
        ("plugin.azure_blob.AzureBlobWalStorageManager", "network_azure", 0.0),
    ],
)
def test_crossing_zones_costs_what_the_stores_provider_takes(class_name: str, network: str, crossing_gb: float) -> None:
    section = section_of(class_name)
    assert network_of(section) == network
    assert Prices.load(network=network).zone_crossing_gb == pytest.approx(crossing_gb)
    assert PriceTable.load().with_network(network).zone_crossing_gb == pytest.approx(crossing_gb)


def test_each_store_is_reckoned_at_its_own_prices() -> None:
    prices = Prices.load()
    assert prices.of_section(section_of("plugin.gcs.GcsWalStorageManager")).get_per_1000 == 0.0004
    assert prices.of_section(section_of("plugin.azure_blob.AzureBlobWalStorageManager")).put_per_1000 == 0.00228
    assert prices.of_section("azure_hot").storage_gb_month == 0.0208


def test_google_cloud_storage_pays_from_larger_objects_on_than_s3_express() -> None:
    prices = Prices.load(network="network_gcp")
    size = prices.break_even_bytes(2, prices.of_section("gcs_standard"))
    assert size == pytest.approx(290_000, rel=0.01), "(0.005 + 2 x 0.0004) / 1000 over 2 x $0.01 a GB"


def test_where_crossing_zones_is_free_nothing_pays() -> None:
    prices = Prices.load(network="network_azure")
    assert prices.break_even_bytes(2, prices.of_section("azure_premium_block_blob")) == NEVER_PAYS


def test_a_price_file_without_the_stores_section_is_told(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(DEFAULT_PRICES_FILE.read_text().replace("[gcs_standard]", "[gcs_other]"))
    with pytest.raises(PriceError, match="no prices of gcs_standard"):
        Prices.load(file).of_section(section_of("plugin.gcs.GcsWalStorageManager"))


@pytest.mark.parametrize(
    ("given", "changed"), [("paying_sides = 1", "paying_sides = 3"), ("[network_gcp]", "[network_other]")]
)
def test_a_network_that_says_no_price_is_told(tmp_path: Path, given: str, changed: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(DEFAULT_PRICES_FILE.read_text().replace(given, changed))
    with pytest.raises(PriceError, match="network_gcp"):
        Prices.load(file, "network_gcp")


def test_a_misspelt_price_is_an_error_and_not_its_default(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(DEFAULT_PRICES_FILE.read_text().replace("paying_sides", "payin_sides"))
    with pytest.raises(PriceError, match=r"network_gcp\.payin_sides: .*paying_sides"):
        PriceTable.load(file)
    with pytest.raises(PriceError, match="payin_sides"):
        Prices.load(file)
