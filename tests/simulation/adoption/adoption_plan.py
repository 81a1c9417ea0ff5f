"""In which runs gateways have stored what logs get."""

from tests.simulation.archive.archive_plan import is_archived
from tests.simulation.replicas.replica_plan import is_replicated


def is_adopting(seed: int) -> bool:
    """A third of those of the write path alone."""
    return seed % 5 == 1 and not is_archived(seed) and not is_replicated(seed)
