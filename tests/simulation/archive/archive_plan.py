"""Which runs have an archive, and what happens in them besides."""

from tests.simulation.replicas.replica_plan import is_replicated

WEIGHTS = {"archive store": 5, "archive reads": 3, "archive crash": 1}


def is_archived(seed: int) -> bool:
    """Two of five of those without replication: the archive comes on top of all else that these do."""
    return seed % 5 in (0, 2) and not is_replicated(seed)
