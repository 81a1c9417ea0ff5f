"""A broker's files, found by its server.properties on disk."""

from dataclasses import dataclass
from pathlib import Path

import javaproperties

from local_cluster.layout import ClusterLayout


@dataclass(frozen=True, slots=True)
class BrokerFiles:
    """The files of all brokers of a cluster, running or not."""

    layout: ClusterLayout

    @property
    def has_agents(self) -> bool:
        """Whether the configuration puts agents between the brokers."""
        switch = "remote.log.wal.storage.system.enable"
        return any(self.properties(broker_id).get(switch) == "true" for broker_id in self.layout.broker_ids)

    def properties(self, broker_id: int) -> dict[str, str]:
        with self.layout.server_properties(broker_id).open() as file:
            return dict(javaproperties.load(file))

    def log_directories(self, broker_id: int) -> tuple[Path, ...]:
        """Return the broker's log.dirs."""
        return tuple(Path(part.strip()) for part in self.properties(broker_id)["log.dirs"].split(",") if part.strip())

    def partition_directory(self, broker_id: int, topic: str, partition: int) -> Path | None:
        """Return the directory of the broker's replica; None if it has none."""
        for directory in self.log_directories(broker_id):
            if (found := directory / f"{topic}-{partition}").is_dir():
                return found
        return None

    def log(self, broker_id: int) -> Path:
        """Return the broker's own log file."""
        return self.layout.broker_directory(broker_id) / "kafka.log"
