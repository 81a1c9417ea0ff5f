"""Tables for people are whole on a terminal of 80 columns."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cli as cli_package
import doctor.diagnosis
import doctor.gathering
from agent import settings_file
from agent.http import fleet_pages
from cli.main import build_app
from cli.progress import shown_progress
from cli.tables import fitted, show, table
from doctor.findings import Finding, Level
from metadata_topic.settings import settings_topic
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.topic_settings import AgentRegistration

WIDTHS = ["80", "150"]


def described(monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, object], *options: str) -> str:
    """What `describe` shows where these are the agents' answers, by URL, and who is not among them is silent."""

    def answer(endpoint: str, path: str, _timeout_s: float, _settings: object) -> bytes:
        url = f"http://{endpoint}{path}"
        if url not in answers:
            raise OSError("refused")
        return json.dumps(answers[url]).encode()

    agents = {one: AgentRegistration(one, 1, f"host-{one}:19095", "1", 0) for one in (101, 102)}
    known = SettingsTable(agents=agents)
    monkeypatch.setattr(settings_topic, "read_known_settings", lambda _client: known)
    monkeypatch.setattr(fleet_pages, "ask_agent_page", answer)
    done = CliRunner().invoke(build_app(), ["describe", "--bootstrap-server", "nowhere:1", *options])
    assert done.stdout, (done.exit_code, done.stderr, done.exception)
    return done.stdout


