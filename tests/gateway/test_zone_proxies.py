"""Each broker of another zone has one agent of the zone as its proxy."""

from collections import Counter
from collections.abc import Collection

from gateway.zone_proxies import ZoneProxies, ranked

BROKERS = range(100, 700)


def shares(agents: set[int], there: set[int], unable: Collection[tuple[int, int]] = ()) -> dict[int, set[int]]:
    """For each agent that is there, the brokers that it says it is the proxy of."""
    found = {}
    for one in there:
        others = frozenset(agents - {one})
        proxies = ZoneProxies(
            one,
            lambda others=others: others,  # type: ignore[misc]
            lambda agent, broker: agent in there and (agent, broker) not in unable,
        )
        found[one] = {broker for broker in BROKERS if proxies.is_proxy(broker)}
    return found


def test_each_broker_has_one_proxy_and_agents_have_about_as_many() -> None:
    found = shares({1, 2, 3}, {1, 2, 3})
    assert Counter(broker for brokers in found.values() for broker in brokers) == Counter(BROKERS)
    assert all(len(BROKERS) / 4 < len(brokers) < len(BROKERS) / 2 for brokers in found.values())


def test_an_agent_that_is_away_hands_its_own_brokers_alone_to_those_that_come_next() -> None:
    before, after = shares({1, 2, 3}, {1, 2, 3}), shares({1, 2, 3}, {1, 3})
    assert after[1] | after[3] == set(BROKERS)
    assert before[1] < after[1]
    assert before[3] < after[3]
    assert all(ranked(broker, {1, 2, 3})[0] == 2 for broker in (after[1] - before[1]) | (after[3] - before[3]))


def test_an_agent_that_cannot_serve_a_broker_hands_that_alone_to_the_next_and_listens_still() -> None:
    before = shares({1, 2, 3}, {1, 2, 3})
    broker = min(before[2])
    _, second, third = ranked(broker, {1, 2, 3})
    after = shares({1, 2, 3}, {1, 2, 3}, [(2, broker)])
    assert {one: after[one] - before[one] for one in (1, 2, 3)} == {2: set(), second: {broker}, third: set()}
    assert after[2] == before[2], "or it would never find out that it can again"
    after = shares({1, 2, 3}, {1, 2, 3}, [(2, broker), (second, broker)])
    assert all(broker in after[one] for one in (1, 2, 3)), "who is in front of it may be wrong"


def test_a_new_agent_takes_its_share_and_moves_nothing_else() -> None:
    before, after = shares({1, 2}, {1, 2}), shares({1, 2, 3}, {1, 2, 3})
    assert after[1] < before[1]
    assert after[2] < before[2]


def test_an_agent_that_knows_no_other_serves_all() -> None:
    assert all(map(ZoneProxies(5, frozenset, lambda *_: True).is_proxy, BROKERS))
