"""Tells people how a topic's newest bytes travel now, and why: in a plain sentence with what to do, and in numbers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.inline_reason import InlineReason
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.constants import LOOKS, PAYS_TIMES
from rlm.write_path.commit.link_policy import LinkDecider
from rlm.write_path.commit.trial import Found, Trial

_PLAIN: Final = {
    InlineReason.LOAD: "too little comes here now for links to begin, so new records go inline: nothing to do",
    InlineReason.LOOK: "it goes inline for a moment, to see whether links hold records back: nothing to do",
    InlineReason.HELD_UP: "links hold its producers back, so it goes inline for a while: use larger batches, or "
    "acks=all by an agent, or allow more by remote.wal.link.latency.bound.ms",
    InlineReason.LATENCY_BOUND: "upload and read take longer than the topic allows: raise its "
    "remote.wal.link.latency.bound.ms, or use a faster store",
    InlineReason.NEVER_PAYS: "no object of it pays at these prices, so it goes inline: keep its objects for a shorter "
    "time, or leave it so",
    InlineReason.NO_FOLLOWER_ELSEWHERE: "no replica is in another zone, so nothing crosses zones: nothing to do",
    InlineReason.UPLOADS_STOPPED: "the metadata topic takes no records, so all goes inline: see the agent's log",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a topic's newest bytes travel now, and why."""

    reason: InlineReason | None
    """None: they are linked."""
    plain: str
    """One sentence, with what to do."""
    numbers: str
    """What that follows from."""


def explain(decider: LinkDecider, one: Assignment, now_s: float, wall_ms: int) -> Explanation:
    """Explain how this partition's topic travels. On any thread."""
    reason, price, trial = decider.why_inline(one, now_s), decider.price, decider.trials.of(one.topic)
    clock = partial(_clock, wall_ms / 1000 - now_s)
    match reason:
        case None if one.link_policy is LinkPolicy.ALWAYS:
            return Explanation(reason, "it is linked, as the policy is always: nothing to do", "no looks are taken")
        case None:
            plain = f"it is linked; {_looked(trial)}: nothing to do"
            return Explanation(reason, plain, _last_look(trial, now_s, clock))
        case InlineReason.PAUSED_BY_OPERATOR:
            why = decider.paused_because(one.topic) or "links were paused until now"
            return Explanation(reason, why, _last_look(trial, now_s, clock))
        case InlineReason.LOAD:
            numbers = (
                f"an object here would carry {price.object_bytes(now_s) / 1e3:.0f} KB; it pays from "
                f"{price.break_even_bytes / 1e3:.0f} KB, and links begin at {price.paying_bytes / 1e3:.0f} KB, "
                f"{PAYS_TIMES:g} times that, so that they do not begin and end all the time"
            )
            if price.rests(now_s):
                numbers += f"; objects came out too small, so links rest until {clock(price.rests_until_s)}"
        case InlineReason.HELD_UP if trial.found is not None:
            numbers = _verdict(trial.found, one.topic, clock)
        case InlineReason.LATENCY_BOUND:
            numbers = f"upload and read take {price.link_s:.2g} s, {one.latency_bound_ms / 1000:.2g} s allowed"
        case InlineReason.NEVER_PAYS:
            numbers = f"each object is stored for {one.object_life_s / 3600:.1f} h"
        case _:
            numbers = _last_look(trial, now_s, clock)
    return Explanation(reason, _PLAIN[reason], numbers)


def _clock(monotonic_to_wall_s: float, at_s: float) -> str:
    return datetime.fromtimestamp(monotonic_to_wall_s + at_s, UTC).strftime("%H:%M:%S UTC")


def _looked(trial: Trial) -> str:
    found = trial.found
    if found is None:
        return "whether links hold its producers back is not known yet"
    if found.until_s > found.at_s:
        return "links held its producers back, have rested, and are tried again"
    if found.looks:
        return f"{found.looks} of {LOOKS} looks in a row, which would stop links, found its producers held back"
    if found.held_back_s > found.limit_s:
        return "the last look found no more records held back than may be by chance or in bursts"
    return "the last look found its producers not held back for too long"


def _last_look(trial: Trial, now_s: float, clock: Callable[[float], str]) -> str:
    found, next_s = trial.found, trial.next_s
    if trial.limit_s == math.inf:
        return "no looks are taken here"
    if found is None:
        told = f"no look yet, {trial.limit_s:.2g} s allowed"
    else:
        told = f"the last look at {clock(found.at_s)} found records held back {_held_back(found)}"
    if next_s == math.inf:
        return f"{told}; a look is under way"
    return f"{told}; next look {f'at {clock(next_s)}' if next_s > now_s else 'when links pay'}"


def _verdict(found: Found, topic: str, clock: Callable[[float], str]) -> str:
    looks = "one look" if found.looks == 1 else f"{found.looks} looks"
    others = [one for one in found.topics if one != topic]
    beside = f", together with {', '.join(others)}" if others else ""
    return (
        f"links hold records back {_held_back(found)}: {looks} at {clock(found.at_s)}{beside}; "
        f"inline until {clock(found.until_s)}"
    )


def _held_back(found: Found) -> str:
    costs = " and still more came inline" if found.costs_throughput else ""
    return f"{max(found.held_back_s, 0.0):.2g} s here{costs}, {found.limit_s:.2g} s allowed"