@pytest.mark.parametrize("columns", WIDTHS)
def test_partitions_and_agents_lose_columns_and_cut_none(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    partition = {
        "topic": "a-topic-with-a-long-name-of-its-own", "partition": 128, "log_end_offset": 123456789,
        "uploaded_offset": 123456700, "lag_bytes": 12_300_000, "lag_age_ms": 123_400, "linked_bytes": 987_600_000_000,
        "inline_bytes": 98_700_000,
    }  # fmt: skip
    agent = {
        "broker_id": 101,
        "partitions": [partition], "storage_ready": True, "hydration_paused": False, "archive_reads_paused": True,
        "requests": {"put": 12345678, "get": 23456789}, "metadata_pending": 1234,
        "bypassed_agents": [102, 103], "links_never_pay": True,
        "gaps": [{"topic": "orders", "partition": 1, "from_offset": 50, "to_offset": 61, "reason": "retention"}],
    }  # fmt: skip
    shown = described(monkeypatch, {"http://host-101:19095/describe": agent})
    for figure in (partition["topic"], "128", "101", "12.3 MB", "987.6 GB", "123456789", "12,345,678", "23,456,789"):
        assert str(figure) in shown
    for figure in ("123456700", "123 s", "98.7 MB"):
        assert (figure in shown) is (columns == "150")
    told = "broker 102: its agent does not answer (host-102:19095: refused): what it leads is not shown here, and may"
    assert " ".join(shown.split()).startswith(told), "before what looks as if all were well"
    assert "WAL only" in shown
    for given_up, told in (([""], "paused"), (["two"], "in part")):
        paused = agent | {"hydration_paused": True, "buckets_given_up": given_up}
        assert told in described(monkeypatch, {"http://host-101:19095/describe": paused})
    assert [f"Agent 101 bypasses the dead agent of broker {dead}." in shown for dead in (102, 103)] == [True, True]
    assert "Agent 101: links never pay" in shown
    assert "orders-1: offsets 50 to 60 are in no object" in shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= int(columns)


@pytest.mark.parametrize("columns", WIDTHS)
def test_objects_lose_no_figure(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    row = {
        "broker_id": 101, "caretaker_broker_id": 102, "state": "DELETE_SEGMENT_FINISHED", "segments": 1_234_567,
        "bytes": 987_600_000_000, "oldest_age_ms": 604_800_000, "newest_age_ms": 1000,
    }  # fmt: skip
    answer = {"objects": [row], "totals": []}
    shown = described(monkeypatch, {"http://host-102:19095/objects": answer}, "--objects")
    for figure in ("101", "DELETE_SEGMENT_FINISHED", "987.6 GB", "604,800 s"):
        assert figure in shown
    assert "…" not in shown


def diagnosed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, findings: Sequence[Finding]) -> list[str]:
    """What `doctor` shows of these findings."""
    monkeypatch.setattr(settings_file, "agent_settings", lambda *_: None)
    monkeypatch.setattr(doctor.gathering, "gather", lambda *_: None)
    monkeypatch.setattr(doctor.diagnosis, "diagnose", lambda _facts: findings)
    monkeypatch.chdir(tmp_path)
    Path("server.properties").write_text("node.id=1\n")
    return CliRunner().invoke(build_app(), ["doctor", "--broker-config", "server.properties"]).stdout.splitlines()


@pytest.mark.parametrize("columns", WIDTHS)
def test_what_was_found_stands_first_and_whole_and_so_does_what_is_well(
    columns: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    key = "remote.wal.hydration.timeout.ms"
    selector = "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector"
    findings = [
        Finding("open-files", Level.OK, "the agent may open 65536 files, " * 6),
        Finding("metadata-topic-replication", Level.INFORMATION, "two replicas [of three]", selector),
        Finding("clock-store", Level.WARNING, "6 s"),
        Finding("fetch-delay", Level.WARNING, f"{key} is 1000", f"set {key} above replica.lag.time.max.ms"),
    ]
    shown = diagnosed(monkeypatch, tmp_path, findings)
    heads = [line for line in shown if line and not line.startswith(" ")]
    assert heads[:3] == ["warning: clock-store", "warning: fetch-delay", "information: metadata-topic-replication"]
    assert heads[3].startswith("ok: settings: server.properties")
    assert heads[4].startswith("ok: open-files: the agent may open 65536 files,")
    assert " ".join(" ".join(shown).split()).count("the agent may open 65536 files,") == 6
    assert heads[5:] == ["2 warnings (clock-store, fetch-delay), 1 information, 2 ok"]
    assert f"  → {selector}" in shown
    assert "  two replicas [of three]" in shown
    assert "".join(shown).count(key) == 2
    assert max(len(line) for line in shown if selector not in line) <= int(columns)


def test_how_much_was_found_is_never_cut_inside_a_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = ["listeners", "metadata-topic-replication", "metadata-topic-message-size"]
    shown = diagnosed(monkeypatch, tmp_path, [Finding(name, Level.WARNING, "x") for name in names])
    assert " ".join(shown[-2:]) == f"3 warnings ({', '.join(names)}), 1 ok"


def test_a_cause_that_kept_many_checks_from_being_made_is_told_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    cause = "no broker answers at kafka-1:9092"
    findings = [
        Finding("link-policy", Level.UNKNOWN, cause),
        Finding("agent-peers", Level.UNKNOWN, f"those known answer; whether all are there: {cause}"),
        Finding("clock-store", Level.UNKNOWN, "no object was listed"),
        Finding("topics-visible", Level.UNKNOWN, cause),
        Finding("metadata-topic-retention", Level.UNKNOWN, cause),
    ]
    shown = diagnosed(monkeypatch, tmp_path, findings)
    assert shown[:5] == [
        "unknown: 4 checks could not be made: link-policy, agent-peers, topics-visible,",
        "         metadata-topic-retention",
        f"  {cause}",
        "unknown: clock-store",
        "  no object was listed",
    ]
    assert shown[-1] == "5 unknown, 1 ok"


ODD = ("orders-[a-z]{2}-[0-9]+", "logs[/.-]prod", "[fe80::1]:19095", "[bold]", "a:warning:b")


@pytest.mark.parametrize("odd", ODD)
def test_text_in_brackets_is_shown_as_it_is(capsys: pytest.CaptureFixture[str], odd: str) -> None:
    show(
        odd,
        table(odd, rows=[[odd]], title=odd),
        fitted(odd, rows=[[odd]], drop=(), title=odd),
        table("", rows=[[odd]], without_lines=True),
    )
    assert capsys.readouterr().out.count(odd) == 8


@pytest.mark.parametrize("odd", ODD)
def test_progress_on_a_terminal_shows_text_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], odd: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with shown_progress(odd) as tell:
        tell(f"{odd}!")
    told = capsys.readouterr().err
    assert odd in told
    assert f"{odd}!" in told


def test_each_console_of_a_command_is_a_plain_one() -> None:
    """The demo's page alone is laid out with markup, of its own words."""
    cli = Path(cli_package.__file__).parent
    made = {file.relative_to(cli).as_posix() for file in cli.rglob("*.py") if "Console(" in file.read_text()}
    assert made == {"tables.py", "local/demo.py"}
