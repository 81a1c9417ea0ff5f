"""What pauses an agent's links, and where it is shown."""

import time
from pathlib import Path

import pytest
import structlog

from agent.http.status import status_of
from agent.http.status_page import status_page
from agent.link_pauses import LinkPauses, remove_local, write_local
from metadata_topic.settings.settings_records import Pause
from plugin.wall_clock import Clocks, wall_ms
from tests.agent.agent_rig import running_agent

PAUSE = Pause("anna@ops-1", 1_700_000_000_000)


@pytest.mark.parametrize(
    ("scope", "paused"),
    [
        ("all", ["orders", "clicks"]),
        ("broker:1", ["orders", "clicks"]),
        ("zone:az1", ["orders", "clicks"]),
        ("topic:orders", ["orders"]),
        ("broker:2", []),
        ("zone:az2", []),
        ("zone:None", []),
    ],
)
def test_a_record_pauses_what_it_names_and_its_end_resumes_it(tmp_path: Path, scope: str, paused: list[str]) -> None:
    changes = list[int]()
    pauses = LinkPauses(1, "az1", tmp_path, lambda: changes.append(1))
    assert pauses.is_paused(), "they may be, until the settings topic was read"
    assert "not known yet" in (pauses.find_reason("orders") or "")
    pauses.recorded({})
    changes.clear()
    pauses.recorded({scope: PAUSE})
    assert [topic for topic in ("orders", "clicks") if pauses.find_reason(topic)] == paused
    assert pauses.is_paused() is (len(paused) == 2)
    assert pauses.told == ([PAUSE.describe(scope)] if paused else [])
    pauses.recorded({scope: PAUSE})
    pauses.recorded({})
    assert (pauses.find_reason("orders"), pauses.told) == (None, [])
    assert len(changes) == (2 if paused else 0), "waiting responses look again at once"


def test_a_broker_without_a_zone_is_in_none(tmp_path: Path) -> None:
    pauses = LinkPauses(1, None, tmp_path)
    pauses.recorded({"zone:None": PAUSE})
    assert not pauses.is_paused()


async def test_a_file_pauses_the_agent_over_restarts_until_it_is_removed(tmp_path: Path) -> None:
    pauses = LinkPauses(1, "az1", tmp_path)
    with structlog.testing.capture_logs() as logged:
        write_local(tmp_path, PAUSE)
        await pauses.look()
        assert pauses.find_reason("orders") == PAUSE.describe("local")
        assert LinkPauses(1, "az1", tmp_path).told == [PAUSE.describe("local")], "before it links anything"
        pauses.recorded({})
        assert pauses.is_paused(), "Kafka's records do not end it"
        assert remove_local(tmp_path)
        assert not remove_local(tmp_path)
        await pauses.look()
        assert not pauses.is_paused()
    assert [(event["event"], event["scope"]) for event in logged] == [
        ("links_paused", "local"),
        ("links_paused", "local"),
        ("links_resumed", "local"),
    ]


async def test_a_file_that_says_nothing_pauses_too(tmp_path: Path) -> None:
    pauses = LinkPauses(1, None, tmp_path)
    (tmp_path / "paused.json").touch()
    await pauses.look()
    assert f"by the file {tmp_path}/paused.json" in (pauses.find_reason("orders") or "")


async def test_a_pause_is_shown_on_every_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_agent(tmp_path, monkeypatch) as rig:
        write_local(tmp_path / "state", PAUSE)
        state = rig.agent.state
        await rig.until(lambda: PAUSE.describe("local") in state.degraded())
        assert not state.describe()["links_never_pay"], "nothing is led yet"
        assert state.describe()["paused"] == [
            {"scope": "local", "by": "anna@ops-1", "since_ms": 1_700_000_000_000, "reason": ""}
        ]
        assert rig.registry.get_sample_value("remote_wal_links_paused", {"scope": "local"}) == 1
        assert (
            "links are paused since 2023-11-14 22:13:20 UTC by anna@ops-1"
            in status_page(status_of(state, Clocks(time.monotonic, wall_ms)), "1").decode()
        )
        remove_local(tmp_path / "state")
        await rig.until(lambda: state.describe()["paused"] == [])
        assert rig.registry.get_sample_value("remote_wal_links_paused", {"scope": "local"}) is None


def test_a_file_that_can_be_neither_read_nor_looked_at_pauses(tmp_path: Path) -> None:
    write_local(tmp_path, PAUSE)
    (file,) = tmp_path.iterdir()
    file.unlink()
    file.symlink_to(file.name)
    assert LinkPauses(1, "az1", tmp_path).is_paused()
