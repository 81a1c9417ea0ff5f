"""Break something while records flow, put it right, and note what was seen of it."""

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from demo.load import Heartbeat
from demo.measurement import Moment, Sampler
from demo.plan import ALL_TOPICS, PROBE_TOPIC
from demo.report import FaultSeen
from local_cluster.cluster import LocalCluster
from local_cluster.polling import WaitTimeoutError, wait_until
from local_cluster.processes import ManagedProcess

_LINKS_AGAIN_TIMEOUT_S = 30.0
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
"""renameat2(2), Linux; a rename in two steps would give an agent time to make the directory anew."""


class StoreOutageError(Exception):
    """The demo could not make or end an outage of the object store."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The cluster and its clients, as the demo's faults need them."""

    cluster: LocalCluster
    sampler: Sampler
    heartbeat: Heartbeat
    started_s: float
    """When records began to flow."""

    def pause(self, seconds: float) -> None:
        """Wait while records are produced."""
        threading.Event().wait(seconds)

    def wait_for_full_isr(self) -> None:
        """Wait until every replica is in sync. Raises WaitTimeoutError."""
        for topic in ALL_TOPICS:
            self.cluster.admin.wait_for_full_isr(topic, timeout_s=120.0)

    def wait_for_heartbeat(self, since_s: float) -> float:
        """Wait until a heartbeat sent after `since_s` is acknowledged; return how long after. Raises
        WaitTimeoutError."""
        return wait_until(lambda: self.heartbeat.resumed_after_s(since_s), "acknowledgements come again", 90.0)

    def seen(self, fault: str, target: str, struck_s: float, seconds: float, **seen: object) -> FaultSeen:
        """Return a fault of the demo as its report shows it: when it struck, for how long, and what was seen."""
        return FaultSeen(fault, target, round(struck_s - self.started_s, 1), round(seconds, 1), seen)


def kill_leader(scene: Scene) -> FaultSeen:
    """Kill (-9) the broker that leads the heartbeat's partition, and start it again.

    Raises WaitTimeoutError, ProcessStartError.
    """
    cluster = scene.cluster
    victim = cluster.admin.wait_for_leader(PROBE_TOPIC)
    before = scene.sampler.now()
    struck_s = time.monotonic()
    cluster.broker(victim).kill()
    leader = cluster.admin.wait_for_leader(PROBE_TOPIC, other_than=victim)
    new_leader_s = time.monotonic() - struck_s
    resumed_s = scene.wait_for_heartbeat(struck_s)
    cluster.start_broker(victim)
    scene.wait_for_full_isr()
    in_sync_s = time.monotonic() - struck_s
    return scene.seen(
        "leader_killed",
        f"broker {victim}",
        struck_s,
        in_sync_s,
        new_leader=leader,
        new_leader_after_s=round(new_leader_s, 2),
        produce_resumed_after_s=round(resumed_s, 2),
        all_in_sync_after_s=round(in_sync_s, 1),
        **_traffic(before, scene.sampler.now()),
    )


@contextlib.contextmanager
def directory_away(directory: Path) -> Iterator[None]:
    """Make a directory disappear while the context lasts; afterwards it has all its files again.

    It is swapped, in one step, with a plain file: every request then fails with the error that a lost mount of a shared
    directory gives. Raises StoreOutageError.
    """
    stand_in = directory.with_name(directory.name + ".away")
    stand_in.touch()
    _exchange(directory, stand_in)
    try:
        yield
    finally:
        _exchange(directory, stand_in)
        stand_in.unlink()


@contextlib.contextmanager
def server_paused(server: ManagedProcess) -> Iterator[None]:
    """Pause a server process: requests reach its host and get no response, as if the network dropped them.

    Raises StoreOutageError.
    """
    if not server.pause():
        raise StoreOutageError(f"{server.spec.name} does not run")
    try:
        yield
    finally:
        server.resume()


def _exchange(left: Path, right: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(left), _AT_FDCWD, os.fsencode(right), _RENAME_EXCHANGE):
        raise StoreOutageError(f"cannot swap {left} and {right}: {os.strerror(ctypes.get_errno())}")


def store_outage(scene: Scene, server: ManagedProcess | None, told: str, seconds: float) -> FaultSeen:
    """Make the object store unreachable for some seconds: this server or, without one, the cluster's directory.

    Raises StoreOutageError, WaitTimeoutError.
    """
    before = scene.sampler.now()
    struck_s = time.monotonic()
    with server_paused(server) if server else directory_away(scene.cluster.layout.object_store_directory):
        scene.pause(seconds)
        during = scene.sampler.now()
    ended_s = time.monotonic()
    longest_wait_s = scene.heartbeat.longest_wait_s(struck_s, ended_s)
    # Requests that were under way when the store went may have been the last to make links: start from its end.
    linked = during.totals.linked_bytes
    again_s: float | None = None
    with contextlib.suppress(WaitTimeoutError):  # "not seen" is the finding
        wait_until(
            lambda: scene.sampler.now().totals.linked_bytes > linked,
            "links are used again",
            _LINKS_AGAIN_TIMEOUT_S,
            interval_s=0.2,
        )
        again_s = time.monotonic() - ended_s
        wait_until(
            lambda: scene.sampler.now().oldest_unstored_s < seconds, "uploads have caught up", _LINKS_AGAIN_TIMEOUT_S
        )
    caught_up_s = time.monotonic() - ended_s
    after = scene.sampler.now()
    return scene.seen(
        "store_outage",
        told,
        struck_s,
        ended_s - struck_s,
        longest_acknowledgement_s=_rounded(longest_wait_s, 2),
        **_traffic(before, during),
        links_again_after_s=_rounded(again_s, 1),
        uploads_caught_up_after_s=round(caught_up_s, 1),
        upload_failures=_by_reason(before, after, "remote_wal_upload_failures_total"),
        faults=_by_reason(before, after, "remote_wal_faults_total"),
    )


def kill_agent(scene: Scene) -> FaultSeen:
    """Kill (-9) the agent beside the heartbeat's leader, and start it again as a service manager would.

    Raises WaitTimeoutError, ProcessStartError.
    """
    cluster = scene.cluster
    victim = cluster.admin.wait_for_leader(PROBE_TOPIC)
    before = scene.sampler.now()
    struck_s = time.monotonic()
    cluster.agent(victim).kill()
    cluster.start_agent(victim)
    ready_s = time.monotonic() - struck_s
    scene.wait_for_full_isr()
    scene.wait_for_heartbeat(time.monotonic())
    ended_s = time.monotonic()
    return scene.seen(
        "agent_killed",
        f"agent of broker {victim}",
        struck_s,
        ended_s - struck_s,
        ready_again_after_s=round(ready_s, 2),
        longest_acknowledgement_s=_rounded(scene.heartbeat.longest_wait_s(struck_s, ended_s), 2),
        **_traffic(before, scene.sampler.now()),
    )


def _traffic(before: Moment, after: Moment) -> dict[str, object]:
    grown = after.totals.subtract(before.totals)
    return {"linked_bytes": int(grown.linked_bytes), "inline_bytes": int(grown.inline_bytes)}


def _by_reason(before: Moment, after: Moment, name: str) -> dict[str, int]:
    reasons = after.totals.subtract(before.totals).sum_by(name, "reason")
    return {reason: int(count) for reason, count in sorted(reasons.items()) if count}


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
