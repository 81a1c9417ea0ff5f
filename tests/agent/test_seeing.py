"""What a whole agent tells of itself."""

import asyncio
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from agent.http.http_asking import ask_agent_page
from agent.release import this_release
from agent.settings.process_settings import HttpSettings
from agent.settings_file import agent_settings
from agent.wiring import storage_system
from agent.wiring.agent_resources import AgentResources
from agent.wiring.storage_system import open_metadata
from kafka_log.broker_files.server_properties import load_broker_properties
from local_cluster.security.authority import Authority
from metadata_topic.topic.followed_metadata import FollowedMetadata
from tests.agent.agent_rig import AgentRig, running_agent
from tests.kafka_log.log_writer import LogWriter


async def test_the_release_the_loops_and_what_was_saved_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_agent(tmp_path, monkeypatch) as rig:
        tell, release = rig.registry.get_sample_value, this_release()
        labels = {"version": release.version, "commit": release.commit}
        await rig.until(lambda: tell("remote_wal_build_info", labels) == 1)

        def idle_s(loop: str) -> float:
            return tell("remote_wal_loop_idle_seconds", {"loop": loop}) or 0.0

        # Kafka does not answer in this test, so nothing is asked of the cluster; what is published is.
        await rig.until(lambda: idle_s("cluster") > idle_s("publication") > 0)
        await rig.until(
            lambda: (tell("remote_wal_dollars_total", {"of": "requests"}) or 0) > 0
        )  # the store's self-test
        assert tell("remote_wal_dollars_total", {"of": "stock"}) == 0
        assert (tell("remote_wal_saved_dollars") or 0) < 0


async def test_the_status_page_tells_what_the_agent_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_agent(tmp_path, monkeypatch) as rig:
        await rig.until(lambda: rig.storage_run is not None and rig.agent.http.address is not None)
        assert "<title>broker 1: not well</title>" in await page_of(rig)  # Kafka is not there
        log = LogWriter(tmp_path / "data" / "t-0")
        log.append(3)
        rig.lead(log)
        await rig.until(lambda: rig.uploaded_offset == 3)
        shown = await page_of(rig)
        assert "<td>t-0</td>" in shown
        assert "Everything stored" in shown
        assert "leadership not known yet" in shown


async def test_programs_are_told_how_the_agent_is_and_prometheus_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_agent(tmp_path, monkeypatch) as rig:
        await rig.until(lambda: rig.agent.http.address is not None)
        told = json.loads(await page_of(rig, "/status"))
        assert (told["broker_id"], told["version"]) == (1, this_release().version)
        assert told["not_ready"]  # Kafka is not there
        assert rig.agent.state.identity is not None
        labels = {"cluster": rig.agent.state.identity.cluster_id, "zone": told["zone"] or "", "broker": "1"}
        assert rig.registry.get_sample_value("remote_wal_agent_info", labels) == 1


async def test_an_agent_that_still_opens_the_file_of_what_it_knows_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = threading.Event()

    def opened(around: AgentResources) -> FollowedMetadata:
        opens.wait(60)
        return open_metadata(around)

    monkeypatch.setattr(storage_system, "open_metadata", opened)
    async with running_agent(tmp_path, monkeypatch) as rig:
        await rig.until(lambda: rig.agent.state.system is not None and rig.agent.state.system.loading.missing is None)
        assert rig.agent.state.not_ready() == ["starting"]
        opens.set()
        await rig.until(lambda: rig.storage_run is not None)
        assert "starting" not in rig.agent.state.not_ready()


async def page_of(rig: AgentRig, path: str = "/") -> str:
    assert rig.agent.http.address is not None

    def ask() -> str:
        with urllib.request.urlopen(f"http://{rig.agent.http.address}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(ask)


async def test_by_its_settings_an_agent_is_asked_by_tls_and_with_a_token_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, token = Authority(tmp_path).tls_for("host", ["127.0.0.1"]), tmp_path / "token"
    token.write_text("s3cret")
    async with running_agent(
        tmp_path,
        monkeypatch,
        remote_wal_agent_http_ssl_certificate_file=str(files.certificate_file),
        remote_wal_agent_http_ssl_key_file=str(files.key_file),
        remote_wal_agent_http_ssl_ca_file=str(files.ca_file),
        remote_wal_agent_http_token_file=str(token),
    ) as rig:
        await rig.until(lambda: rig.agent.http.address is not None)
        asking = agent_settings(load_broker_properties(tmp_path / "server.properties"), tmp_path).http

        def ask(settings: HttpSettings) -> bytes:
            return ask_agent_page(f"https://{rig.agent.http.address}", "/config", 10, settings)

        shown = await asyncio.to_thread(ask, asking)
        assert str(token).encode() in shown
        assert b"s3cret" not in shown
        with pytest.raises(urllib.error.HTTPError, match="401"):
            await asyncio.to_thread(ask, asking.model_copy(update={"token_file": None}))
