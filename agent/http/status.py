"""Gathers what a person wants to see of an agent at one look, for `agent.http.status_page`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from agent.agent_state import AgentState
from agent.metrics.savings import Dollars
from agent.metrics.topic_metrics import TopicState, by_topic
from plugin.inline_reason import InlineReason
from plugin.prices import NEVER_PAYS
from plugin.remote_wal_storage_manager import RequestCounts
from plugin.wall_clock import Clocks
from replication.follower.peer_watch import NOT_ASKED, Presence
from rlm.write_path.core.led_partition import PartitionStatus

if TYPE_CHECKING:
    from agent.wiring.write_path import TopicWay

_LATE_S: Final = 60.0
"""A store that answered longer ago was not asked lately."""
_HELD_INLINE: Final = (InlineReason.HELD_UP, InlineReason.LATENCY_BOUND)
"""Why a topic goes inline though links to it pay, and nothing else in the summary says so."""
_MOST_HELD_INLINE: Final = 20
"""So many such topics are named, the largest first."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another broker and its agent."""

    broker_id: int
    zone: str | None
    """None if unknown, or if it has none."""
    is_own_zone: bool
    is_bypassed: bool
    sent_bytes: int
    """Bytes between the two agents, for what that broker follows here."""
    stock_bytes: int
    """The size of the same traffic as stock Kafka sends it."""
    presence: Presence = NOT_ASKED
    """Whether its agent is alive, as measured."""
    http_endpoint: str = ""
    """Where its agent serves its own page, as registered; empty if not known."""
    version: str = ""
    """Its agent's release, as registered; empty if not known."""
    has_bypass: bool = False
    """Whether this agent knows a way past it to its broker."""


@dataclass(frozen=True, slots=True)
class Status:
    """The agent's state at one time, as the status page shows it."""

    broker_id: int
    cluster_id: str = ""
    zone: str | None = None
    uptime_s: float = 0.0
    reasons: Sequence[str] = ()
    """Why it is not ready."""
    degraded: Sequence[str] = ()
    gaps: int = 0
    """Offsets that no object holds or will hold."""
    is_store_there: bool = False
    store_answered_s_ago: float | None = None
    """When the store last did what it was asked; None: never."""
    store_failed: tuple[float, str] | None = None
    """How many seconds ago the last call failed, and why; None: it did not fail."""
    requests: RequestCounts = field(default_factory=RequestCounts)
    break_even_bytes: int | None = None
    """The size from which on objects pay; None: unknown; NEVER_PAYS: none does."""
    dollars: Dollars = field(default_factory=lambda: Dollars(0, 0, 0))
    topics: dict[str, TopicState] = field(default_factory=dict)
    """The largest topic first."""
    partitions: Sequence[PartitionStatus] = ()
    """The partition that lags most first."""
    peers: Sequence[Peer] = ()
    broker_away: str | None = None
    """That the local broker does not answer, since when and why; None: as far as was seen, it does."""
    why: "Mapping[str, TopicWay]" = field(default_factory=dict)
    """By topic."""
    paused: Sequence[str] = ()
    """The pauses of links in force."""
    minute: Mapping[str, int] = field(default_factory=dict)
    """Record bytes of the last minute that followers got from here, by inline reason or as `linked`."""
    hour: Mapping[str, int] = field(default_factory=dict)
    """Those of the last hour."""
    shadow: Mapping[str, Any] | None = None
    """What an agent in shadow says; if it does, bytes and dollars are those that would be."""

    @property
    def store(self) -> tuple[str, str]:
        """The state of the object store, and why it fails."""
        if self.shadow is not None:
            return "not used", ""
        if self.store_failed is not None:
            return "fails", self.store_failed[1]
        if not self.is_store_there:
            return "does not answer", ""
        ago = self.store_answered_s_ago
        return ("not asked lately" if ago is None or ago > _LATE_S else "answers"), ""

    @property
    def all_topics(self) -> TopicState:
        topics = self.topics.values()
        return TopicState(
            sum(one.partitions for one in topics),
            sum(one.lag_bytes for one in topics),
            max((one.oldest_ms for one in topics), default=0),
            sum(one.linked_bytes for one in topics),
            sum(one.inline_bytes for one in topics),
        )

    @property
    def links_never_pay(self) -> bool:
        """Whether links never pay at the configured prices."""
        return self.break_even_bytes == NEVER_PAYS


