"""Metadata that is not published for too long ends links, is counted once and told, until it is published again."""

from collections import Counter
from pathlib import Path

import structlog

from metadata_topic.settings.topic_settings import LinkPolicy
from metadata_topic.topic.publication_watch import STALLED, PublicationWatch
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.cadence import Cadence
from rlm.write_path.commit.link_policy import LinkDecider, LinkMode
from tests.rlm.driven_core import LIMITS, price
from tests.rlm.plain_log import partition


def test_a_stall_ends_links_whatever_the_policy_and_its_end_brings_them_back() -> None:
    reason: list[str | None] = [None]
    faults: Counter[str] = Counter()
    watch = PublicationWatch(lambda: reason[0], lambda fault: faults.update([fault]))
    decider = LinkDecider(price(1, 0.1), Cadence(LIMITS.commit), is_off=lambda: watch.stalled_because is not None)
    modes = []
    with structlog.testing.capture_logs() as told:
        for now in (None, "compact", "compact", "compact", None, None, "no broker"):
            reason[0] = now
            watch.look()
            modes.append(decider.mode_of(Assignment(partition(0), "t", Path(), LinkPolicy.ALWAYS, 20), 0.0))
    off, link = LinkMode.OFF, LinkMode.LINK
    assert modes == [link, off, off, off, link, link, off]
    assert faults == {STALLED: 2}
    assert [event["event"] for event in told] == [STALLED, "metadata_publication_resumed", STALLED]
    assert told[0]["reason"] == "compact"
