"""Each broker of another zone has one agent of the zone as its proxy."""

from collections import Counter

from gateway.zone_proxies import ZoneProxies, ranked

BROKERS = range(100, 700)


def shares(agents: set[int], there: set[int]) -> dict[int, set[int]]:
    """For each agent that is there, the brokers that it says it is the proxy of."""
    found = {}
    for one in there:
        proxies = ZoneProxies(one)
        proxies.others = lambda one=one: frozenset(agents - {one})  # type: ignore[misc]
        proxies.is_there = there.__contains__
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


def test_a_new_agent_takes_its_share_and_moves_nothing_else() -> None:
    before, after = shares({1, 2}, {1, 2}), shares({1, 2, 3}, {1, 2, 3})
    assert after[1] < before[1]
    assert after[2] < before[2]


def test_an_agent_that_knows_no_other_serves_all() -> None:
    assert all(map(ZoneProxies(5).is_proxy, BROKERS))
