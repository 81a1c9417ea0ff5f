#!/opt/remote-wal/bin/python
"""Starts a broker that Strimzi manages, and its agent beside it in the same container.

It stands in the place of Kafka's kafka-server-start.sh, which kafka_run.sh runs last: then the properties file is
written, and may be changed. The original lies beside it. Other brokers are to dial this one at their own agents, so its
advertised replication address becomes wal-<id>.<namespace>.svc:<port base + id>. `listeners` stays as it is, because
the operator compares it with what the broker runs with.

Whatever is not as expected is told on stderr, and the broker keeps its own address, as in stock Kafka: so also if its
agent does not get ready.
"""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import javaproperties
from cryptography import x509

STOCK = Path(__file__).with_name("kafka-server-start.stock.sh")
AGENT = (str(Path(sys.executable).with_name("remote-wal")), "agent", "--broker-config")

LISTENER = "REPLICATION-9091"
_ADVERTISED = re.compile(rf"{LISTENER}://[a-z0-9-]+\.[a-z0-9-]+\.([a-z0-9-]+)\.svc:9091")
_OURS = ("remote.wal.", "remote.log.wal.")
_PORT_BASE_KEY, _PORT_BASE, _MAX_PORT = "remote.wal.agent.replica.port.base", "19900", 65535
_CERTIFICATE_KEY = "remote.wal.agent.broker.ssl.certificate.file"
_ADDRESSES_KEY, _PLAINTEXT = "advertised.listeners", "PLAINTEXT"
_ENCODING = "iso-8859-1"
"""What Kafka reads the file by."""

_SETTLED_S = 5.0
"""An agent that ends sooner is started again a second later; others at once."""
_READY_S = 60.0
"""The broker waits so long for its agent before it starts as stock Kafka; an agent is ready after some seconds."""
_AGENT_STOP_S = 40.0
"""Above twice remote.wal.agent.shutdown.timeout.ms, as in the unit of systemd."""
_SILENCE_S = 15.0
"""An agent that has reported, and then says nothing for so long, is killed: WatchdogSec of the unit of systemd."""


class NotAsExpectedError(Exception):
    """An agent cannot run beside this broker, or its address cannot be changed; the message says why."""


def check_agent(properties: Mapping[str, str]) -> None:
    """Check whether an agent can stand beside this broker. Raises NotAsExpectedError."""
    if "broker" not in _items(properties, "process.roles"):
        raise NotAsExpectedError("this node is a controller alone")
    if not any(key.startswith(_OURS) for key in properties):
        raise NotAsExpectedError("spec.kafka.config has no remote.log.wal.storage.system.enable")
    if _has_tls(properties) and _CERTIFICATE_KEY not in properties and not _is_shadow(properties):
        raise NotAsExpectedError(f"{LISTENER} has TLS, and {_CERTIFICATE_KEY} is not set: brokers would trust no agent")


def new_addresses(properties: Mapping[str, str]) -> str:
    """Return advertised.listeners with the replication address of the agents. Raises NotAsExpectedError."""
    if properties.get("inter.broker.listener.name") != LISTENER:
        raise NotAsExpectedError(f"inter.broker.listener.name is not {LISTENER}")
    addresses = properties.get(_ADDRESSES_KEY, "").split(",")
    found = [item for item in addresses if item.startswith(f"{LISTENER}:")]
    form = _ADVERTISED.fullmatch(found[0]) if len(found) == 1 else None
    if form is None:
        told = f"{LISTENER} is advertised as {', '.join(found) or 'nothing'}"
        raise NotAsExpectedError(f"{told}, not as {LISTENER}://<pod>.<service>.<namespace>.svc:9091")
    number, base = properties.get("node.id", ""), properties.get(_PORT_BASE_KEY, _PORT_BASE)
    if not number.isdecimal() or not base.isdecimal() or int(number) + int(base) > _MAX_PORT:
        raise NotAsExpectedError(f"node.id {number!r} and {_PORT_BASE_KEY} {base!r} make no port")
    host = f"wal-{number}.{form[1]}.svc"
    if _has_tls(properties) and host not in (names := _names(properties[_CERTIFICATE_KEY])):
        raise NotAsExpectedError(
            f"{_CERTIFICATE_KEY} names {', '.join(names) or 'no host'}, and not {host}: alternativeNames of a listener"
        )
    address = f"{LISTENER}://{host}:{int(base) + int(number)}"
    return ",".join(address if item == found[0] else item for item in addresses)


def readdressed(text: str, properties: Mapping[str, str]) -> str:
    """Return the file's text with these keys replaced; all other lines stay. Raises NotAsExpectedError."""
    new, lines = new_addresses(properties), text.split("\n")
    old = f"{_ADDRESSES_KEY}={properties[_ADDRESSES_KEY]}"
    if sum(line.lstrip().startswith(_ADDRESSES_KEY) for line in lines) != 1 or old not in lines:
        raise NotAsExpectedError(f"{_ADDRESSES_KEY} does not stand once, and on one line")
    lines[lines.index(old)] = f"{_ADDRESSES_KEY}={new}"
    return "\n".join(lines)


def prepare(file: Path) -> bool:
    """Change the broker's advertised address in the file. Returns whether to start an agent."""
    try:
        text = file.read_text(encoding=_ENCODING)
        properties = {key: value.strip() for key, value in javaproperties.loads(text).items()}
        check_agent(properties)
    except (OSError, ValueError, NotAsExpectedError) as error:
        say(f"no agent: {error}. The broker starts as stock Kafka")
        return False
    if _is_shadow(properties):
        say("the agent is in shadow, and the broker keeps its address")
        return True
    try:
        file.write_text(readdressed(text, properties), encoding=_ENCODING)
    except (OSError, NotAsExpectedError) as error:
        # The agent starts all the same: this broker reaches others by it.
        say(f"the broker keeps its address, and others replicate from it directly: {error}")
    else:
        say(f"the broker is advertised as {new_addresses(properties)}")
    return True