def summary(status: Status, release: str) -> dict[str, Any]:
    """Return the state as JSON for `remote-wal status`. Ages are as of now."""
    total, (store, failure) = status.all_topics, status.store
    largest = ((name, status.why[name]) for name in status.topics if name in status.why)
    held_inline = [(name, why) for name, why in largest if why.reason in _HELD_INLINE]
    return {
        "broker_id": status.broker_id,
        "cluster_id": status.cluster_id,
        "zone": status.zone,
        "version": release,
        "uptime_s": status.uptime_s,
        "not_ready": list(status.reasons),
        "degraded": list(status.degraded),
        "paused": list(status.paused),
        "missing_offsets": status.gaps,
        "partitions": total.partitions,
        "lag_bytes": total.lag_bytes,
        "lag_age_s": total.oldest_ms / 1000,
        "linked_share": {"minute": linked_share(status.minute), "hour": linked_share(status.hour)},
        "inline_bytes": {way: moved for way, moved in status.hour.items() if way != "linked"},
        "held_inline": {name: asdict(why) for name, why in held_inline[:_MOST_HELD_INLINE]},
        "topics_held_inline": len(held_inline),
        "store": {"state": store, "failure": failure, "answered_s_ago": status.store_answered_s_ago},
        "shadow": status.shadow,
        "peers": {one.broker_id: asdict(one.presence) | _way_past(one) for one in status.peers},
    }


def _way_past(peer: Peer) -> dict[str, bool]:
    return {"is_bypassed": peer.is_bypassed, "has_bypass": peer.has_bypass}


def linked_share(moved: Mapping[str, int]) -> float | None:
    """Return the share of linked bytes, 0 to 1; None if nothing moved."""
    total = sum(moved.values())
    return moved.get("linked", 0) / total if total else None


def status_of(state: AgentState, clocks: Clocks) -> Status:
    """Gather the state. Any thread may call it, because it reads only snapshots."""
    identity, relaying, run = state.identity, state.relaying, state.storage_run
    if identity is None or relaying is None:
        return Status(state.broker_id, reasons=state.not_ready(), degraded=state.degraded())
    led = run.write_path.manager.status() if run is not None else {}
    recent, now_s = relaying.traffic.recent_of_all, clocks.monotonic_s()
    return Status(
        identity.broker_id,
        identity.cluster_id,
        relaying.zones.own,
        (clocks.wall_ms() - identity.started_ms) / 1000,
        state.not_ready(),
        state.degraded(),
        run.led_gaps.offsets if run is not None else 0,
        relaying.storage.is_there,
        relaying.store_times.answered_s_ago,
        relaying.store_times.failed,
        relaying.storage.request_counts,
        run.write_path.price.break_even_bytes if run is not None else None,
        relaying.savings.dollars(),
        by_topic(led, dict(relaying.traffic.by_partition), relaying.packing.ratio_of),
        sorted(led.values(), key=lambda one: (-one.lag_bytes, one.topic, one.partition)),
        _peers(state),
        state.broker_away,
        run.write_path.explain() if run is not None else {},
        relaying.pauses.told,
        recent.moved(60, now_s),
        recent.moved(3600, now_s),
        state.shadow(),
    )


def _peers(state: AgentState) -> list[Peer]:
    relaying = state.relaying
    if relaying is None:
        return []
    zones, bypassed = relaying.zones, set(relaying.follower.bypasses.bypassed)
    moved = dict(relaying.metrics.traffic.by_follower)
    agents = relaying.found_peers.agents
    known = set(relaying.follower.addresses) | {one for one in moved if one >= 0} | set(agents)
    return [
        Peer(
            one,
            zones.of(one),
            zones.is_own(one),
            one in bypassed,
            moved[one].peer_bytes if one in moved else 0,
            moved[one].stock_bytes if one in moved else 0,
            relaying.peer_watch.get_presence(one),
            agents[one].http_endpoint if one in agents else "",
            agents[one].version if one in agents else "",
            one in relaying.follower.bypasses,
        )
        for one in sorted(known)
    ]
