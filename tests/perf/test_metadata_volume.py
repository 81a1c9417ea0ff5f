"""The metadata topic stays small: bytes per entry of a fixed load, which a change of the format would show."""

import pytest

from metadata_topic.topic.publication_queue import DEFAULT_SETTINGS
from perf.metadata.command import Shape, measure_loading
from perf.metadata.volume import Load, Volume, measure_volume, zstd


@pytest.fixture(scope="module")
def volume() -> Volume:
    return measure_volume(Load(), zstd(), objects=50)


def test_an_entry_costs_at_most_24_bytes_before_compression(volume: Volume) -> None:
    assert volume.entries == 50 * 1000
    assert volume.bytes_per_entry < 18.5


def test_an_entry_costs_at_most_9_bytes_in_the_topic_4_of_them_its_crc(volume: Volume) -> None:
    assert 4 < volume.compressed_bytes_per_entry < 7.5


def test_the_topic_costs_at_most_3_percent_of_the_data(volume: Volume) -> None:
    assert volume.share_of(Load()) < 0.026


def test_the_same_seed_gives_the_same_bytes(volume: Volume) -> None:
    assert measure_volume(Load(), zstd(), objects=50) == volume


def test_gathering_objects_into_one_batch_is_worth_it(volume: Volume) -> None:
    alone = measure_volume(Load(), zstd(), objects=20, linger_ms=0)
    assert DEFAULT_SETTINGS.linger_ms >= 200
    assert volume.compressed_bytes_per_entry < alone.compressed_bytes_per_entry - 2


def test_a_store_loads_in_a_process_of_its_own_from_a_snapshot_and_a_tail() -> None:
    loaded = measure_loading(Shape(segments=40, entries=50), tail=0.25)
    assert loaded.entries > 40 * 40
    assert loaded.snapshot_bytes > 1000
