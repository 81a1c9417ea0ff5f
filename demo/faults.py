"""Break something while records flow, put it right, and note what was seen of it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from demo.load import Heartbeat
from demo.measurement import Moment, Sampler
from demo.plan import ALL_TOPICS, PROBE_TOPIC
from demo.report import FaultSeen
from demo.store_outage import StoreOutage
from local_cluster.polling import WaitTimeoutError, wait_until

if TYPE_CHECKING:
    from local_cluster.cluster import LocalCluster

_LINKS_AGAIN_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Scene:
    """The parts that faults strike, and those that watch."""

    cluster: "LocalCluster"
    sampler: Sampler
    heartbeat: Heartbeat
    started_s: float
    """When records began to flow."""
    clock: Callable[[], float] = time.monotonic

    def pause(self, seconds: float) -> None:
        """Let records flow."""
        threading.Event().wait(seconds)

    def wait_for_full_isr(self) -> None:
        """Raises WaitTimeoutError."""
        for topic in ALL_TOPICS:
            self.cluster.admin.wait_for_full_isr(topic.name, timeout_s=120.0)


def kill_leader(scene: Scene) -> FaultSeen:
    """kill -9 the broker that leads the heartbeat's partition (and others), and start it again.

    Raises WaitTimeoutError, ProcessStartError.
    """
    cluster, clock = scene.cluster, scene.clock
    victim = cluster.admin.wait_for_leader(PROBE_TOPIC.name)
    before = scene.sampler.now()
    struck_s = clock()
    cluster.broker(victim).kill()
    leader = cluster.admin.wait_for_leader(PROBE_TOPIC.name, other_than=victim)
    new_leader_s = clock() - struck_s
    resumed_s = _resumed(scene, struck_s)
    cluster.start_broker(victim)
    scene.wait_for_full_isr()
    in_sync_s = clock() - struck_s
    return FaultSeen(
        "leader_killed",
        f"broker {victim}",
        round(struck_s - scene.started_s, 1),
        round(in_sync_s, 1),
        {
            "new_leader": leader,
            "new_leader_after_s": round(new_leader_s, 2),
            "produce_resumed_after_s": round(resumed_s, 2),
            "all_in_sync_after_s": round(in_sync_s, 1),
            **_traffic(before, scene.sampler.now()),
        },
    )


def store_outage(scene: Scene, outage: StoreOutage, seconds: float) -> FaultSeen:
    """Take the object store away, and give it back. Raises StoreOutageError, WaitTimeoutError."""
    before = scene.sampler.now()
    struck_s = scene.clock()
    outage.begin()
    try:
        scene.pause(seconds)
        during = scene.sampler.now()
    finally:
        outage.end()
    ended_s = scene.clock()
    longest_wait_s = scene.heartbeat.longest_wait_s(struck_s, ended_s)
    # Requests that were under way when the store went may have been the last to make links: start from its end.
    linked = during.totals.linked_bytes
    again_s: float | None = None
    try:
        wait_until(
            lambda: scene.sampler.now().totals.linked_bytes > linked,
            "links are used again",
            _LINKS_AGAIN_TIMEOUT_S,
            interval_s=0.2,
        )
        again_s = scene.clock() - ended_s
        wait_until(
            lambda: scene.sampler.now().oldest_unstored_s < seconds, "uploads have caught up", _LINKS_AGAIN_TIMEOUT_S
        )
    except WaitTimeoutError:
        pass  # "not seen" is the finding
    caught_up_s = scene.clock() - ended_s
    after = scene.sampler.now()
    return FaultSeen(
        "store_outage",
        outage.description,
        round(struck_s - scene.started_s, 1),
        round(ended_s - struck_s, 1),
        {
            "longest_acknowledgement_s": _rounded(longest_wait_s, 2),
            **_traffic(before, during),
            "links_again_after_s": _rounded(again_s, 1),
            "uploads_caught_up_after_s": _rounded(caught_up_s, 1),
            "upload_failures": _by_reason(before, after, "remote_wal_upload_failures_total"),
            "faults": _by_reason(before, after, "remote_wal_faults_total"),
        },
    )


def kill_agent(scene: Scene) -> FaultSeen:
    """kill -9 the agent beside the heartbeat's leader, and start it again as a service manager would.

    Raises WaitTimeoutError, ProcessStartError.
    """
    cluster, clock = scene.cluster, scene.clock
    victim = cluster.admin.wait_for_leader(PROBE_TOPIC.name)
    before = scene.sampler.now()
    struck_s = clock()
    cluster.agent(victim).kill()
    cluster.start_agent(victim)
    ready_s = clock() - struck_s
    scene.wait_for_full_isr()
    _resumed(scene, clock())
    ended_s = clock()
    return FaultSeen(
        "agent_killed",
        f"agent of broker {victim}",
        round(struck_s - scene.started_s, 1),
        round(ended_s - struck_s, 1),
        {
            "ready_again_after_s": round(ready_s, 2),
            "longest_acknowledgement_s": _rounded(scene.heartbeat.longest_wait_s(struck_s, ended_s), 2),
            **_traffic(before, scene.sampler.now()),
        },
    )


def _resumed(scene: Scene, since_s: float) -> float:
    """How long after that time a heartbeat sent since was acknowledged."""
    return wait_until(lambda: scene.heartbeat.resumed_after_s(since_s), "acknowledgements come again", 90.0)


def _traffic(before: Moment, after: Moment) -> dict[str, object]:
    grown = after.totals.since(before.totals)
    return {"linked_bytes": int(grown.linked_bytes), "inline_bytes": int(grown.inline_bytes)}


def _by_reason(before: Moment, after: Moment, name: str) -> dict[str, int]:
    reasons = after.totals.since(before.totals).by(name, "reason")
    return {reason: int(count) for reason, count in sorted(reasons.items()) if count}


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
