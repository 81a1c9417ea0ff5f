"""Whether topics that are linked whatever it costs bring rounds that are worth it."""

from typing import Final

from agent.configuration import Configuration
from doctor.facts import AgentAnswer, Facts, UnknownFactError, known
from doctor.findings import Level, Verdict, some_of
from plugin.prices import NEVER_PAYS

_ENOUGH: Final = 100
"""Objects whose mean size says something."""


def link_policy(facts: Facts) -> Verdict:
    """The policy `always`, beside the size of the objects that agents have stored since they began."""
    always = sorted(name for name, topic in known(facts.topics).items() if topic.is_always_linked)
    if not always:
        return Verdict(Level.OK, "links are given where they pay")
    telling = [
        answer
        for answer in known(facts.agents).values()
        if isinstance(answer, AgentAnswer) and answer.stored_objects >= _ENOUGH
    ]
    if not telling:
        raise UnknownFactError(f"no agent has told of {_ENOUGH} objects of {some_of(always)} yet")
    break_even = Configuration.load(facts.broker, facts.settings).break_even_bytes
    small = [
        f"{answer.stored_bytes / answer.stored_objects / 1000:.1f} KB at broker {answer.broker_id}"
        for answer in sorted(telling, key=lambda answer: answer.broker_id)
        if break_even == NEVER_PAYS or answer.stored_bytes < break_even * answer.stored_objects
    ]
    if not small:
        return Verdict(Level.OK, f"objects of {some_of(always)} pay, on the mean")
    pays = "never" if break_even == NEVER_PAYS else f"from {break_even / 1000:.0f} KB on"
    return Verdict(
        Level.WARNING,
        f"{some_of(always)} has links for every byte, and rounds are small: objects are of {', '.join(small)}, and pay "
        f"{pays}. Each costs more than its bytes inline, and a producer that sends many small requests (librdkafka) "
        "waits a round for each of them",
        "remote-wal topics set --link-policy cost TOPIC",
    )
