"""An agent as a process of its own, with a scripted broker behind it and what a service manager would hand over."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 60
CHECKOUT = Path(__file__).resolve().parents[2]
_RUN = "import sys; from cli.start import main; sys.argv[0] = 'remote-wal'; main()"
_WITH_SOCKETS = """
import fcntl, os, sys
handed = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 100) for number in sys.argv[1].split(",")]
for index, descriptor in enumerate(handed):
    os.dup2(descriptor, 3 + index, inheritable=True)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(handed)), "LISTEN_FDNAMES": sys.argv[2]}
os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
"""
"""As a service manager does: the descriptors are told of to the very process that is to have them."""


@dataclass
class AgentProcess:
    process: asyncio.subprocess.Process
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    async def until_logged(self, wanted: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while wanted not in self.log:
                assert self.process.returncode is None, self.log
                await asyncio.sleep(0.01)

    async def exit_code(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()


@asynccontextmanager
async def agent_process(
    properties: Path,
    *,
    before: str = "",
    environment: Mapping[str, str] | None = None,
    sockets: Sequence[tuple[str, socket.socket]] = (),
    arguments: Sequence[str] = (),
) -> AsyncIterator[AgentProcess]:
    """`before` is Python that runs first; `sockets` are handed over under these names."""
    log_path = properties.with_name("agent.log")
    command = ["-c", f"{before}\n{_RUN}", "agent", "--broker-config", str(properties), *arguments]
    if sockets:
        numbers = ",".join(str(handed.fileno()) for _, handed in sockets)
        command = ["-c", _WITH_SOCKETS, numbers, ":".join(name for name, _ in sockets), *command]
    with log_path.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=CHECKOUT,
            env={**os.environ, **(environment or {})},
            pass_fds=[handed.fileno() for _, handed in sockets],
        )
    try:
        yield AgentProcess(process, log_path)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
