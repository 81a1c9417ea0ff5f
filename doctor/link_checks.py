"""Checks whether always-linked topics have rounds that are worth it."""

from typing import Final

from agent.configuration import Configuration
from doctor.facts import AgentAnswer, Facts, StoredObjects, UnknownFactError, known
from doctor.findings import Level, Verdict, some_of
from plugin.prices import NEVER_PAYS

_ENOUGH: Final = 100
"""From so many objects on, their mean size is significant."""


def link_policy(facts: Facts) -> Verdict:
    """Compare the policy `always` with the size of the objects that hold a topic's records, since its partitions are
    led.
    """
    always = sorted(name for name, topic in known(facts.topics).items() if topic.is_always_linked)
    if not always:
        return Verdict(Level.OK, "links are given where they pay")
    agents = [answer for answer in known(facts.agents).values() if isinstance(answer, AgentAnswer)]
    stored = {
        name: sum((answer.stored.get(name, StoredObjects()) for answer in agents), StoredObjects()) for name in always
    }
    telling = {name: objects for name, objects in stored.items() if objects.count >= _ENOUGH}
    if not telling:
        raise UnknownFactError(f"no agents have told of {_ENOUGH} objects of {some_of(always)} yet")
    break_even = Configuration.load(facts.broker, facts.settings).break_even_bytes
    small = {
        name: objects.size_bytes / objects.count
        for name, objects in telling.items()
        if break_even == NEVER_PAYS or objects.size_bytes < break_even * objects.count
    }
    if not small:
        return Verdict(Level.OK, f"objects of {some_of(sorted(telling))} pay, on the mean")
    pays = "never" if break_even == NEVER_PAYS else f"from {break_even / 1000:.0f} KB on"
    sizes = [f"{name}: {size / 1000:.1f} KB" for name, size in small.items()]
    return Verdict(
        Level.WARNING,
        f"{some_of(sizes)} in an object, on the mean: these topics have links for every byte, and their rounds are "
        f"small. Objects pay {pays}. Each costs more than its bytes inline, and a producer that sends many small "
        "requests (librdkafka) waits a round for each of them",
        "remote-wal topics set --link-policy cost TOPIC",
    )
