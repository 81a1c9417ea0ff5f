"""Decides how the bytes of the partitions led here travel, and when their upload starts.

Links are the rule wherever they pay (`price`), unless a trial found that they hold records back at producers (`trial`).
With the policy `always`, neither counts.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.inline_reason import InlineReason
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.cadence import Cadence, Load, Urgency
from rlm.write_path.commit.price import Price
from rlm.write_path.commit.trial import WINDOW_S, Finding, Sample, State, Trials


class LinkMode(Enum):
    """How the newest bytes of a partition travel now."""

    OFF = "off"
    """Bytes travel as in stock Kafka: the feature is off for the topic or for now, or the partition is not led here."""
    INLINE = "inline"
    LINK = "link"
    """Bytes travel as links; it is worth waiting for the upload."""


_OFF: Final = (InlineReason.UPLOADS_STOPPED, InlineReason.PAUSED_BY_OPERATOR)


@dataclass(frozen=True, slots=True)
class Decision:
    """How a load travels now: LINK if any of it is linked, else why not; and when its upload starts.

    `start_at` is in monotonic seconds; inf: not before something happens.
    """

    mode: LinkMode
    start_at: float
    reason: InlineReason | None


class LinkDecider:
    """Decides for the whole agent, because an object combines all partitions that are led here."""

    def __init__(
        self,
        price: Price,
        cadence: Cadence,
        *,
        has_trials: bool = True,
        is_off: Callable[[], bool] = lambda: False,
        paused_because: Callable[[str], str | None] = lambda _topic: None,
    ) -> None:
        """`has_trials`: False if no follower waits for links, so that nothing could be found.

        While `is_off`, nothing is linked, whatever the policies say. `paused_because` returns why an operator paused a
        topic's links, in words; None: nobody did.
        """
        self.price, self.cadence, self.trials = price, cadence, Trials()
        self._has_trials = has_trials
        self._is_off = is_off
        self.paused_because: Final = paused_because

    # Questions. They change nothing.

    def decide(self, now_s: float, load: Load) -> Decision:
        """Return how the load's bytes travel, and when an upload of it starts."""
        mode, reason, urgency, wait_s = LinkMode.OFF, InlineReason.NOT_ENABLED, load.urgency, math.inf
        may_wait, pays = False, self.price.pays(now_s)  # asked for each append, of many partitions
        for one in load.of:
            why = self.why_inline(one, now_s, pays=pays)
            if why is None:
                mode = LinkMode.LINK
                is_always = one.link_policy is LinkPolicy.ALWAYS
                urgency = max(urgency, Urgency.LINKS if is_always else Urgency.PAYING_LINKS)
                bound_s = one.latency_bound_ms / 1000 if one.is_bounded else math.inf
                wait_s = min(wait_s, self.price.wait_s(min(one.upload_wait_max_s, bound_s)))
                may_wait |= self.trials.of(one.topic).may_wait
            elif mode is not LinkMode.LINK:
                mode, reason = _mode(why), why
            if one.is_durable:
                urgency = Urgency.LINKS
            if urgency is Urgency.LINKS:
                break
        load = replace(
            load,
            urgency=urgency,
            wait_s=wait_s,
            bytes_per_s=self.price.bytes_per_s(now_s),
            enough_bytes=self.price.paying_bytes if may_wait else math.inf,
        )
        return Decision(mode, self.cadence.start_s(load, now_s), None if mode is LinkMode.LINK else reason)

    def mode_of(self, one: Assignment, now_s: float) -> LinkMode:
        """Return how the newest bytes of this partition travel now."""
        return _mode(self.why_inline(one, now_s))

    def why_inline(self, one: Assignment, now_s: float, *, pays: bool | None = None) -> InlineReason | None:
        """Return why this partition's newest bytes go inline; None: they are linked. On any thread.

        `pays`: what `Price.pays` returns now; None: ask it.
        """
        if self._is_off():
            return InlineReason.UPLOADS_STOPPED
        if self.paused_because(one.topic) is not None:
            return InlineReason.PAUSED_BY_OPERATOR
        if _has_no_follower_elsewhere(one):
            return InlineReason.NO_FOLLOWER_ELSEWHERE
        if one.link_policy is LinkPolicy.ALWAYS:
            return None
        if self.price.never_pays(one):
            return InlineReason.NEVER_PAYS
        if one.is_bounded and self.price.link_s * 1000 > one.latency_bound_ms:
            return InlineReason.LATENCY_BOUND
        if (state := self.trials.of(one.topic).state) is not State.LINKS:
            return InlineReason.LOOK if state is State.LOOK else InlineReason.HELD_UP
        if self.trials.is_tried(one.topic) and not self.price.rests(now_s):
            return None
        return None if (self.price.pays(now_s) if pays is None else pays) else InlineReason.LOAD

    def look_s(self, now_s: float) -> float:
        return self.trials.due_s(do_pay=self.price.pays(now_s))

    # What happened.

    def set_led(self, led: Collection[Assignment]) -> None:
        self.price.set_led(led)
        limits_s, partitions = dict[str, float](), dict[str, set[TopicIdPartition]]()
        for one in led:
            if self._has_trials and one.link_policy is not LinkPolicy.ALWAYS and self._may_link(one):
                limits_s[one.topic] = one.latency_bound_ms / 1000
                partitions.setdefault(one.topic, set()).add(one.topic_id_partition)
        self.trials.set_led(limits_s, partitions)

    def appended(self, one: Assignment, size: int, since_s: float, now_s: float) -> None:
        """Record that `size` bytes were read from the log; they were appended between `since_s` and now."""
        if self._is_counted(one) and self.price.appended(size, since_s, now_s):
            self.trials.load_began(now_s)

    def fetched(self, one: Assignment, follower_id: int, size: int, now_s: float) -> None:
        """Record that a follower is about to get `size` bytes of the log that are not stored yet."""
        if self._is_counted(one) and self.price.fetched(follower_id, size, now_s):
            self.trials.load_began(now_s)

    def uploading(self, of: Collection[Assignment], size: int, now_s: float) -> None:
        """Record that the upload of an object begins, with `size` bytes of these partitions."""
        if not any(one.is_kept or one.is_durable or one.link_policy is LinkPolicy.ALWAYS for one in of):
            self.price.uploading(size, now_s)

    def space_uploads(self, spacing_s: float) -> None:
        """Set the least time from one upload to the next."""
        self.price.spacing_s = self.cadence.spacing_s = spacing_s

    def look(self, samples: Mapping[str, Sample], now_s: float) -> Sequence[tuple[str, Finding]]:
        """Give samples to the trials (`Trials.advance`). Returns topic and finding of each look that ended."""
        if self.price.rests(now_s) or not self.cadence.is_prompt(WINDOW_S, now_s):  # nothing goes by links as usual
            self.trials.abandon(now_s)
        return self.trials.advance(samples, now_s, do_pay=self.price.pays(now_s))

    def _may_link(self, one: Assignment) -> bool:
        """Whether links to this partition's bytes can be worth anything."""
        return not (_has_no_follower_elsewhere(one) or self.price.never_pays(one))

    def _is_counted(self, one: Assignment) -> bool:
        """Whether the log's bytes would be in objects if these paid."""
        return self._may_link(one) and self.trials.of(one.topic).state is not State.INLINE


def _mode(why: InlineReason | None) -> LinkMode:
    return LinkMode.LINK if why is None else LinkMode.OFF if why in _OFF else LinkMode.INLINE


def _has_no_follower_elsewhere(one: Assignment) -> bool:
    return one.remote_followers is not None and not one.remote_followers
