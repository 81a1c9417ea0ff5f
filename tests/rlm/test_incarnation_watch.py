"""An agent whose number is too low says so, takes a newer one where nobody answers, and gives way where one does."""

from dataclasses import dataclass, field

import pytest

from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.store.store import RemoteWalMetadataStore
from rlm.lifecycle.incarnation_watch import ANSWER_S, IncarnationTakenError, IncarnationWatch

BROKER = 1


class OverError(Exception):
    """So long was enough."""


@dataclass
class Topic:
    """Read by each agent's store as it is written, in virtual time; an agent that is paused does nothing."""

    now_s: float = 0.0
    store: RemoteWalMetadataStore = field(default_factory=RemoteWalMetadataStore)
    records: int = 0
    is_readable: bool = True
    others: list[IncarnationWatch] = field(default_factory=list)
    until_s: float = 10 * ANSWER_S

    def register(self, incarnation: int) -> None:
        self.store.apply(RemoteWalNodeRegistration(BROKER, incarnation, BROKER, int(self.now_s)), (1, self.records))
        self.records += 1

    async def read_to_end(self) -> bool:
        return self.is_readable

    async def sleep(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.now_s += 1
            for other in self.others:
                other.look()
        if self.now_s > self.until_s:
            raise OverError

    def agent(self, incarnation: int) -> IncarnationWatch:
        self.register(incarnation)
        return IncarnationWatch(
            BROKER, incarnation, self.store, lambda: self.register(incarnation), self.read_to_end, self.sleep
        )


async def test_a_number_that_is_too_low_is_told_at_once_and_exchanged_when_nobody_answers() -> None:
    topic = Topic()
    topic.register(2000)
    agent = topic.agent(1000)
    assert not agent.look()
    assert agent.fenced_because is not None
    assert "2000" in agent.fenced_because
    with pytest.raises(IncarnationTakenError) as taken:
        await agent.run()
    assert taken.value.above == 2000
    assert topic.now_s >= ANSWER_S
    again = topic.agent(2001)
    assert again.look()
    assert again.fenced_because is None


async def test_where_the_registered_agent_lives_it_wins_and_the_newcomer_stays_without_uploads() -> None:
    topic = Topic()
    living = topic.agent(2000)
    assert living.look()
    topic.others.append(living)
    newcomer = topic.agent(1000)
    with pytest.raises(OverError):
        await newcomer.run()
    assert newcomer.fenced_because is not None
    assert "second" in newcomer.fenced_because
    assert living.look()
    registered = topic.store.registration_of(BROKER)
    assert registered is not None
    assert registered.incarnation == 2000
    written = topic.records
    topic.until_s *= 2
    with pytest.raises(OverError):
        await newcomer.run()
    assert topic.records == written, "they do not go on asking and answering"


async def test_an_agent_that_is_superseded_stops_and_never_takes_the_place_back() -> None:
    topic = Topic()
    old = topic.agent(1000)
    assert old.look()
    topic.register(2000)
    with pytest.raises(OverError):
        await old.run()
    assert old.fenced_because is not None
    assert topic.records == 2


async def test_while_the_topic_cannot_be_read_to_its_end_no_number_is_taken() -> None:
    topic = Topic()
    topic.register(2000)
    agent = topic.agent(1000)
    topic.is_readable = False
    with pytest.raises(OverError):
        await agent.run()
