"""Names the heir of a broker that is gone for good, before the takeover time is over. Sans-IO."""

from collections.abc import Collection

from rlm.lifecycle.node_care import NodeRegistration, Registrations


class DecommissionError(Exception):
    """The broker's objects cannot be given to that heir."""


def inheritance(
    broker_id: int, heir_id: int, living: Collection[int], registrations: Registrations
) -> NodeRegistration:
    """Return the registration to publish. Raises DecommissionError; `living` are the brokers in the cluster.

    A living broker's agent would take its care back at once; an heir without an agent would never take it up.
    """
    if broker_id == heir_id:
        raise DecommissionError(f"broker {broker_id} cannot be its own heir")
    if broker_id in living:
        raise DecommissionError(f"broker {broker_id} is in the cluster: stop it, and its agent, first")
    known = registrations.registration_of(broker_id)
    if known is None and broker_id not in registrations.broker_ids():
        raise DecommissionError(f"no agent of broker {broker_id} is known, so there is nothing to inherit")
    heir = registrations.registration_of(heir_id)
    if heir_id not in living or heir is None:
        raise DecommissionError(f"broker {heir_id} is not in the cluster, or has no agent: name another heir")
    if heir.caretaker_broker_id != heir_id:
        raise DecommissionError(f"broker {heir_id} is itself cared for by broker {heir.caretaker_broker_id}")
    return NodeRegistration(broker_id, known.incarnation if known is not None else 0, heir_id)
