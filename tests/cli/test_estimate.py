"""`remote-wal estimate`: its options, JSON, table and page; `retention_job.cost.estimate` has the arithmetic."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cli.costs import cluster_samples
from cli.costs.estimate import _look
from cli.main import build_app
from kafka_cluster.errors import KafkaClusterError
from plugin.errors import OperationError
from recovery.errors import ReassignmentError
from retention_job.cost.estimate import WAYS, Log, Sample
from tests.retention_job.cost.test_estimate import RACKS, two

ROW = {
    "topic", "produced_bytes", "read_bytes", "lag_records", "rate", "usd", "replication_usd", "clients_usd",
    "parts_usd", "linked_share", "held_linked_share", "pack_ratio", "inline_bytes",
}  # fmt: skip


class PlayedSampler:
    """Each sample is the next of `samples`; then comes Ctrl-C."""

    samples: Iterator[Sample]

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> "PlayedSampler":
        return self

    def __exit__(self, *_: object) -> None: ...

    def sample(self) -> Sample:
        try:
            return next(self.samples)
        except StopIteration:
            raise KeyboardInterrupt from None


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_samples, "Sampler", PlayedSampler)
    monkeypatch.setattr(PlayedSampler, "samples", iter(two(5e6)), raising=False)
    monkeypatch.setattr("cli.costs.estimate._wait", lambda _seconds: None)


def run(*options: str) -> Result:
    command = ["estimate", "--bootstrap-server", "nowhere:1", "--minutes", "0.2", *options]
    return CliRunner().invoke(build_app(), command)


def test_a_page_that_has_no_place_is_refused_before_it_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlayedSampler, "sample", lambda _: pytest.fail("it looks"))
    told = run("--page", str(tmp_path / "nope" / "estimate.html"))
    assert told.exit_code == 2
    assert "no directory" in told.stderr


def test_programs_are_told_all_ways_for_each_topic_and_in_all() -> None:
    told = run("--json")
    assert told.exit_code == 0, told.output
    found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    assert found.keys() == {
        "exit_code", "unit", "sampled_s", "brokers", "zones", "break_even_bytes", "break_even_mb_s", "acks_all_added",
        "total", "topics", "notes", "prices", "acks", "prometheus",
    }  # fmt: skip
    assert found["total"].keys() == found["topics"][0].keys() == ROW
    assert list(found["total"]["usd"]) == list(WAYS) == list(found["acks_all_added"])
    assert (found["brokers"], found["zones"], found["sampled_s"]) == (3, 3, 12.0)
    assert found["prices"]["provider"] == "AWS"
    assert (found["prometheus"], found["total"]["rate"]) == (None, "sampled")
    assert "no records were read, so none count as packed: --read-records shows what packing saves" in found["notes"]


def test_people_see_each_topic_the_ways_the_break_even_and_whose_prices_these_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    page = tmp_path / "estimate.html"
    told = run("--page", str(page), "--acks", "1").stdout
    for text in (
        "orders",
        "client.rack alone",
        "agents, gateway",
        "By agents: links where they cost less, else inline. Links pay from 34 KB an object",
        "0.51 MB/s",
    ):
        assert text in told
    assert "Prices: AWS, s3_express, confirmed " in told.replace("\n", " ")
    parts = re.search(r"Of today's \$(\S+), replication is \$(\S+), and .* leader are \$(\S+); the rest", told)
    assert parts is not None
    today, replication, produced = (float(one.replace(",", "")) for one in parts.groups())
    assert today == 691.2
    assert 0 < produced < replication < today - produced
    written = page.read_text()
    for text in (
        "<td>orders</td>",
        "Links pay from 34 KB an object",
        "costs $691.20 a month today. By agents: <b>$262.90</b>.",
        "By topic and month: bytes, and dollars by each way",
        "prefers-color-scheme: dark",
    ):
        assert text in written


def test_people_see_what_is_linked_where_agents_hold_the_answers_which_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = 'if they do, 100 % are linked, as in "agents, gateway": --acks 1 shows that by topic.'
    for options, is_said in (((), True), (("--acks", "1"), False)):
        monkeypatch.setattr(PlayedSampler, "samples", iter(two(0.6e6)))
        told = " ".join(run(*options).stdout.split())
        assert (said in told) == is_said, told


@pytest.mark.parametrize(("columns", "is_whole"), [(80, False), (150, True)])
def test_a_narrow_terminal_leaves_columns_out_and_cuts_none(
    monkeypatch: pytest.MonkeyPatch, columns: int, is_whole: bool
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    told = run("--acks", "1").stdout
    lines = told.splitlines()
    begin = next(at for at, line in enumerate(lines) if "By topic and month" in line)
    assert max(map(len, lines[begin:])) <= columns
    assert "…" not in told
    head = lines[begin + 1]
    assert [name in head for name in ("topic", "produced", "today", "agents", "linked")] == [True] * 5
    assert ("packing alone" in head) is is_whole


def test_another_providers_prices_come_with_its_network_and_own_ones_from_a_file(tmp_path: Path) -> None:
    found = json.loads(run("--json", "--store", "gcs_standard").stdout.splitlines()[-1])
    assert found["prices"]["provider"] == "Google Cloud"
    own = tmp_path / "prices.toml"
    own.write_text("confirmed = 2026-01-01\n")
    assert "s3_express.storage_gb_month" in str(run("--prices", str(own)).exception)


def test_ctrl_c_ends_it_with_what_is_known_and_before_two_looks_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlayedSampler, "samples", iter([*two(5e6)]))
    early = CliRunner().invoke(build_app(), ["estimate", "--bootstrap-server", "nowhere:1", "--json"])
    assert json.loads(early.stdout.splitlines()[-1])["sampled_s"] == 12.0
    monkeypatch.setattr(PlayedSampler, "samples", iter(two(5e6)[:1]))
    assert run("--json").exit_code == 130


def test_it_looks_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, waited = [0.0], list[float]()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        now_s[0] += seconds

    monkeypatch.setattr("cli.costs.estimate._wait", wait)
    samples: list[Sample] = []
    told: list[str] = []

    def sample() -> Sample:
        return Sample(now_s[0], RACKS, {("t", 0): Log(1, (1,), 0, 0, 0)}, {})

    _look(sample, samples, 25.0, 10.0, told.append, lambda: now_s[0])
    assert waited == [10.0, 10.0, 5.0]
    assert [one.at_s for one in samples] == [0.0, 10.0, 20.0, 25.0]
    assert told[-1].startswith("looking: 25 of 25 s, 1 partitions")


@pytest.mark.parametrize("failing_s", [(20.0,), (20.0, 30.0), (20.0, 30.0, 40.0)])
@pytest.mark.parametrize("error", [KafkaClusterError, ReassignmentError])
def test_a_look_that_fails_is_left_out_once_two_were_taken(
    monkeypatch: pytest.MonkeyPatch, failing_s: tuple[float, ...], error: type[OperationError]
) -> None:
    now_s, told, samples = [0.0], list[str](), list[Sample]()

    def wait(seconds: float) -> None:
        now_s[0] += seconds

    def sample() -> Sample:
        if now_s[0] in failing_s:
            raise error("ask", "broker 3", "refused")
        return Sample(now_s[0], RACKS, {}, {})

    monkeypatch.setattr("cli.costs.estimate._wait", wait)
    _look(sample, samples, 40.0, 10.0, told.append, lambda: now_s[0])
    assert [one.at_s for one in samples] == [at_s for at_s in (0.0, 10.0, 20.0, 30.0, 40.0) if at_s not in failing_s]
    lost = [text for text in told if text.startswith("a look failed and is left out: ")]
    assert len(lost) == len(failing_s)
    assert "refused" in lost[0]


@pytest.mark.parametrize("failing_s", [0.0, 10.0])
def test_a_look_that_fails_before_two_were_taken_ends_it(monkeypatch: pytest.MonkeyPatch, failing_s: float) -> None:
    now_s, samples = [0.0], list[Sample]()

    def wait(seconds: float) -> None:
        now_s[0] += seconds

    def sample() -> Sample:
        if now_s[0] == failing_s:
            raise KafkaClusterError("ask", "broker 3", "refused")
        return Sample(now_s[0], RACKS, {}, {})

    monkeypatch.setattr("cli.costs.estimate._wait", wait)
    with pytest.raises(KafkaClusterError, match="refused"):
        _look(sample, samples, 40.0, 10.0, lambda _text: None, lambda: now_s[0])
