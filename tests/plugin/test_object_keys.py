import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugin.format.object_keys import ObjectKeyFactory
from plugin.segment_metadata import CombinedSegmentId
from tests.plugin.id_strategies import combined_segment_ids

KEYS = ObjectKeyFactory.of("team/kafka", "MkU3OEVBNTcwNTJENDM2Qg")


def test_a_key_looks_as_documented() -> None:
    assert (
        KEYS.key_of(CombinedSegmentId(3, 0xABC, 17))
        == "team/kafka/MkU3OEVBNTcwNTJENDM2Qg/3/000000000abc/000000000011.rwal"
    )


@given(combined_segment_ids)
def test_a_key_tells_its_segment(segment_id: CombinedSegmentId) -> None:
    assert KEYS.parse(KEYS.key_of(segment_id)) == segment_id
    assert KEYS.key_of(segment_id).startswith(KEYS.list_prefix(segment_id.broker_id))


@given(st.text(max_size=80))
def test_what_is_parsed_is_what_would_be_built(tail: str) -> None:
    key = KEYS.list_prefix() + tail
    parsed = KEYS.parse(key)
    assert parsed is None or KEYS.key_of(parsed) == key


@pytest.mark.parametrize(
    "tail",
    [
        "03/000000000abc/000000000011.rwal",
        "3/000000000ABC/000000000011.rwal",
        "3/abc/11.rwal",
        "3/000000000abc/000000000011.rwal\n",
        "2147483648/000000000abc/000000000011.rwal",
        "٣/000000000abc/000000000011.rwal",
        "3/probe-1",
    ],
)
def test_a_key_of_any_other_form_is_not_ours(tail: str) -> None:
    assert KEYS.parse(KEYS.list_prefix() + tail) is None


def test_listing_prefixes_end_in_a_slash() -> None:
    assert KEYS.list_prefix().endswith("/")
    assert KEYS.list_prefix(3).endswith("/3/")


def test_the_probe_is_never_taken_for_a_segment() -> None:
    assert KEYS.parse(KEYS.probe_key(3, "0011")) is None
    prefix, key = KEYS.listable_probe(3, "0011")
    assert key.startswith(prefix)
    assert prefix.endswith("/")
    assert [KEYS.parse(key), KEYS.parse_archive(key), KEYS.parse_blob(key), KEYS.cluster_of(key)] == [None] * 4


def test_a_key_of_any_cluster_under_the_prefix_tells_whose_it_is() -> None:
    other = ObjectKeyFactory.of("team/kafka", "other-cluster")
    segment_id = CombinedSegmentId(3, 1, 2)
    assert KEYS.cluster_of(KEYS.key_of(segment_id)) == KEYS.cluster_id
    assert KEYS.cluster_of(other.key_of(segment_id)) == "other-cluster"
    assert KEYS.cluster_of(other.blob_key("metadata-snapshots/1/a")) == "other-cluster"
    assert KEYS.cluster_of(other.archive_prefix() + "x.rwal") is None
    assert KEYS.cluster_of(ObjectKeyFactory.of("team", "other-cluster").key_of(segment_id)) is None


@pytest.mark.parametrize(
    "name", ["", "metadata-snapshots", "metadata-snapshots/", "metadata-snapshots/../1", "1/000000000abc", "other/x",
             "metadata-snapshots//x", "metadata-snapshots/1/X"]
)  # fmt: skip
def test_a_name_that_is_no_blobs_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a blob"):
        KEYS.blob_key(name)
    assert KEYS.parse_blob(KEYS.list_prefix() + name) is None


def test_a_blobs_key_tells_its_name_and_is_no_segments() -> None:
    name = "metadata-snapshots/3/000001-0abc/00000-of-00001"
    key = KEYS.blob_key(name)
    assert key == f"team/kafka/MkU3OEVBNTcwNTJENDM2Qg/{name}"
    assert KEYS.parse_blob(key) == name
    assert KEYS.parse(key) is None
    assert ObjectKeyFactory.of("", "other").parse_blob(key) is None