def restore(file: Path, original: bytes) -> None:
    """Put the broker's own address back into the file, because there is no agent in front of it."""
    if file.read_bytes() != original:
        file.write_bytes(original)
        say("the agent does not get ready: the broker keeps its address, and starts as stock Kafka")


class Pair:
    """The processes of the broker and its agent: the agent is restarted whenever it ends, and stopped after the broker.

    The broker starts once the agent is ready; if it does not get ready, `without_agent` is called before. An agent
    reports its state as it does to systemd (sd_notify(3)).
    """

    def __init__(self, broker: Sequence[str], agent: Sequence[str], without_agent: Callable[[], None]) -> None:
        self._broker_command = broker
        self._agent_command = agent
        self._without_agent = without_agent
        self._is_ready, self._is_decided = False, asyncio.Event()
        self._broker: asyncio.subprocess.Process | None = None
        self._ending = False
        self._reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._reports.bind("")  # an abstract address that the kernel chooses
        name = self._reports.getsockname().decode()
        told = {"NOTIFY_SOCKET": name.replace("\0", "@", 1), "WATCHDOG_USEC": str(int(_SILENCE_S * 1e6))}
        self._environment = {**os.environ, **told}

    async def run(self) -> int:
        """Run until the broker ends. Returns its exit code, as a shell has it."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._end_broker)
        agent = asyncio.create_task(self._keep_agent())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_READY_S):
                    await self._is_decided.wait()
            if not self._is_ready and not self._ending:
                self._without_agent()
            # Sessions of their own: a signal to a whole group must not end the agent before the broker.
            self._broker = await asyncio.create_subprocess_exec(*self._broker_command, start_new_session=True)
            if self._ending:
                self._broker.terminate()
            code = await self._broker.wait()
        finally:
            agent.cancel()
            await asyncio.gather(agent, return_exceptions=True)
            self._reports.close()
        return code if code >= 0 else 128 - code

    def _end_broker(self) -> None:
        self._ending = True
        self._is_decided.set()
        if self._broker is not None:
            with contextlib.suppress(ProcessLookupError):
                self._broker.terminate()

    async def _keep_agent(self) -> None:
        while True:
            started_s = time.monotonic()
            try:
                agent = await asyncio.create_subprocess_exec(
                    *self._agent_command, start_new_session=True, env=self._environment
                )
            except OSError as error:
                say(f"the agent does not start: {error}")
            else:
                say(f"the agent ended with {await self._wait(agent)}, and is started again")
            self._is_decided.set()
            if time.monotonic() - started_s < _SETTLED_S:
                await asyncio.sleep(1)

    async def _wait(self, agent: asyncio.subprocess.Process) -> int:
        """Wait for its end. If this is cancelled, end it."""
        watch = asyncio.create_task(self._watch(agent))
        try:
            return await agent.wait()
        except asyncio.CancelledError:
            await _end(agent)
            raise
        finally:
            watch.cancel()

    async def _watch(self, agent: asyncio.subprocess.Process) -> None:
        """Kill an agent that falls silent: frozen, it holds up its broker, while a missing one is started again."""
        limit_s = None
        while True:
            try:
                async with asyncio.timeout(limit_s):
                    report = await asyncio.get_running_loop().sock_recv(self._reports, 4096)
            except TimeoutError:
                say(f"the agent has said nothing for {_SILENCE_S:g} s, and is killed")
                agent.kill()
                return
            limit_s = _SILENCE_S
            if b"READY=1" in report.split(b"\n"):
                self._is_ready = True
                self._is_decided.set()


async def _end(agent: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        agent.terminate()
    try:
        async with asyncio.timeout(_AGENT_STOP_S):
            await agent.wait()
    except TimeoutError:
        agent.kill()
        await agent.wait()


def say(text: str) -> None:
    """Write a line to the container's log."""
    with contextlib.suppress(OSError):  # the broker does not end by its log
        sys.stderr.write(f"remote-wal: {text}.\n")
        sys.stderr.flush()


def main(arguments: Sequence[str]) -> None:
    """Start the broker and its agent, given the arguments of kafka-server-start.sh."""
    stock = (str(STOCK), *arguments)
    file = Path(arguments[-1]) if arguments else Path()
    original = file.read_bytes() if file.is_file() else b""
    if len(arguments) == 1 and prepare(file):
        sys.exit(asyncio.run(Pair(stock, (*AGENT, arguments[0]), partial(restore, file, original)).run()))
    os.execv(STOCK, stock)  # noqa: S606 - it is Kafka's own script


def _is_shadow(properties: Mapping[str, str]) -> bool:
    return properties.get("remote.wal.agent.mode") == "shadow"


def _has_tls(properties: Mapping[str, str]) -> bool:
    protocols = dict(item.partition(":")[::2] for item in _items(properties, "listener.security.protocol.map"))
    return protocols.get(LISTENER, _PLAINTEXT) != _PLAINTEXT


def _names(file: str) -> list[str]:
    """Return the hosts that a certificate names. Raises NotAsExpectedError."""
    try:
        extensions = x509.load_pem_x509_certificate(Path(file).read_bytes()).extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise NotAsExpectedError(f"{_CERTIFICATE_KEY}: {file}: {error}") from error
    return list(names.get_values_for_type(x509.DNSName))


def _items(properties: Mapping[str, str], key: str) -> list[str]:
    return [item.strip() for item in properties.get(key, "").split(",")]


if __name__ == "__main__":
    main(sys.argv[1:])
