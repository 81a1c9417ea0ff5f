"""The agent's state for its pages. Called on the HTTP endpoint's threads, so it only reads snapshots."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from agent.defects import STARTING, Supervisor
from agent.descriptors import DescriptorWatch
from agent.identity import AgentIdentity
from agent.tls.certificates import CertificateWatch
from agent.wiring.relaying import Relaying
from plugin.prices import NEVER_PAYS
from plugin.remote_wal_storage_manager import WHOLE_STORE
from replication.follower.peer_watch import NOT_ASKED, Presence
from replication.leader.shadow import PRODUCERS_SLOWED

if TYPE_CHECKING:
    from agent.wiring.storage_system import StorageRun, StorageSystem

NOT_FORMATTED = "log directories are not formatted yet"


def presence_text(found: Presence) -> str:
    """Describe whether another agent lives, as a predicate with the age of that knowledge."""
    if found == NOT_ASKED:
        return "was not asked yet"
    seen = "never answered" if found.answered_s_ago is None else f"last answered {found.answered_s_ago:.1f} s ago"
    if found.failure is not None:
        return f"does not answer ({seen}): {found.failure}"
    return f"answered {found.answered_s_ago:.1f} s ago"


@dataclass(slots=True)
class AgentState:
    """Which parts of the agent have started, and what they report. Changed in the event loop."""

    broker_id: int
    is_storage_enabled: bool
    supervisor: Supervisor
    descriptors: DescriptorWatch
    certificates: CertificateWatch
    identity: AgentIdentity | None = None
    relaying: Relaying | None = None
    """None before it begins."""
    system: "StorageSystem | None" = None
    """None before it begins, or if it is off."""
    is_stopping: bool = False

    @property
    def storage_run(self) -> "StorageRun | None":
        """The running storage system; None before it starts, and while it is restarted."""
        return self.system.current if self.system is not None else None

    def describe(self) -> dict[str, Any]:
        """Return the state for JSON; before relaying begins it has few keys."""
        identity, relaying, system, run = self.identity, self.relaying, self.system, self.storage_run
        if identity is None or relaying is None:
            return {"broker_id": self.broker_id, "partitions": []}
        traffic = dict(relaying.traffic.by_partition)
        partitions = []
        for partition, status in run.write_path.manager.status().items() if run is not None else ():
            moved = traffic.get(partition)
            partitions.append(
                asdict(status)
                | {
                    "linked_bytes": moved.linked_bytes if moved else 0,
                    "inline_bytes": moved.inline_bytes if moved else 0,
                }
            )
        break_even = run.write_path.price.break_even_bytes if run is not None else None
        settings = run.kafka.topic_settings.topics if run is not None else {}
        return {
            "broker_id": identity.broker_id,
            "incarnation": (system.around.identity if system is not None else identity).incarnation,
            "cluster_id": identity.cluster_id,
            "storage_ready": relaying.storage.is_there,
            "hydration_paused": bool(relaying.hydration.tiers.given_up),
            "buckets_given_up": relaying.hydration.tiers.given_up,
            "archive_reads_paused": relaying.hydration.tiers.archive.breaker.is_open,
            "bypassed_agents": relaying.follower.bypasses.bypassed,
            "agents_of_another_version": list(relaying.metrics.held.versions.others),
            "requests": asdict(relaying.storage.request_counts),
            "metadata_pending": system.around.publisher.pending if system is not None else 0,
            "metadata_stalled": system.around.publication.stalled_because if system is not None else None,
            "enabled_topics": sorted(topic for topic, one in settings.items() if one.enable),
            "partitions": partitions,
            "packed": relaying.packing.describe(run.kafka.replicas.topic_names if run is not None else {}),
            "paused": [{"scope": scope} | asdict(one) for scope, one in sorted(relaying.pauses.shown.items())],
            "broker_away": self.broker_away,
            "zone": relaying.zones.own,
            "links_never_pay": bool(partitions) and break_even == NEVER_PAYS,
            "why": {topic: asdict(why) for topic, why in (run.write_path.explain() if run else {}).items()},
            "gaps": run.led_gaps.describe() if run is not None else [],
            "held": run.led_gaps.describe_held() if run is not None else [],
            "shadow": self.shadow(),
        }

    @property
    def broker_away(self) -> str | None:
        """Since when and why the local broker does not answer, and what follows; None while it does, as far as seen."""
        leader = self.relaying.leader if self.relaying is not None else None
        if leader is None or (why := leader.broker_unreachable) is None:
            return None
        return (
            f"broker {self.broker_id} has not answered its agent for {leader.broker_unreachable_s:,.0f} s ({why}): "
            "other brokers get nothing from it; if it is down, it leads nothing, and clients do not reach it. See its "
            "log, and start it again"
        )

    def shadow(self) -> dict[str, Any] | None:
        """Return what links would save and what is unknown, besides linked shares; None unless in shadow mode.

        Any thread may ask.
        """
        if self.relaying is None or self.relaying.shadow is None:
            return None
        spent = self.relaying.savings.dollars()
        return {"dollars": asdict(spent) | {"saved": spent.saved}, "producers_slowed": PRODUCERS_SLOWED}

    def objects(self) -> dict[str, Any]:
        """Return what `remote-wal describe --objects` shows."""
        run = self.storage_run
        return run.objects() if run is not None else {"objects": [], "totals": []}

    def not_ready(self) -> list[str]:
        """Return what is missing for the agent to do all of its work, as texts for people."""
        reasons = [f"{part} failed and begins anew: {defect}" for part, defect in sorted(self.supervisor.down.items())]
        if self.is_stopping:
            reasons.append("stopping")
        if self.relaying is None:
            reasons.append(NOT_FORMATTED)
        elif self.is_storage_enabled:
            reasons += self.system.missing if self.system is not None else [STARTING]
        return reasons

    def degraded(self) -> list[str]:
        """Return problems, of this agent or of others, despite which it is ready, as texts for people."""
        own = [*([self.descriptors.shortage] if self.descriptors.shortage else ()), *self.certificates.soon]
        relaying, run = self.relaying, self.storage_run
        if relaying is None:
            return own
        loading = self.system.loading.away if self.system is not None else {}
        reading = dict.fromkeys(relaying.hydration.tiers.given_up, "it fails on reads, which go inline")
        reading.pop(WHOLE_STORE, None)
        versions = relaying.metrics.held.versions.others
        return [
            *(
                f"the agent of broker {one} is bypassed, inline, until it has answered for some seconds"
                for one in relaying.follower.bypasses.bypassed
            ),
            *(f"the agent of broker {one} {presence_text(found)}" for one, found in relaying.peer_watch.silent.items()),
            *(
                f"the agent of broker {one} has protocol version {version}, another one: all goes inline between the "
                "two until both are of one release"
                for one, version in versions.items()
            ),
            *([away] if (away := self.broker_away) is not None else ()),
            *relaying.pauses.told,
            *(run.degraded if run is not None else ()),
            *(f"bucket {place}: {why}" for place, why in {**reading, **loading}.items()),
            *(relaying.gateway.degraded if relaying.gateway is not None else ()),
            *own,
        ]
