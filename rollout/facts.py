"""What steps are planned by: what runs, not what stands in files, which only their hosts can read."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from doctor.facts import Unknown
from kafka_log.server_properties import BrokerProperties


class AgentState(StrEnum):
    """Of an agent that has registered once."""

    READY = "ready"
    NOT_READY = "not ready"
    SILENT = "does not answer"
    UNKNOWN = "cannot be asked from here"


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """An agent, by its registration and its own /readyz."""

    release: str
    state: AgentState
    told: str = ""
    """Why it is not ready, or does not answer."""

    @property
    def is_ready(self) -> bool:
        return self.state is AgentState.READY


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """All of a cluster, at one moment as far as that goes."""

    brokers: Mapping[int, BrokerProperties | Unknown]
    """Those that live, by what they say that they run with; keys with Kafka's defaults are not in `raw`."""
    hosts: Mapping[int, str]
    """By which clients reach them."""
    missing: frozenset[int]
    """Brokers that have replicas and are not registered."""
    not_in_sync: tuple[str, ...]
    """Partitions with a replica that is not in sync, or without a leader."""
    single: tuple[str, ...]
    """Partitions with one replica: away while their broker restarts."""
    agents: Mapping[int, AgentFacts]
    topics: tuple[str, ...]
    """Those that replicate through object storage."""
