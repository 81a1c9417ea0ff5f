"""Does the steps of a takeover on this host: by other commands of ours, Kafka's own start script, and an agent.

What is started has its output and its pid in the directory, and goes on if this process ends; the next run finds it.
"""

import json
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cli.exit_code import ExitCode
from cli.takeover.host_properties import PEER_LISTENER, faults, taken_addresses
from plugin.durable_files import write_durably
from plugin.errors import OperationError, in_words

if TYPE_CHECKING:
    from agent.settings.agent_settings import AgentSettings
    from kafka_cluster.client_config import KafkaClientConfig
    from kafka_log.broker_files.server_properties import BrokerProperties
    from local_cluster.processes import ManagedProcess
    from metadata_topic.settings.topic_settings import AgentRegistration
    from recovery.reassignment.plan import ClusterReplicas, PartitionReplicas

HTTP_LISTENER: Final = "remote.wal.agent.http.listener"
GATEWAY_HOST: Final = "remote.wal.gateway.listen.host"
_TURN_S: Final = 1.0
_CONNECT_S: Final = 3.0
_RESPONSE_S: Final = 15.0
_STOP_S: Final = 120.0
_STALLED_S: Final = 600.0
"""How long replicas may make no progress (guessed): then what has a leader elsewhere is drained from there."""
_NAMED: Final = 3
_TELL_PID: Final = """IFS= read -r stat < /proc/$$/stat
ticks=$(set -- ${stat##*) }; echo ${20})
echo $$ $ticks > "$0"
exec "$@"
"""
"""Has a process write its own pid file, as ManagedProcess does. This one may be killed before it can."""
_DEAD_AGENT: Final = "dead-agent"
"""The file that names the incarnation of the dead broker's last agent: a later one shows that the broker came back."""
_RESTORED: Final = frozenset({ExitCode.GOOD, ExitCode.FINDINGS, ExitCode.DECLARED})
"""How `recover` ends when the log directories are the broker's."""


class TakeoverError(OperationError):
    """A step of the takeover failed; when run again, the command continues with it."""


class IncompleteRecoveryError(TakeoverError):
    """A recovered log is not complete. Raised once; when run again, the command continues with what there is."""


class TakeoverRefusedError(OperationError):
    """A takeover would not be safe, or something is missing on this host; nothing was done."""


@dataclass(frozen=True, slots=True)
class Host:
    """This host and the dead broker, as far as known: directories, settings and options."""

    directory: Path
    dead: "BrokerProperties"
    own: "dict[str, str]"
    """The keys of --host-config."""
    made: "BrokerProperties"
    """The broker's settings here; its path is that of the file."""
    agent: "AgentSettings"
    kafka: Path
    where: tuple[str, ...]
    """The options by which other commands find the cluster."""
    recover_options: tuple[str, ...] = ()
    heir: int | None = None


