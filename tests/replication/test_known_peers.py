"""Which of an agent's addresses is dialled: the listed one, or the one under which it registered."""

from replication.wire.peer_connection import Address, KnownPeers

LISTED, REGISTERED, MOVED = Address("10.0.0.1", 1), Address("10.0.0.2", 2), Address("10.0.0.3", 3)


def both() -> KnownPeers:
    peers = KnownPeers({1: LISTED})
    peers.learned({1: REGISTERED, 4: MOVED})
    return peers


def test_who_registers_is_known_until_it_does_not_any_more_and_who_is_listed_always() -> None:
    peers = both()
    assert dict(peers) == {1: LISTED, 4: MOVED}
    peers.learned({})
    assert dict(peers) == {1: LISTED}
    assert len(peers) == 1
    assert 4 not in peers


def test_where_a_listed_address_never_answered_the_registered_one_is_next_and_so_on() -> None:
    peers = both()
    peers.failed(1, LISTED)
    assert peers[1] == REGISTERED
    peers.failed(1, LISTED)  # another connection's, begun before
    assert peers[1] == REGISTERED
    peers.failed(1, REGISTERED)
    assert peers[1] == LISTED


def test_an_address_that_answered_is_kept_over_restarts() -> None:
    peers = both()
    peers.answered(1, LISTED)
    peers.failed(1, LISTED)
    peers.learned({1: REGISTERED, 4: MOVED})
    peers.failed(1, LISTED)
    assert peers[1] == LISTED


def test_an_agent_that_moves_is_looked_for_where_it_registers_then() -> None:
    peers = both()
    peers.answered(1, LISTED)
    peers.learned({1: MOVED})
    assert peers[1] == LISTED  # which may be its address still
    peers.failed(1, LISTED)
    assert peers[1] == MOVED
    peers.answered(1, MOVED)
    peers.learned({1: REGISTERED})
    assert peers[1] == REGISTERED
