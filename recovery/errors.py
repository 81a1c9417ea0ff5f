"""Errors of recovery and reassignment. Each names the operation, the key it was about, and what may help."""

from plugin.errors import OperationError


class RecoveryError(OperationError):
    """A recovery cannot go on."""


class TargetRefusedError(RecoveryError):
    """A log directory may not be written to: not empty, another cluster's or node's, in a broker's hands, or the broker
    would lead with less than it had.
    """


class UnknownClusterError(RecoveryError):
    """What must be known of the cluster (its id, topics' names, who has which partition) is not."""


class UnusableRunError(RecoveryError):
    """A run's bytes are not what they should be, or are gone; another copy may do."""


class GoneRunError(UnusableRunError):
    """A run's object was deleted."""


class OvertakenRunError(UnusableRunError):
    """A batch reaches into offsets that a newer leader epoch has. A log is cut between batches, so all of it was cut
    off; `base_offset` is where it begins.
    """

    def __init__(self, key: str, base_offset: int, last_offset: int) -> None:
        """`last_offset` is the last one below the newer epoch's."""
        self.base_offset = base_offset
        super().__init__(
            "read run", key, f"the batch at {base_offset} reaches beyond {last_offset}, where the log goes on otherwise"
        )


class ReassignmentError(OperationError):
    """The cluster did not do, or did not tell, what was asked."""


class ReassignmentSettingError(ReassignmentError):
    """A broker's setting could not be changed; to try on would leave moves that never end."""