class HostPlace:
    """Carries out the steps of a takeover on this host."""

    def __init__(self, host: Host, client: "KafkaClientConfig", tell: Callable[[str], object]) -> None:
        """`tell` is called with progress for people."""
        self._host = host
        self._id = host.made.node_id
        self._client = client
        self._tell = tell
        self._wait: Callable[[float], object] = threading.Event().wait
        self._broker = self._process("broker", str(host.kafka), str(host.made.path))
        self._agent = self._process("agent", "agent", "--broker-config", str(host.made.path))

    def _process(self, name: str, *words: str) -> "ManagedProcess":
        """Return a command of ours, or the broker."""
        from local_cluster.processes import ManagedProcess, ProcessSpec

        directory = self._host.directory
        command = words if name == "broker" else (sys.executable, "-m", "cli.start", *words)
        pid_file = directory.absolute() / f"{name}.pid"
        tells_pid = ("sh", "-c", _TELL_PID, str(pid_file), *command)
        return ManagedProcess(ProcessSpec(name, tells_pid, directory / f"{name}.log", pid_file, Path.cwd()))

    # What speaks against it.

    def check(self) -> None:
        """Raise TakeoverRefusedError if the dead broker or its agent lives elsewhere, or something is missing here."""
        if found := self.refusals():
            raise TakeoverRefusedError("take over", f"broker {self._id}", "; ".join(found))
        if not self._dead_agent.exists():
            write_durably(self._dead_agent, _incarnation(self._registered()))

    def check_gone(self) -> None:
        """Raise TakeoverRefusedError if the broker has partitions: then it came back after the takeover was
        complete."""
        if self._partitions():
            reason = "it has partitions again since its takeover in this directory was done"
            raise TakeoverRefusedError("take over", f"broker {self._id}", reason, "use a new --directory")

    @property
    def _dead_agent(self) -> Path:
        return self._host.directory / _DEAD_AGENT

    def _registered(self) -> "AgentRegistration | None":
        """Return what the agent of this id told last."""
        from metadata_topic.settings.settings_topic import read_settings

        return read_settings(self._client).agents.get(self._id)

    def refusals(self) -> list[str]:
        """Return why the broker's place cannot be taken now. What this command has started here does not count."""
        host = self._host
        found = list(faults(host.dead, host.own, host.made))
        if not self._broker.is_alive():
            if self._id in self._cluster().racks:
                found.append("the controllers say that it is alive: wait until they have fenced it")
            found += taken_addresses({f"listeners: {name}": at for name, at in host.made.listeners.items()})
        if not self._agent.is_alive():
            listeners = {PEER_LISTENER: host.agent.peers.peer_listener, HTTP_LISTENER: host.agent.http.listener}
            addresses = {key: (at.host, at.port) for key, at in listeners.items()}
            if host.agent.gateway.enable:
                addresses[GATEWAY_HOST] = (host.agent.gateway.listen_host, 0)
            found += taken_addresses(addresses)
            found += self._of_agents()
        return found

    def _of_agents(self) -> list[str]:
        """Return why the agents do not allow it: the dead broker's is alive, or others could not find the new one."""
        from agent.found_peers import own_address

        found = []
        if not self._host.agent.is_shadow and own_address(self._id, self._host.agent.peers) is None:
            found.append(
                f"{PEER_LISTENER} is no address that other agents reach, so say which one is: "
                f"remote.wal.agent.peers={self._id}@HOST:PORT"
            )
        registered = self._registered()
        if registered is not None and self._lives(registered):
            found.append(f"its agent answers at {registered.peer_address or registered.http_endpoint}: stop it first")
        is_started = self._agent.spec.log_path.exists()
        if not is_started and self._dead_agent.exists() and self._dead_agent.read_text() != _incarnation(registered):
            found.append("it came back since its logs were restored here, and these are old: name another --directory")
        return found

    def _lives(self, agent: "AgentRegistration") -> bool:
        from agent.found_peers import registered_addresses
        from agent.http.fleet_pages import ask_agents

        if ask_agents({agent.broker_id: agent}, self._host.agent.http)[agent.broker_id].page is not None:
            return True
        for at in registered_addresses({agent.broker_id: agent}).values():
            with suppress(OSError), socket.create_connection((at.host, at.port), _CONNECT_S):
                return True
        return False

    # The steps.

    def recovery(self) -> tuple[str, ...]:
        """Return the command that restores the logs; each directory with the id of the dead broker's at its place.

        A leader is elected only where the controllers know the directory of a replica (KIP-858). If there are fewer
        directories here, `refusals` says so.
        """
        host, registered = self._host, self._registered()
        ids = {} if registered is None else registered.directory_ids
        places = {str(old): new for old, new in zip(host.dead.log_dirs, host.made.log_dirs, strict=False)}
        known = (("--directory-id", f"{new}={ids[old]}") for old, new in places.items() if old in ids)
        words = (word for pair in known for word in pair)
        return ("recover", "--broker-config", str(host.made.path), *host.where, *words, *host.recover_options)

    def draining(self) -> tuple[str, ...]:
        return ("reassign", "drain", str(self._id), *self._host.where)

    def handing_over(self) -> tuple[str, ...]:
        """Return the command that gives the objects to an heir: the lowest living broker whose agent lives, too."""
        from metadata_topic.settings.settings_topic import read_settings

        heir = self._host.heir
        if heir is None:
            brokers, agents = self._cluster().racks.keys() - {self._id}, read_settings(self._client).agents
            able = (one for one, agent in sorted(agents.items()) if one in brokers and not agent.is_gone)
            heir = next((one for one in able if self._lives(agents[one])), None)
        if heir is None:
            reason, hint = "no living broker has an agent that answers", "name one by --heir"
            raise TakeoverRefusedError("decommission", f"broker {self._id}", reason, hint)
        config = ("--broker-config", str(self._host.made.path))
        return ("decommission", str(self._id), "--heir", str(heir), *config, *self._host.where)

    def recover(self) -> None:
        """Restore the logs. Raises TakeoverError, once, if some are not complete."""
        self._format_metadata_directory()
        process, told = self._process("recover", *self.recovery(), "--json"), self._host.directory / "recover.told"
        log = process.spec.log_path
        code, text = _end_of(log)
        if process.is_alive() or not self._is_restored(code, log):
            code, text = self._run(process)
        if code == ExitCode.REFUSED:
            raise TakeoverRefusedError("recover", f"broker {self._id}", text)
        if not self._is_restored(code, log):
            raise TakeoverError("recover", f"broker {self._id}", text, f"see {log}, and run it again")
        if code != ExitCode.GOOD and not told.exists():
            told.touch()
            reason = "not all logs are whole" if code is not None else "nobody saw whether all logs are whole"
            hint = f"see {log}; run it again to go on with what there is"
            raise IncompleteRecoveryError("recover", f"broker {self._id}", reason, hint)

    def _format_metadata_directory(self) -> None:
        from cli.recovery.recovery_sources import new_directory_id
        from kafka_cluster.cluster import KafkaCluster
        from recovery.logs.log_directory_target import LogDirectoryIdentity, LogDirectoryTarget, identity_in

        path = self._host.made.metadata_log_dir
        if identity_in(path) is None:
            cluster_id = KafkaCluster(self._client, "remote-wal-takeover", _RESPONSE_S).listing().cluster_id
            with LogDirectoryTarget(path, LogDirectoryIdentity(cluster_id, self._id, new_directory_id())) as target:
                target.publish({})
                target.release()

    def _is_restored(self, code: int | None, log: Path) -> bool:
        """Whether the log directories are the broker's: a recovery says so, or was killed before it could."""
        from recovery.logs.log_directory_target import identity_in, is_without_logs

        if code is not None or not log.exists():
            return code in _RESTORED
        identities = [identity_in(path) for path in self._host.made.log_dirs if not is_without_logs(path)]
        ours = [one for one in identities if one is not None and one.node_id == self._id]
        return len(ours) == len(self._host.made.log_dirs)

    def start(self) -> None:
        """Start the broker and its agent if they do not run, and wait until both are registered, even if reading
        takes long."""
        from agent.http.http_asking import ask_agent_page

        for one in (self._agent, self._broker):
            if not one.is_alive():
                one.start()

        def missing() -> str:
            for one in (self._agent, self._broker):
                if not one.is_alive():
                    self._broker.terminate(_STOP_S)
                    self._agent.terminate(_STOP_S)
                    raise TakeoverError("start", one.spec.name, f"it has ended:\n{one.log_tail()}")
            if self._id not in self._cluster().racks:
                return "the broker is not registered yet"
            try:
                ask_agent_page(self._host.agent.http.registered, "/readyz", _CONNECT_S, self._host.agent.http)
            except OSError as error:
                return f"the agent is not ready yet: {in_words(error)}"
            return ""

        self._until_none(missing)

    def wait_until_led(self) -> None:
        """Wait until all partitions have leaders, for as long as something changes; for replicas that others lead,
        until they stall."""
        before, stalled_s = -1, 0.0
        while True:
            mine = self._partitions()
            leaderless = [one for one in mine if one.leader < 0]
            behind = [one for one in mine if self._id not in one.in_sync]
            if not leaderless and not behind:
                return
            stalled_s = stalled_s + _TURN_S if before == len(behind) + len(leaderless) else 0.0
            before = len(behind) + len(leaderless)
            if stalled_s >= _STALLED_S:
                if leaderless:
                    named = ", ".join(str(one.topic_partition) for one in leaderless[:_NAMED])
                    raise TakeoverError("wait for leaders", f"broker {self._id}", f"{named}: nobody leads")
                return
            self._tell(f"waiting for replicas: {before} of {len(mine)} are not there yet")
            self._wait(_TURN_S)

    def drain(self) -> None:
        """Move every replica elsewhere. Moves of a run that was killed end first: they would be planned twice."""
        while under_way := self._under_way():
            self._tell(f"waiting for moves: {under_way}")
            self._wait(_TURN_S)
        code, text = self._run(self._process("drain", *self.draining(), "--json"))
        if code != ExitCode.GOOD:
            hint = f"see {self._host.directory / 'drain.log'}, and run it again"
            raise TakeoverError("drain", f"broker {self._id}", text or "not all was moved", hint)

    def _under_way(self) -> int:
        from recovery.reassignment.admin import ReassignmentAdmin

        mine = {one.topic_partition for one in self._partitions()}
        with closing(ReassignmentAdmin(self._client)) as admin:
            return len(mine & set(admin.ongoing()))

    def stop(self) -> None:
        """Stop broker and agent once no replica is here; a topic may have been created meanwhile."""
        while self._partitions():
            self.start()
            self.drain()
        self._broker.terminate(_STOP_S)
        self._agent.terminate(_STOP_S)
        self._until_none(lambda: "waiting for the controllers" if self._id in self._cluster().racks else "")

    def hand_over(self) -> None:
        """Give the broker's objects to the heir's agent."""
        process = self._process("decommission", *self.handing_over())
        code, text = self._run(process)
        if code is None:  # it was of a killed run, and nobody saw how it ended
            code, text = self._run(process)
        if code != ExitCode.GOOD:
            raise TakeoverError("decommission", f"broker {self._id}", text, "run it again")

    # The cluster, and commands.

    def _cluster(self) -> "ClusterReplicas":
        from recovery.reassignment.admin import ReassignmentAdmin

        with closing(ReassignmentAdmin(self._client)) as admin:
            return admin.cluster()

    def _partitions(self) -> "list[PartitionReplicas]":
        return [one for one in self._cluster().partitions if self._id in one.replicas]

    def _until_none(self, missing: Callable[[], str]) -> None:
        while told := missing():
            self._tell(told)
            self._wait(_TURN_S)

    def _run(self, process: "ManagedProcess") -> tuple[int | None, str]:
        """Run a command to its end, or wait for one that a killed run has left.

        Returns its exit code, None if nobody can know it, and what it said last.
        """
        is_ours, log = not process.is_alive(), process.spec.log_path
        if is_ours:
            log.unlink(missing_ok=True)
            process.start()
        while process.is_alive():
            line = process.log_tail().rpartition("\n")[2]
            if not line.startswith("{"):
                self._tell(f"{process.spec.name}: {line}")
            self._wait(_TURN_S)
        code, text = _end_of(log)
        return process.exit_code if is_ours else code, text


def _incarnation(agent: "AgentRegistration | None") -> str:
    return "none" if agent is None else str(agent.incarnation)


def _end_of(log: Path) -> tuple[int | None, str]:
    """Return the exit code that a command with --json has told, and its error; None and its last lines: none."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    documents = [line for line in lines if line.startswith('{"exit_code"')]
    with suppress(IndexError, ValueError):  # none, or one that a full disk cut off
        told: dict[str, Any] = json.loads(documents[-1])
        return int(told["exit_code"]), str(told.get("error", ""))
    return None, " / ".join(lines[-_NAMED:])
