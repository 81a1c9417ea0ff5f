"""The agent with other constants, for tests that cannot wait hours: `-m tests.cluster.quick_agent agent ...`.

The constants stand in the brokers' files, by the names below; brokers and stock agents ignore these keys.
"""

import importlib
import inspect
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

from kafka_log.broker_files.java_properties import parse_properties
from local_cluster.broker_config import AgentsMode

_PLACES: Final = {
    "archive.delete.grace.ms": ("metadata_topic.settings.wal_retention", "ARCHIVE_DELETE_GRACE_MS"),
    "lagging.max.ms": ("metadata_topic.settings.wal_retention", "WalRetention.lagging_max_ms"),
    "bypass.after.s": ("replication.follower.leader_bypass", "RouteLimits.after_s"),
    "bypass.return.s": ("replication.follower.leader_bypass", "RouteLimits.return_after_s"),
    "queue.bytes": ("agent.settings.memory_shares", "QUEUE_BYTES"),
    "unpublished.max.ms": ("metadata_topic.topic.publication_queue", "PublisherSettings.unpublished_max_ms"),
    "metadata.memory.bytes": ("metadata_topic.store.store", "StoreFile.cache_bytes"),
    "usage.interval.ms": ("agent.metrics.usage", "INTERVAL_MS"),
    "orphans.interval.s": ("rlm.lifecycle.orphans", "ORPHANS_S"),
    "orphans.min.objects": ("rlm.lifecycle.orphans", "HealingLimits.min_objects"),
    "topic.gone.ms": ("rlm.lifecycle.release", "TOPIC_GONE_MS"),
    "archive.object.max.bytes": ("agent.settings.memory_shares", "ARCHIVE_OBJECT_MAX_BYTES"),
    "takeover.ms": ("rlm.lifecycle.object_ownership", "ObjectOwnership.takeover_ms"),
    "archive.run.bytes": ("plugin.format.archive_object", "RUN_BYTES"),
    "archive.prepared.ttl.ms": ("rlm.archive.archive_plan", "PREPARED_TTL_MS"),
    "archive.care.s": ("rlm.archive.archiving", "ArchivingLimits.care_interval_s"),
    "snapshot.interval.s": ("agent.wiring.kafka_following", "SNAPSHOT_INTERVAL_S"),
    "archive.look.s": ("rlm.archive.archive_task", "ArchiveTaskLimits.look_s"),
    "archive.object.min.bytes": ("rlm.archive.archive_plan", "ArchiveLimits.min_bytes"),
    "failover.interval.s": ("agent.wiring.lifecycle", "FAILOVER_S"),
    "cluster.interval.s": ("agent.wiring.lifecycle", "CLUSTER_S"),
    "expiration.interval.s": ("agent.wiring.lifecycle", "EXPIRATION_S"),
    "delete.grace.times": ("agent.configuration", "GRACE_TIMES"),
}  # in the order of imports: a default that comes from another constant takes the changed one
_PREFIX: Final = "quick."

QuickAgents = partial(AgentsMode, program="tests.cluster.quick_agent")


def quick(**constants: float) -> dict[str, str]:
    """Return keys for brokers' files: `orphans_interval_s=1` is `quick.orphans.interval.s`."""
    named = {name.replace("_", "."): str(value) for name, value in constants.items()}
    assert named.keys() <= _PLACES.keys(), named
    return {_PREFIX + name: value for name, value in named.items()}


def _change(module: str, name: str, value: float) -> None:
    """Set a module's constant, or the default of a dataclass's field."""
    holder: Any = importlib.import_module(module)
    owner, _, field = name.partition(".")
    if not field:
        assert hasattr(holder, name), name
        setattr(holder, name, value)
        return
    init = getattr(holder, owner).__init__
    optional = [one.name for one in inspect.signature(init).parameters.values() if one.default is not one.empty]
    defaults = list(init.__defaults__)
    defaults[optional.index(field)] = value
    init.__defaults__ = tuple(defaults)


def _main() -> None:
    given = parse_properties(Path(sys.argv[sys.argv.index("--broker-config") + 1]).read_bytes())
    for name, (module, place) in _PLACES.items():
        if (value := given.get(_PREFIX + name)) is not None:
            _change(module, place, float(value) if name.endswith((".s", ".times")) else int(value))
    from cli.start import main

    main()


if __name__ == "__main__":
    _main()
