"""How agents of the simulation keep what the metadata topic tells: in files, as real agents do."""

from collections import Counter
from pathlib import Path

from metadata_topic.store.store import StoreFile


class StateDirectories:
    """One for each broker: what an agent that ends leaves to its successor."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lost = Counter[int]()

    def lose(self, broker_id: int) -> None:
        """The broker's next agent finds nothing."""
        self._lost[broker_id] += 1

    def file(self, broker_id: int) -> StoreFile:
        """The store's file of this broker's next agent."""
        directory = self._directory / f"state-{broker_id}-{self._lost[broker_id]}"
        directory.mkdir(parents=True, exist_ok=True)
        return StoreFile(directory, "c", 0)
