"""Each part that an agent depends on is stopped in turn: what the agent shows names it, and is not "all well"."""

import asyncio
import shutil
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent.http.status import status_of
from agent.http.status_page import status_page
from plugin.errors import RemoteStorageError
from plugin.segment_metadata import CombinedSegmentId
from plugin.store_loop import ask
from plugin.wall_clock import Clocks, wall_ms
from replication.wire.peer_protocol import Hello
from tests.agent.agent_rig import AgentRig, running_agent
from tests.replication.two_agents import framed, read_frame


class PeersAgent:
    """Says the hello of broker 2's agent to each hello."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def stop(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        while (frame := await read_frame(reader)) is not None:
            writer.write(framed(Hello("abc", 2, 1, Hello.decode(frame).capabilities).encode()))


async def stop_peer(_rig: AgentRig, peer: PeersAgent) -> None:
    peer.stop()


async def stop_broker(rig: AgentRig, _peer: PeersAgent) -> None:
    await rig.broker.stop()
    with pytest.raises(AssertionError):
        await rig.expect_relaying()


async def stop_store(rig: AgentRig, _peer: PeersAgent) -> None:
    assert rig.agent.state.relaying is not None
    storage = rig.agent.state.relaying.storage
    await rig.until(lambda: storage.is_there)
    (rig.directory / "objects").chmod(0o700)
    shutil.rmtree(rig.directory / "objects")
    (rig.directory / "objects").write_text("no directory any more")
    with pytest.raises(RemoteStorageError):
        await asyncio.to_thread(ask, storage.fetch_log_segment(CombinedSegmentId(1, 1, 1), 0, 1))


PARTS: dict[str, tuple[Callable[[AgentRig, PeersAgent], Awaitable[None]], str, str | None]] = {
    "the agent of broker 2": (stop_peer, "its agent does not answer", "the agent of broker 2 does not answer (last"),
    "the local broker": (stop_broker, "the local broker does not take connections", "the local broker does not take"),
    "the store": (stop_store, "Store fails", None),
}
"""By part: how it is stopped, what the page then shows, and a line of /readyz."""


@pytest.mark.parametrize("part", PARTS)
async def test_what_the_agent_shows_names_the_part_that_was_stopped(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replication.follower.peer_watch._INTERVAL_S", 0.02)
    stop, shown, told = PARTS[part]
    peer = PeersAgent()
    changes = {"remote_wal_agent_peers": f"2@127.0.0.1:{await peer.start()}"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        changes["remote_wal_agent_replica_port_base"] = str(free.getsockname()[1] - 2)
    try:
        async with running_agent(tmp_path, monkeypatch, None, **changes) as rig:
            state = rig.agent.state
            assert state.relaying is not None
            watch = state.relaying.peer_watch

            def page() -> str:
                text = status_page(status_of(state, Clocks(time.monotonic, wall_ms)), "1").decode()
                for tag in ("<dt>", "</dt>", "<dd>", "</dd>"):
                    text = text.replace(tag, " ")
                return " ".join(text.split())

            await rig.until(lambda: watch.get_presence(2).is_there)
            assert all(other_shown not in page() for _, other_shown, _ in PARTS.values())
            await stop(rig, peer)
            await rig.until(lambda: shown in page())
            assert not told or any(line.startswith(told) for line in state.degraded())
            assert "<title>broker 1: not well</title>" in page()
    finally:
        peer.stop()
